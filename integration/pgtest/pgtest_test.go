package pgtest_test

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

var pg pgtest.Cluster

func TestMain(m *testing.M) { os.Exit(pg.Main(m, setup)) }

// setup leaves one row in the template, so that a clone shows where it comes from.
func setup(ctx context.Context, dsn string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "create table origin (word text); insert into origin values ('template')")
	return err
}

func TestCloneIsTheOwners(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	var word, user string
	var super bool
	err := db.Pool.QueryRow(t.Context(), `
		select o.word, current_user, r.rolsuper
		  from origin o cross join pg_roles r where r.rolname = current_user`).Scan(&word, &user, &super)
	if err != nil {
		t.Fatal(err)
	}
	if word != "template" || user != db.Owner || super {
		t.Errorf("got word %q, user %q, super %v; want template, %q, false", word, user, super, db.Owner)
	}
}
