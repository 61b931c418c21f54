package integration

import (
	"bytes"
	"context"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/fairclaim/fairclaim/integration/pgtest"
	"github.com/fairclaim/fairclaim/sql/migrations"
)

// emptyDatabase is a database without the schema.
func emptyDatabase(t *testing.T) *pgtest.DB {
	t.Helper()
	db := pg.New(t)
	if _, err := db.Pool.Exec(t.Context(), "drop schema outbox cascade"); err != nil {
		t.Fatalf("empty the database: %v", err)
	}
	return db
}

// installedSchema is what a migrated database looks like.
func installedSchema(t *testing.T) string {
	t.Helper()
	return describeSchema(t, pg.New(t).Connect(t), true)
}

func latestVersion(t *testing.T) uint {
	t.Helper()
	all, err := migrations.List()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 2 {
		t.Fatalf("%d migrations: these tests need two", len(all))
	}
	return all[len(all)-1].Version
}

// wantVersion fails unless the database is at the version, and not dirty.
func wantVersion(t *testing.T, dsn string, version uint) {
	t.Helper()
	got, err := migrations.Version(t.Context(), dsn)
	want := migrations.Status{Version: version, Latest: latestVersion(t), Installed: version > 0}
	if err != nil || got != want {
		t.Errorf("Version = %+v, %v; want %+v", got, err, want)
	}
}

func wantSchema(t *testing.T, conn *pgx.Conn, want string) {
	t.Helper()
	if diff := lineDiff(want, describeSchema(t, conn, true)); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
}

