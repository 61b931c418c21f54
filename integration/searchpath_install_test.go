package integration

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/golang-migrate/migrate/v4"

	"github.com/fairclaim/fairclaim/integration/pgtest"
	"github.com/fairclaim/fairclaim/sql/migrations"
)

// foreign are objects that a role with the right to create in public may put there, and that fit
// calls of the outbox better than PostgreSQL's own.
const foreign = `
create function public.hashtextextended(text, int) returns bigint language sql as 'select 7::bigint';
create function public.format(text, text) returns text language sql as 'select ''foreign''';
create function public.times(int, float8) returns float8 language sql as 'select 7::float8';
create operator public.* (leftarg = int, rightarg = float8, function = public.times);
`

// TestInstallBindsToPostgreSQL: whatever the installing role's search_path finds first, the
// installed functions call PostgreSQL's own, and no shard comes from somebody else's function.
func TestInstallBindsToPostgreSQL(t *testing.T) {
	t.Parallel()
	want := installedSchema(t)
	for name, install := range map[string]func(t *testing.T, db *pgtest.DB) error{
		"golang-migrate": func(t *testing.T, db *pgtest.DB) error {
			run(t, db.Connect(t), "create schema outbox")
			m, err := migrate.New("file://"+migrationsDir, plainURL(t, db.DSN))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _, _ = m.Close() })
			return m.Up()
		},
		"printed SQL": func(t *testing.T, db *pgtest.DB) error {
			var script bytes.Buffer
			if err := migrations.SQL(&script, 0, latestVersion(t)); err != nil {
				t.Fatal(err)
			}
			if _, err := db.Connect(t).PgConn().Exec(t.Context(), script.String()).ReadAll(); err != nil {
				return err
			}
			mustUp(t, db.DSN, migrations.Options{}) // makes the version table
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := emptyDatabase(t)
			execScript(t, db.Admin(t), foreign)
			if err := install(t, db); err != nil {
				t.Fatal(err)
			}
			conn := db.Connect(t)
			wantSchema(t, conn, want)
			for _, key := range strings.Split("abcdefgh", "") {
				put(t, conn, "n", "q", key)
			}
			if n := one[int](t, conn, "select count(distinct p.shard) from outbox.pending as p"); n < 2 {
				t.Errorf("8 keys are on %d shard", n)
			}
			wantSound(t, conn)
		})
	}
}

// TestInstallRefusesBoundConstraint: a constraint that the first migration bound to somebody
// else's operator is not made anew but refused, with its name and the operator's.
func TestInstallRefusesBoundConstraint(t *testing.T) {
	t.Parallel()
	db := emptyDatabase(t)
	execScript(t, db.Admin(t), `
		create function public.atleast(float8, int) returns boolean language sql as 'select true';
		create operator public.>= (leftarg = float8, rightarg = int, function = public.atleast)`)
	run(t, db.Connect(t), "create schema outbox")
	m, err := migrate.New("file://"+migrationsDir, plainURL(t, db.DSN))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = m.Close() })
	err = m.Up()
	if err == nil {
		t.Fatal("it went well")
	}
	for _, part := range []string{"table constraint config_retry_", "operator public.>=", "Migrate down"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("it does not say %q: %v", part, err)
		}
	}
}

// TestCheckBindings: check names what depends on an object of somebody else, by kind, and a
// superuser who owns the schema is advice.
func TestCheckBindings(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn, admin := db.Connect(t), db.Admin(t)
	wantSound(t, conn)
	execScript(t, admin, `
		create function public.f() returns trigger language plpgsql as 'begin return new; end';
		create function public.g() returns int language sql as 'select 1'`)
	execScript(t, conn, `
		create trigger mine after insert on outbox.message for each row execute function public.f();
		create function outbox.mine() returns int language sql begin atomic select public.g(); end;
		revoke all on function outbox.mine from public;
		create view outbox.sight as select public.g() as g;
		alter table outbox.config alter shard_count set default public.g()`)
	want := []string{
		"rights default value for outbox.config.shard_count: depends on function public.g()",
		"rights function outbox.mine(): depends on function public.g()",
		"rights rule \"_RETURN\" on outbox.sight: depends on function public.g()",
		"rights trigger mine on outbox.message: depends on function public.f()",
	}
	found, err := audit(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, v := range found {
		told = append(told, v.String())
	}
	slices.Sort(told)
	if !slices.Equal(told, want) {
		t.Errorf("check says\n%s\nwant\n%s", strings.Join(told, "\n"), strings.Join(want, "\n"))
	}
}

// TestCheckAdvice: a superuser who owns the schema is advice, which is no violation: sweep check
// prints it, and ends with 0.
func TestCheckAdvice(t *testing.T) {
	t.Parallel()
	db := emptyDatabase(t)
	owner := db.Role(t, "superuser")
	mustUp(t, owner.DSN, migrations.Options{})
	want := []string{"advice schema outbox: belongs to " + owner.Name + ", a superuser"}
	found, err := audit(t.Context(), db.Connect(t, pgtest.As(owner)))
	if err != nil || len(found) != 1 || found[0].String() != want[0] {
		t.Errorf("check says %v (%v), want %v", found, err, want)
	}
	r := sweepCall{dsn: owner.DSN, args: []string{"check"}}.do(t)
	if r.code != 0 || !strings.Contains(r.stdout, "a superuser") {
		t.Errorf("sweep check: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}

// TestCheckUnicodeForms: a namespace in two Unicode forms is two names, and check says so.
func TestCheckUnicodeForms(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	put(t, conn, "caf\u00e9", "q", "k1")
	put(t, conn, "na\u00efve", "q", "k2")
	wantSound(t, conn)
	run(t, conn, "select outbox.set_quota($1, 0)", "cafe\u0301")
	found, err := audit(t.Context(), conn)
	const want = "is 2 names that look alike, in UTF-8: 63616665cc81, 636166c3a9"
	if err != nil || len(found) != 1 || found[0].Guarantee != "advice" || found[0].Detail != want {
		t.Errorf("check says %v (%v), want advice: %s", found, err, want)
	}
}
