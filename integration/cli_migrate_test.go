package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

type migrateOutput struct {
	From, To, Version, Latest uint
	Ran                       []string
	Installed, Dirty          bool
}

// The whole life of a schema, through the command line.
func TestCLIMigrate(t *testing.T) {
	t.Parallel()
	dsn := emptyDatabase(t).DSN
	latest := latestVersion(t)
	sweepFails(t, dsn, 1, []string{"status"}, "has no outbox", `Run "sweep migrate up" first.`)
	if got := sweep(t, dsn, "migrate", "version"); got != fmt.Sprintf("nothing is installed: \"sweep migrate up\" installs version %d\n", latest) {
		t.Errorf("%q", got)
	}
	if got := fromJSON[migrateOutput](t, sweep(t, dsn, "migrate", "up", "--to", "1", "--json")); got.From != 0 || got.To != 1 || len(got.Ran) != 1 {
		t.Errorf("%+v", got)
	}
	sweepFails(t, dsn, 1, []string{"status"}, fmt.Sprintf("the schema is at version 1, this sweep needs %d", latest), `Run "sweep migrate up" first.`)
	if got := sweep(t, dsn, "migrate", "version"); got != fmt.Sprintf("version 1: \"sweep migrate up\" goes to %d\n", latest) {
		t.Errorf("%q", got)
	}
	sweep(t, dsn, "migrate", "up")
	if got := sweep(t, dsn, "migrate", "up"); got != fmt.Sprintf("version %d, nothing to do\n", latest) {
		t.Errorf("%q", got)
	}
	got := fromJSON[migrateOutput](t, sweep(t, dsn, "migrate", "version", "--json"))
	if got.Version != latest || got.Latest != latest || !got.Installed || got.Dirty {
		t.Errorf("%+v", got)
	}
	sweep(t, dsn, "status")

	sweepFails(t, dsn, 2, []string{"migrate", "down"}, fmt.Sprintf("this would take back %06d_", latest), "--yes")
	sweepFails(t, dsn, 2, []string{"migrate", "down", "--to", "0"}, "000001_outbox and delete every message", "--yes")
	sweepFails(t, dsn, 2, []string{"migrate", "down", "--to", "99"}, "version 99 is not installed")
	if got := fromJSON[migrateOutput](t, sweep(t, dsn, "migrate", "down", "--yes", "--json")); got.From != latest || got.To != latest-1 {
		t.Errorf("%+v", got)
	}
	if got := fromJSON[migrateOutput](t, sweep(t, dsn, "migrate", "down", "--to", "0", "-y", "--json")); got.To != 0 || len(got.Ran) != int(latest)-1 {
		t.Errorf("%+v", got)
	}
	if got := sweep(t, dsn, "migrate", "down"); got != "version 0, nothing to do\n" {
		t.Errorf("%q", got)
	}
}

// What "migrate sql" prints is what "migrate up" does, and needs no database.
func TestCLIMigrateSQL(t *testing.T) {
	t.Parallel()
	dsn := emptyDatabase(t).DSN
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.PgConn().Exec(t.Context(), sweep(t, "", "migrate", "sql")).ReadAll(); err != nil {
		t.Fatal(err)
	}
	got := fromJSON[migrateOutput](t, sweep(t, dsn, "migrate", "version", "--json"))
	if got.Version != latestVersion(t) {
		t.Errorf("%+v", got)
	}
	sweep(t, dsn, "migrate", "up")
	if text := sweep(t, "", "migrate", "sql", "--from", "1", "--to", "0"); !strings.Contains(text, "drop table") {
		t.Errorf("from 1 to 0:\n%s", text)
	}
	sweepFails(t, "", 2, []string{"migrate", "up", "--to", "99"}, "--to: there is no version 99")
	sweepFails(t, "", 2, []string{"migrate", "sql", "--to", "99"}, "--to: there is no version 99")
	sweepFails(t, "", 2, []string{"migrate", "sql", "--from", "99"}, "--from: there is no version 99")
}

// A schema from a newer program is used, with a warning, and not touched.
func TestCLINewerSchema(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, `insert into outbox.migration (version) values (999)`)
	run(t, db.Pool, `update outbox.schema_migrations set version = 999`)
	got := sweepCall{dsn: db.DSN, args: []string{"status"}}.do(t)
	got.want(t, 0, []string{"status"}, "the schema is newer than this sweep", "schema=999")
	sweepFails(t, db.DSN, 1, []string{"migrate", "up"}, "newer", "Use a newer sweep.")
	if got := sweep(t, db.DSN, "migrate", "version"); !strings.Contains(got, "version 999, newer than this sweep") {
		t.Errorf("%q", got)
	}
}

// A schema outbox that is somebody else's is left alone, and said to be so.
func TestCLIForeignSchema(t *testing.T) {
	t.Parallel()
	dsn := emptyDatabase(t).DSN
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	run(t, conn, `create schema outbox`)
	run(t, conn, `create table outbox.events (id int)`)
	sweepFails(t, dsn, 1, []string{"migrate", "up"}, "not fairclaim's", "install into another database")
	sweepFails(t, dsn, 1, []string{"status"}, "has no outbox")
}

// What only the outbox can know to be wrong is wrong usage all the same: exit code 2.
func TestCLIUsageOfTheOutbox(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, `select outbox.configure('{"max_batch": 50}')`)
	sweepFails(t, db.DSN, 2, []string{"once", "--sink", "stdout", "--shards", "0-99", "--batch", "10"}, "shard 16", "shards 0 to 15")
	sweepFails(t, db.DSN, 2, []string{"run", "--sink", "stdout", "--shards", "0-99", "--batch", "10"}, "shard 16", "shards 0 to 15")
	sweepFails(t, db.DSN, 2, []string{"explain", "--shards", "0-99", "--batch", "10"}, "outside 0 to 15")
	sweepFails(t, db.DSN, 2, []string{"once", "--sink", "stdout"}, "--batch is 100", "max_batch")
	sweepFails(t, db.DSN, 2, []string{"explain"}, "max_batch")
}

// migrate down takes one step, or all where that is said.
func TestCLIMigrateDownSteps(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	newest := latestVersion(t)
	sweep(t, db.DSN, "migrate", "down", "--yes")
	wantVersion(t, db.DSN, newest-1)
	sweepFails(t, db.DSN, 2, []string{"migrate", "down", "--all", "--steps", "1", "--yes"}, "--steps", "--all")
	sweepFails(t, db.DSN, 2, []string{"migrate", "down", "--all"}, "delete every message", "--yes")
	wantVersion(t, db.DSN, newest-1)
	sweep(t, db.DSN, "migrate", "down", "--all", "--yes")
	if got := sweep(t, db.DSN, "migrate", "version"); !strings.HasPrefix(got, "nothing is installed") {
		t.Errorf("after down --all: %s", got)
	}
}