func mustUp(t *testing.T, dsn string, opts migrations.Options) migrations.Result {
	t.Helper()
	result, err := migrations.Up(t.Context(), dsn, opts)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func TestMigrateUpTwice(t *testing.T) {
	t.Parallel()
	db := emptyDatabase(t)
	latest := latestVersion(t)
	wantVersion(t, db.DSN, 0)

	var log bytes.Buffer
	result := mustUp(t, db.DSN, migrations.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if result.From != 0 || result.To != latest || len(result.Ran) != int(latest) || result.Repaired {
		t.Errorf("first Up = %+v", result)
	}
	if lines := strings.Count(log.String(), "\n"); lines != int(latest) || !strings.Contains(log.String(), "migration=000001_outbox") {
		t.Errorf("want one log line a migration, got:\n%s", log.String())
	}
	wantVersion(t, db.DSN, latest)

	result = mustUp(t, db.DSN, migrations.Options{})
	if result.From != latest || result.To != latest || len(result.Ran) != 0 || result.Repaired {
		t.Errorf("second Up = %+v", result)
	}
	if _, err := migrations.Up(t.Context(), db.DSN, migrations.Options{To: 1}); err == nil {
		t.Error("Up to a version behind the schema's went well")
	}
	if _, err := migrations.Up(t.Context(), db.DSN, migrations.Options{To: latest + 1}); err == nil {
		t.Error("Up to a version that is not there went well")
	}
	if _, err := migrations.Down(t.Context(), db.DSN, 0, migrations.Options{}); err == nil {
		t.Error("Down by 0 steps went well")
	}
	wantVersion(t, db.DSN, latest)
}

// TestMigrateDownToZero proves that the schema and the empty version table stay,
// and nothing else.
func TestMigrateDownToZero(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	run(t, conn, `insert into outbox.namespace (namespace, quota) values ('a', 1)`)
	result, err := migrations.Down(t.Context(), db.DSN, migrations.All, migrations.Options{})
	if err != nil || result.To != 0 || len(result.Ran) != int(latestVersion(t)) {
		t.Fatalf("Down = %+v, %v", result, err)
	}
	wantVersion(t, db.DSN, 0)
	wantSchema(t, conn, strings.TrimLeft(`
schema outbox

table schema_migrations
  column version bigint not null
  column dirty boolean not null
  constraint schema_migrations_pkey PRIMARY KEY (version)
  CREATE UNIQUE INDEX schema_migrations_pkey ON outbox.schema_migrations USING btree (version)
`, "\n"))

	result, err = migrations.Down(t.Context(), db.DSN, migrations.All, migrations.Options{})
	if err != nil || len(result.Ran) != 0 {
		t.Errorf("Down from nothing = %+v, %v", result, err)
	}
	mustUp(t, db.DSN, migrations.Options{})
	wantSchema(t, conn, installedSchema(t))
}

// TestMigrateTenAtOnce: one does the work, the others find nothing to do.
func TestMigrateTenAtOnce(t *testing.T) {
	t.Parallel()
	db := emptyDatabase(t)
	const migrators = 10
	results := make([]migrations.Result, migrators)
	errs := make([]error, migrators)
	var all sync.WaitGroup
	for i := range migrators {
		all.Go(func() { results[i], errs[i] = migrations.Up(t.Context(), db.DSN, migrations.Options{}) })
	}
	all.Wait()
	worked := 0
	for i := range migrators {
		if errs[i] != nil || results[i].To != latestVersion(t) {
			t.Errorf("migrator %d: %+v, %v", i, results[i], errs[i])
		}
		if len(results[i].Ran) > 0 {
			worked++
		}
	}
	if worked != 1 {
		t.Errorf("%d migrators worked, want 1", worked)
	}
	wantSchema(t, db.Connect(t), installedSchema(t))
}

// TestMigrateSearchPath proves that the version table has one place, whatever the
// role is called, its search_path is, and stands in it.
func TestMigrateSearchPath(t *testing.T) {
	t.Parallel()
	want := installedSchema(t)
	for name, settings := range map[string][]string{
		"empty":           {"set search_path = ''"},
		"another schema":  {"set search_path = other, public"},
		"outbox itself":   {"set search_path = outbox"},
		"hostile session": {"set search_path = other", "set standard_conforming_strings = off", "set default_transaction_isolation = 'serializable'", "set client_encoding = 'LATIN1'", "set intervalstyle = 'sql_standard'", "set statement_timeout = '10s'"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := emptyDatabase(t)
			role := db.Role(t, settings...)
			admin := db.Admin(t)
			giveDatabase(t, admin, db.Name, role.Name)
			checkSearchPath(t, admin, role.DSN, want)
		})
	}
	t.Run("role outbox", func(t *testing.T) {
		t.Parallel()
		db := emptyDatabase(t)
		admin := db.Admin(t)
		run(t, admin, `create role outbox login password 'p'`)
		t.Cleanup(func() {
			ctx := context.WithoutCancel(t.Context())
			for _, statement := range []string{`reassign owned by outbox to current_user`, `drop owned by outbox`, `drop role outbox`} {
				if _, err := admin.Exec(ctx, statement); err != nil {
					t.Errorf("%s: %v", statement, err)
				}
			}
		})
		giveDatabase(t, admin, db.Name, "outbox")
		dsn, err := url.Parse(db.DSN)
		if err != nil {
			t.Skipf("the test server's connection string is no URL")
		}
		dsn.User = url.UserPassword("outbox", "p")
		checkSearchPath(t, admin, dsn.String(), want)
	})
}

func giveDatabase(t *testing.T, admin *pgx.Conn, database, role string) {
	t.Helper()
	run(t, admin, "alter database "+pgx.Identifier{database}.Sanitize()+" owner to "+pgx.Identifier{role}.Sanitize())
}

// has its version table too.
func checkSearchPath(t *testing.T, admin *pgx.Conn, dsn, want string) {
	t.Helper()
	execScript(t, admin, `
		create schema other;
		create table other.schema_migrations (version bigint not null primary key, dirty boolean not null);
		insert into other.schema_migrations values (37, true);
		grant all on schema other to public; grant all on other.schema_migrations to public;
		create table public.schema_migrations (version bigint not null primary key, dirty boolean not null);
		insert into public.schema_migrations values (38, true);
		grant all on public.schema_migrations to public`)
	mustUp(t, dsn, migrations.Options{})
	wantSchema(t, admin, want)
	wantVersion(t, dsn, latestVersion(t))
	if _, err := migrations.Down(t.Context(), dsn, migrations.All, migrations.Options{}); err != nil {
		t.Error(err)
	}
	wantVersion(t, dsn, 0)
	mustUp(t, dsn, migrations.Options{})

	others := one[string](t, admin, `
		select format('%s %s, %s %s, %s tables', o.version, o.dirty, p.version, p.dirty,
		              (select count(*) from pg_class as c where c.relkind = 'r' and c.relnamespace in ('other'::regnamespace, 'public'::regnamespace)))
		from other.schema_migrations as o, public.schema_migrations as p`)
	if others != "37 t, 38 t, 2 tables" {
		t.Errorf("the other schemas hold %s", others)
	}
}

// TestMigrateNoPassword: no error shows a password, however wrong the string is.
func TestMigrateNoPassword(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience())
	defer cancel()
	live, err := url.Parse(pg.New(t).DSN)
	if err != nil {
		t.Skip("the test server's connection string is no URL")
	}
	live.User = url.UserPassword(live.User.Username(), "hunter2")
	for _, dsn := range []string{
		live.String(),
		"postgres://u:hunter2@127.0.0.1:1/d",
		"postgres://u:hunter2@127.0.0.1:port/d",
		"postgres://u:hunter2#@127.0.0.1/d",
		"postgres://u:hunter2%zz@127.0.0.1/d",
		"postgres://u:x:hunter2@h/d?sslmode=wrong",
		"host=127.0.0.1 port=1 password=hunter2",
		"host=127.0.0.1 port=wrong password='hunter2'",
		"password = hunter2 =",
		"host=h sslmode=verify-ca sslrootcert='/no/such/file password=hunter2'",
		"u:hunter2@localhost/d",
		"postgres://u:hunter2@h/d?sslrootcert=/no/such/file&sslmode=verify-ca",
	} {
		_, upErr := migrations.Up(ctx, dsn, migrations.Options{})
		_, versionErr := migrations.Version(ctx, dsn)
		for _, err := range []error{upErr, versionErr} {
			if err == nil && dsn != live.String() { // a server of one's own may trust everybody
				t.Errorf("%s: no error", dsn)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: %v", dsn, err)
			}
		}
	}
}

