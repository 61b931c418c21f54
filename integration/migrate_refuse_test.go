package integration

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/integration/pgtest"
	"github.com/fairclaim/fairclaim/sql/migrations"
)

// TestMigrateForeignSchema: a schema outbox of somebody else's is refused, with
// what was found in it, and stays as it is. golang-migrate alone is stopped by the
// first migration itself.
func TestMigrateForeignSchema(t *testing.T) {
	t.Parallel()
	const versionTable = "create table outbox.schema_migrations (version bigint not null primary key, dirty boolean not null);"
	for name, tc := range map[string]struct {
		script string
		says   string
		plain  bool // whether golang-migrate's own run must be refused as well
	}{
		"table":           {"create table outbox.message (id int)", "table outbox.message", true},
		"view":            {"create view outbox.v as select 1 as a", "view outbox.v", true},
		"function":        {"create function outbox.f() returns int language sql as 'select 1'", "function outbox.f()", true},
		"type":            {"create type outbox.mood as enum ('sad')", "type outbox.mood", false},
		"beside versions": {versionTable + "create table outbox.message (id int)", "table outbox.message", true},
		"versions alone":  {versionTable + "insert into outbox.schema_migrations values (37, false)", "schema_migrations says 37", false},
		"dirty versions":  {versionTable + "insert into outbox.schema_migrations values (37, true)", "schema_migrations says 37", false},
		"its own ledger":  {"create table outbox.migration (id int, name text)", "table outbox.migration", true},
		"other versions":  {"create table outbox.schema_migrations (version text)", "table outbox.schema_migrations", false},
		"many":            {"create table outbox.a (); create table outbox.b (); create table outbox.c (); create table outbox.d ()", "outbox.c, more", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := emptyDatabase(t)
			conn := db.Connect(t)
			execScript(t, conn, "create schema outbox; "+tc.script)
			before := describeSchema(t, conn, true)

			_, upErr := migrations.Up(t.Context(), db.DSN, migrations.Options{})
			_, downErr := migrations.Down(t.Context(), db.DSN, migrations.All, migrations.Options{})
			_, versionErr := migrations.Version(t.Context(), db.DSN)
			for _, err := range []error{upErr, downErr, versionErr} {
				if !errors.Is(err, migrations.ErrForeignSchema) || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("got %v, want ErrForeignSchema because of %s", err, tc.says)
				}
			}
			wantSchema(t, conn, before)

			if !tc.plain {
				return
			}
			plain, err := migrate.New("file://"+migrationsDir, plainURL(t, db.DSN))
			if err != nil {
				t.Fatal(err)
			}
			defer plain.Close()
			if err := plain.Up(); err == nil || !strings.Contains(err.Error(), "is not fairclaim") && !strings.Contains(err.Error(), "not fairclaim's") {
				t.Errorf("golang-migrate: %v", err)
			}
		})
	}
}

// TestMigrateEmptySchema: a schema that somebody has made in advance is taken.
func TestMigrateEmptySchema(t *testing.T) {
	t.Parallel()
	db := emptyDatabase(t)
	role := db.Role(t) // may create nothing in the database
	admin := db.Admin(t)
	name := pgx.Identifier{role.Name}.Sanitize()
	_, err := migrations.Up(t.Context(), role.DSN, migrations.Options{})
	if err == nil || !strings.Contains(err.Error(), "create the schema") {
		t.Errorf("Up without the right to create a schema = %v", err)
	}
	execScript(t, admin, fmt.Sprintf(`create schema outbox authorization %s; alter default privileges for role %[1]s in schema outbox grant select on tables to %[1]s`, name))
	mustUp(t, role.DSN, migrations.Options{})
	wantVersion(t, role.DSN, latestVersion(t))
}

