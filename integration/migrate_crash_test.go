package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/integration/pgtest"
	"github.com/fairclaim/fairclaim/sql/migrations"
)

// migration is a run of the migrator in the background.
type migration struct {
	name string // its application_name
	done chan struct{}
	res  migrations.Result
	err  error
}

// startMigration runs f in the background, with an application_name to find its
// session by. It has ended when the test ends.
func startMigration(t *testing.T, db *pgtest.DB, f func(ctx context.Context, dsn string) (migrations.Result, error)) *migration {
	t.Helper()
	m := &migration{name: "migrator of " + t.Name(), done: make(chan struct{})}
	m.name = m.name[max(0, len(m.name)-60):]
	cfg, err := pgx.ParseConfig(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	dsn := fmt.Sprintf("host='%s' port=%d user='%s' password='%s' dbname='%s' application_name='%s'",
		cfg.Host, cfg.Port, cfg.User, cfg.Password, cfg.Database, m.name)
	ctx, cancel := context.WithTimeout(t.Context(), patience())
	go func() {
		defer close(m.done)
		m.res, m.err = f(ctx, dsn)
	}()
	t.Cleanup(func() { cancel(); <-m.done })
	return m
}

// waits returns once the migrator waits for a lock.
func (m *migration) waits(t *testing.T, admin *pgx.Conn) {
	t.Helper()
	await(t, admin, `select exists (select from pg_stat_activity as a
		join pg_locks as l on l.pid = a.pid and not l.granted where a.application_name = $1)`, m.name)
}

// kill ends the migrator's session in the server, which is what it looks like to
// the database when the process dies.
func (m *migration) kill(t *testing.T, admin *pgx.Conn) {
	t.Helper()
	if !one[bool](t, admin, `select pg_terminate_backend((select a.pid from pg_stat_activity as a where a.application_name = $1), 10000)`, m.name) {
		t.Fatal("the migrator's session did not end")
	}
	<-m.done
	if m.err == nil {
		t.Fatal("the migrator was killed and reports no error")
	}
}

// versionRow is what outbox.schema_migrations holds.
func versionRow(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	return one[string](t, conn, `select coalesce((select format('%s %s', m.version, case when m.dirty then 'dirty' else 'clean' end)
		from outbox.schema_migrations as m), 'none')`)
}

// TestMigrateCrash kills the migrator before and after the transaction of a
// migration commits. Both leave the version dirty, only the ledger tells them
// apart, and the next run, in either direction, goes on from what stands.
func TestMigrateCrash(t *testing.T) {
	t.Parallel()
	latest := int(latestVersion(t))
	want := installedSchema(t)
	up := func(ctx context.Context, dsn string) (migrations.Result, error) {
		return migrations.Up(ctx, dsn, migrations.Options{LockTimeout: patience()})
	}
	down := func(ctx context.Context, dsn string) (migrations.Result, error) {
		return migrations.Down(ctx, dsn, 1, migrations.Options{LockTimeout: patience()})
	}
	for name, tc := range map[string]struct {
		from   int // the version that stands at first
		f      func(context.Context, string) (migrations.Result, error)
		after  bool   // killed after the commit, else before
		row    string // what the crash leaves in the version table
		stands int    // the version that really stands then
	}{
		"up, before":           {from: latest - 1, f: up, row: fmt.Sprint(latest, " dirty"), stands: latest - 1},
		"up, after":            {from: latest - 1, f: up, after: true, row: fmt.Sprint(latest, " dirty"), stands: latest},
		"down, before":         {from: latest, f: down, row: fmt.Sprint(latest-1, " dirty"), stands: latest},
		"down, after":          {from: latest, f: down, after: true, row: fmt.Sprint(latest-1, " dirty"), stands: latest - 1},
		"down to zero, before": {from: 1, f: down, row: "-1 dirty", stands: 1},
		"down to zero, after":  {from: 1, f: down, after: true, row: "-1 dirty", stands: 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := emptyDatabase(t)
			mustUp(t, db.DSN, migrations.Options{To: uint(tc.from)})
			admin := db.Admin(t)
			crash(t, db, admin, tc.f, tc.after)
			if row := versionRow(t, admin); row != tc.row {
				t.Fatalf("the crash left %q in the version table, want %q", row, tc.row)
			}
			status, err := migrations.Version(t.Context(), db.DSN)
			if err != nil || !status.Dirty || int(status.Version) != tc.stands {
				t.Errorf("Version = %+v, %v; want %d, dirty", status, err, tc.stands)
			}

			result := mustUp(t, db.DSN, migrations.Options{})
			if !result.Repaired || int(result.From) != tc.stands || int(result.To) != latest || len(result.Ran) != latest-tc.stands {
				t.Errorf("Up after the crash = %+v, want it to go on from %d", result, tc.stands)
			}
			wantVersion(t, db.DSN, uint(latest))
			wantSchema(t, admin, want)
		})
	}
}

// crash runs a migration to the point before or after its commit, and kills it.
func crash(t *testing.T, db *pgtest.DB, admin *pgx.Conn, f func(context.Context, string) (migrations.Result, error), after bool) {
	t.Helper()
	ledger, version := db.Connect(t), db.Connect(t)
	// Its row of the ledger has to wait: nothing is committed yet.
	run(t, ledger, "begin")
	run(t, ledger, "lock table outbox.migration in share mode")
	m := startMigration(t, db, f)
	m.waits(t, admin)
	if after {
		// It may commit, but cannot mark the version clean.
		run(t, version, "begin")
		run(t, version, "lock table outbox.schema_migrations in access share mode")
		run(t, ledger, "rollback")
		await(t, admin, `select exists (select from pg_locks as l where l.relation = 'outbox.schema_migrations'::regclass and not l.granted)`)
	}
	m.kill(t, admin)
	run(t, ledger, "rollback")
	run(t, version, "rollback")
}