// TestMigrateEnvironment: what the string leaves out comes from PG* variables.
func TestMigrateEnvironment(t *testing.T) {
	db := pg.New(t)
	cfg, err := pgx.ParseConfig(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(db.DSN)
	if err != nil {
		t.Skip("the test server's connection string is no URL")
	}
	t.Setenv("PGHOST", cfg.Host)
	t.Setenv("PGPORT", u.Port())
	t.Setenv("PGUSER", cfg.User)
	t.Setenv("PGPASSWORD", cfg.Password)
	t.Setenv("PGDATABASE", cfg.Database)
	wantVersion(t, "", latestVersion(t))
	wantVersion(t, "application_name='keyword form'", latestVersion(t))
}

// TestMigrateLeavesNothing: no goroutine and no session outlives a run.
func TestMigrateLeavesNothing(t *testing.T) {
	db := emptyDatabase(t)
	conn := db.Connect(t)
	sessions := `select count(*) = 1 from pg_stat_activity as a where a.datname = current_database() and a.application_name <> ''`
	run(t, conn, "set application_name = 'the test'")
	db.Pool.Close()
	before := goleak.IgnoreCurrent()
	mustUp(t, db.DSN, migrations.Options{})
	if _, err := migrations.Up(t.Context(), db.DSN, migrations.Options{To: 1}); err == nil {
		t.Error("Up to a version behind the schema's went well")
	}
	if _, err := migrations.Down(t.Context(), db.DSN, 1, migrations.Options{}); err != nil {
		t.Error(err)
	}
	wantVersion(t, db.DSN, latestVersion(t)-1)
	goleak.VerifyNone(t, before)
	await(t, conn, sessions)
}