// TestMigrateInDoubt: what no crash explains is for a person to look at.
func TestMigrateInDoubt(t *testing.T) {
	t.Parallel()
	latest := latestVersion(t)
	for name, tc := range map[string]struct {
		change  string
		want    error
		version uint
	}{
		"newer schema":            {fmt.Sprintf("insert into outbox.migration (version) values (%d); update outbox.schema_migrations set version = %[1]d", latest+1), migrations.ErrNewerSchema, latest + 1},
		"newer schema, dirty":     {fmt.Sprintf("insert into outbox.migration (version) values (%d); update outbox.schema_migrations set version = %[1]d, dirty = true", latest+1), migrations.ErrNewerSchema, latest + 1},
		"forced back":             {"update outbox.schema_migrations set version = 1", migrations.ErrInconsistent, latest},
		"forced ahead":            {fmt.Sprintf("update outbox.schema_migrations set version = %d", latest+1), migrations.ErrInconsistent, latest},
		"version gone":            {"delete from outbox.schema_migrations", migrations.ErrInconsistent, latest},
		"dirty from far away":     {fmt.Sprintf("update outbox.schema_migrations set version = %d, dirty = true", latest+7), migrations.ErrInconsistent, latest},
		"ledger with a hole":      {"delete from outbox.migration where version = 1", migrations.ErrInconsistent, latest},
		"ledger with a foreigner": {"insert into outbox.migration (version) values (0)", migrations.ErrInconsistent, latest},
		"ledger empty":            {"delete from outbox.migration", migrations.ErrInconsistent, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pg.New(t)
			conn := db.Connect(t)
			execScript(t, conn, tc.change)
			row := versionRow(t, conn)

			status, versionErr := migrations.Version(t.Context(), db.DSN)
			if status.Version != tc.version || status.Latest != latest {
				t.Errorf("Version = %+v, want version %d", status, tc.version)
			}
			_, upErr := migrations.Up(t.Context(), db.DSN, migrations.Options{})
			_, downErr := migrations.Down(t.Context(), db.DSN, 1, migrations.Options{})
			for _, err := range []error{versionErr, upErr, downErr} {
				if !errors.Is(err, tc.want) {
					t.Errorf("got %v, want %v", err, tc.want)
				}
			}
			if after := versionRow(t, conn); after != row {
				t.Errorf("the version table was %s and is %s", row, after)
			}
			wantSchema(t, conn, installedSchema(t))
		})
	}
}

// TestMigrateServer: a database that could not hold every text is refused.
func TestMigrateServer(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	admin := db.Admin(t)
	name := pgx.Identifier{db.Name + "_ascii"}.Sanitize()
	run(t, admin, "create database "+name+" encoding 'SQL_ASCII' locale 'C' template template0 owner "+pgx.Identifier{db.Owner}.Sanitize())
	t.Cleanup(func() {
		if _, err := admin.Exec(context.WithoutCancel(t.Context()), "drop database "+name+" with (force)"); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(db.DSN)
	if err != nil {
		t.Skip("the test server's connection string is no URL")
	}
	u.Path += "_ascii"
	_, err = migrations.Up(t.Context(), u.String(), migrations.Options{})
	if !errors.Is(err, migrations.ErrUnsupportedServer) || !strings.Contains(err.Error(), "SQL_ASCII") {
		t.Errorf("Up = %v", err)
	}
}

// TestMigrateBusy: the wait for another migrator ends, and says for whom it was.
func TestMigrateBusy(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T, db *pgtest.DB) (name string){
		"another Up": func(t *testing.T, db *pgtest.DB) string {
			ledger := db.Connect(t)
			run(t, ledger, "begin")
			run(t, ledger, "lock table outbox.migration in share mode")
			m := startMigration(t, db, func(ctx context.Context, dsn string) (migrations.Result, error) {
				return migrations.Up(ctx, dsn, migrations.Options{LockTimeout: patience()})
			})
			m.waits(t, db.Admin(t))
			return m.name
		},
		"golang-migrate": func(t *testing.T, db *pgtest.DB) string {
			plain, err := database.Open(plainURL(t, db.DSN, "application_name", "golang-migrate"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { plain.Close() })
			if err := plain.Lock(); err != nil {
				t.Fatal(err)
			}
			return "golang-migrate"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := emptyDatabase(t)
			mustUp(t, db.DSN, migrations.Options{To: latestVersion(t) - 1})
			other := start(t, db)
			_, err := migrations.Up(t.Context(), db.DSN, migrations.Options{Wait: 300 * time.Millisecond})
			if !errors.Is(err, migrations.ErrBusy) || !strings.Contains(err.Error(), "waited 300ms") || !strings.Contains(err.Error(), other) {
				t.Errorf("Up = %v, want ErrBusy with the name %q", err, other)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if _, err := migrations.Up(ctx, db.DSN, migrations.Options{}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Up with a deadline = %v", err)
			}
		})
	}
}