// TestMigrateCrashFirst: the first migration has no ledger before it commits.
func TestMigrateCrashFirst(t *testing.T) {
	t.Parallel()
	db := emptyDatabase(t)
	admin := db.Admin(t)
	execScript(t, admin, `set role `+pgx.Identifier{db.Owner}.Sanitize()+`; create schema outbox;
		create table outbox.schema_migrations (version bigint not null primary key, dirty boolean not null);
		insert into outbox.schema_migrations values (1, true); reset role`)
	result := mustUp(t, db.DSN, migrations.Options{})
	if !result.Repaired || result.From != 0 || len(result.Ran) != int(latestVersion(t)) {
		t.Errorf("Up = %+v", result)
	}
	wantSchema(t, admin, installedSchema(t))
}

// TestMigrateBehindIdleTransaction: a migration behind a session that holds a lock
// gives up, says who that is, and leaves nothing to repair.
func TestMigrateBehindIdleTransaction(t *testing.T) {
	t.Parallel()
	latest := latestVersion(t)
	for name, tc := range map[string]struct {
		lock  string // what the idle session holds
		dirty bool
	}{
		"before the migration":     {lock: "outbox.schema_migrations"},
		"inside of the migration":  {lock: "outbox.migration"},
		"at the repair before all": {lock: "outbox.schema_migrations", dirty: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := emptyDatabase(t)
			mustUp(t, db.DSN, migrations.Options{To: latest - 1})
			idle := db.Connect(t, pgtest.Param("application_name", "somebody's psql"))
			run(t, idle, "update outbox.schema_migrations set dirty = $1", tc.dirty)
			run(t, idle, "begin")
			run(t, idle, "lock table "+tc.lock+" in share mode")

			_, err := migrations.Up(t.Context(), db.DSN, migrations.Options{LockTimeout: 200 * time.Millisecond})
			if !errors.Is(err, migrations.ErrLockTimeout) {
				t.Fatalf("Up = %v, want ErrLockTimeout", err)
			}
			for _, part := range []string{"after 200ms", fmt.Sprintf("pid %d", idle.PgConn().PID()), "'somebody''s psql'", "idle in transaction since"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%v\nsays nothing of %q", err, part)
				}
			}
			status, err := migrations.Version(t.Context(), db.DSN)
			if err != nil || status.Version != latest-1 || status.Dirty != tc.dirty {
				t.Errorf("Version = %+v, %v; want %d, dirty %t", status, err, latest-1, tc.dirty)
			}

			run(t, idle, "rollback")
			if result := mustUp(t, db.DSN, migrations.Options{}); result.Repaired != tc.dirty || len(result.Ran) != 1 {
				t.Errorf("Up when the lock was free = %+v", result)
			}
		})
	}
}

// TestMigrateFails: a migration that fails is rolled back, the ones before it
// stand, and the version is not dirty.
func TestMigrateFails(t *testing.T) {
	t.Parallel()
	latest := latestVersion(t)
	db := emptyDatabase(t)
	conn := db.Connect(t)
	mustUp(t, db.DSN, migrations.Options{To: latest - 1})
	run(t, conn, fmt.Sprintf("alter table outbox.migration add constraint broken check (version < %d)", latest))
	before := describeSchema(t, conn, true)

	result, err := migrations.Up(t.Context(), db.DSN, migrations.Options{})
	if err == nil || len(result.Ran) != 0 || result.To != latest-1 {
		t.Fatalf("Up = %+v, %v", result, err)
	}
	if len(err.Error()) > 600 || !strings.Contains(err.Error(), `violates check constraint "broken"`) {
		t.Errorf("the error is not short, or does not say why: %v", err)
	}
	wantSchema(t, conn, before)
	wantVersion(t, db.DSN, latest-1)
}

// TestMigrateCancelled: the end of the context rolls back and leaves nothing dirty.
func TestMigrateCancelled(t *testing.T) {
	t.Parallel()
	latest := latestVersion(t)
	for name, end := range map[string]func(context.Context) (context.Context, context.CancelFunc, error){
		"cancel": func(ctx context.Context) (context.Context, context.CancelFunc, error) {
			ctx, cancel := context.WithCancel(ctx)
			return ctx, cancel, context.Canceled
		},
		"deadline": func(ctx context.Context) (context.Context, context.CancelFunc, error) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			return ctx, cancel, context.DeadlineExceeded
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := emptyDatabase(t)
			admin := db.Admin(t)
			mustUp(t, db.DSN, migrations.Options{To: latest - 1})
			ledger := db.Connect(t)
			run(t, ledger, "begin")
			run(t, ledger, "lock table outbox.migration in share mode")

			ctx, cancel, want := end(t.Context())
			defer cancel()
			m := startMigration(t, db, func(_ context.Context, dsn string) (migrations.Result, error) {
				return migrations.Up(ctx, dsn, migrations.Options{LockTimeout: patience()})
			})
			if want == context.Canceled {
				m.waits(t, admin)
				cancel()
			}
			<-m.done
			if !errors.Is(m.err, want) {
				t.Errorf("Up = %+v, %v; want %v", m.res, m.err, want)
			}
			wantVersion(t, db.DSN, latest-1)
			run(t, ledger, "rollback")
			if result := mustUp(t, db.DSN, migrations.Options{}); result.Repaired || len(result.Ran) != 1 {
				t.Errorf("Up after that = %+v", result)
			}
		})
	}
}
