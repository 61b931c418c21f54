package pgtest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// starterVariable turns the test binary into a program that starts a server,
// or starts and keeps it, prints its connection string and its stop command,
// and waits to be killed.
const starterVariable = "PGTEST_STARTER"

var pg pgtest.Cluster

func TestMain(m *testing.M) {
	if how := os.Getenv(starterVariable); how != "" {
		os.Exit(starter(how))
	}
	os.Exit(pg.Main(m, setup))
}

func starter(how string) int {
	server, err := pgtest.Start(context.Background(), pgtest.Options{Keep: how == "keep"})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(server.AdminDSN())
	fmt.Println(server.StopCommand())
	never := make(chan os.Signal, 1)
	signal.Notify(never, syscall.SIGUSR1)
	<-never
	return 1
}

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
	checkClone(t, db)
}

func checkClone(t *testing.T, db *pgtest.DB) {
	t.Helper()
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

func TestClonesAreApart(t *testing.T) {
	t.Parallel()
	const clones = 6
	var group sync.WaitGroup
	for range clones {
		group.Go(func() {
			db := pg.New(t)
			if _, err := db.Pool.Exec(t.Context(), "insert into origin values ($1)", db.Name); err != nil {
				t.Error(err)
			}
			var rows int
			if err := db.Pool.QueryRow(t.Context(), "select count(*) from origin").Scan(&rows); err != nil || rows != 2 {
				t.Errorf("got %d rows, %v; want 2", rows, err)
			}
		})
	}
	group.Wait()
}

func TestCloneIsDroppedWithItsRoles(t *testing.T) {
	t.Parallel()
	var database, role string
	t.Run("use", func(t *testing.T) {
		db := pg.New(t)
		r := db.Role(t)
		database, role = db.Name, r.Name
		exec1(t, db.Connect(t), "grant select on origin to "+pgx.Identifier{role}.Sanitize())
		exec1(t, db.Connect(t, pgtest.As(r)), "table origin")
		db.Connect(t) // still open when the database is dropped
	})
	var left int
	err := connect(t, pg.Server().AdminDSN()).QueryRow(t.Context(), `
		select (select count(*) from pg_database d where d.datname = $1)
		     + (select count(*) from pg_roles r where r.rolname = $2)`, database, role).Scan(&left)
	if err != nil || left != 0 {
		t.Errorf("got %d of database and role, %v; want 0", left, err)
	}
}

func TestRoleHasItsSettings(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	r := db.Role(t, "set default_transaction_isolation = 'serializable'", "connection limit 3")
	conn := db.Connect(t, pgtest.As(r), pgtest.Param("TimeZone", "Asia/Kathmandu"))
	var user, isolation, zone string
	err := conn.QueryRow(t.Context(), `
		select current_user, current_setting('transaction_isolation'), current_setting('TimeZone')`).Scan(&user, &isolation, &zone)
	if err != nil || user != r.Name || isolation != "serializable" || zone != "Asia/Kathmandu" {
		t.Errorf("got %q, %q, %q, %v; want %q, serializable, Asia/Kathmandu", user, isolation, zone, err, r.Name)
	}
}

// A function that hides a mistake must fail its test.
func TestExtraErrorsAreOn(t *testing.T) {
	t.Parallel()
	_, err := pg.New(t).Pool.Exec(t.Context(), `
		create function shadow(a int) returns int language plpgsql as $$ declare a int; begin return a; end $$`)
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != "42712" {
		t.Errorf("got %v; want duplicate_alias", err)
	}
}

func TestSetupFailureIsTheError(t *testing.T) {
	t.Parallel()
	c, err := pgtest.Open(t.Context(), pgtest.Options{}, func(context.Context, string) error { return fmt.Errorf("no such luck") })
	if err == nil {
		c.Close(context.Background())
	}
	if err == nil || !strings.Contains(err.Error(), "no such luck") {
		t.Errorf("got %v", err)
	}
}
