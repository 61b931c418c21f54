package integration

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/sql/migrations"
)

// transactionPools are ways in which a pooler in transaction mode gives sessions out: in
// turn, the last one first, and always the only one.
var transactionPools = map[string][]string{
	"in turn": nil, "two in turn": {"default_pool_size = 2"}, "last first": {"server_round_robin = 0"}, "one": {"default_pool_size = 1"},
}

// Migrations are refused behind a pooler in transaction mode, before anything is set,
// locked or made: its sessions are as they were for whoever gets them next.
func TestMigrateRefusesTransactionPooler(t *testing.T) {
	t.Parallel()
	for name, options := range transactionPools {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := emptyDatabase(t)
			dsn := pooled(t, db, "exec", options...)
			before := sessionsOf(t, dsn)
			if _, err := migrations.Up(t.Context(), dsn, migrations.Options{}); !errors.Is(err, migrations.ErrPooler) {
				t.Errorf("Up: %v", err)
			}
			sweepFails(t, dsn, 1, []string{"migrate", "up"}, "pooler in transaction mode", "5432")
			if one[bool](t, db.Pool, "select to_regnamespace('outbox') is not null") {
				t.Error("the schema was made")
			}
			if _, err := migrations.Up(t.Context(), db.DSN, migrations.Options{}); err != nil {
				t.Fatal(err)
			}
			if _, err := migrations.Down(t.Context(), dsn, migrations.All, migrations.Options{}); !errors.Is(err, migrations.ErrPooler) {
				t.Errorf("Down: %v", err)
			}
			sweepFails(t, dsn, 1, []string{"migrate", "down", "--to", "0", "--yes"}, "pooler in transaction mode")
			if s, err := migrations.Version(t.Context(), dsn); err != nil || s.Version != latestVersion(t) {
				t.Errorf("Version: %+v, %v", s, err)
			}
			sweep(t, dsn, "migrate", "version")
			if after := sessionsOf(t, dsn); after != before {
				t.Errorf("the pooler's sessions have %s, before %s", after, before)
			}
			// The migrator that went past the pooler may take a moment to end.
			await(t, db.Pool, "select count(*) = 0 from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())")
		})
	}
}

// sessionsOf is what clients of a pooler find on its sessions, all of them at once.
func sessionsOf(t *testing.T, dsn string) (found string) {
	t.Helper()
	seen := map[string]bool{}
	for range 12 {
		conn, err := pgx.Connect(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		s := one[string](t, conn, "select concat_ws(' ', current_setting('search_path'), current_setting('lock_timeout'), current_setting('statement_timeout'), current_setting('client_min_messages'), current_setting('default_transaction_isolation'))")
		conn.Close(t.Context())
		if !seen[s] {
			seen[s] = true
			found += "[" + s + "]"
		}
	}
	return found
}

// It is found out too while other clients keep the pooler busy.
func TestMigrateRefusesBusyPooler(t *testing.T) {
	t.Parallel()
	db := emptyDatabase(t)
	dsn := pooled(t, db, "exec")
	var clients sync.WaitGroup
	defer clients.Wait()
	stop := make(chan struct{})
	defer close(stop)
	for range 3 {
		conn, err := pgx.Connect(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		clients.Go(func() {
			defer conn.Close(t.Context())
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := conn.Exec(t.Context(), "select 1"); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 5 {
		if _, err := migrations.Up(t.Context(), dsn, migrations.Options{}); !errors.Is(err, migrations.ErrPooler) {
			t.Errorf("Up: %v", err)
		}
	}
}

// A pooler in session mode holds a migrator's locks as the server does.
func TestMigrateBySessionPooler(t *testing.T) {
	t.Parallel()
	db := emptyDatabase(t)
	for _, options := range [][]string{{"pool_mode = session"}, {"pool_mode = session", "server_round_robin = 0"}} {
		dsn := pooled(t, db, "exec", options...)
		if r, err := migrations.Up(t.Context(), dsn, migrations.Options{}); err != nil || r.To != latestVersion(t) {
			t.Errorf("Up: %+v, %v", r, err)
		}
		sweep(t, dsn, "migrate", "down", "--to", "0", "--yes")
	}
	// Where no second session is to be had it cannot be told, and that is said.
	dsn := pooled(t, db, "exec", "pool_mode = session", "max_client_conn = 1")
	eventually(t, "the pooler's only place is free", func() bool {
		return strings.Contains(sweepFails(t, dsn, 1, []string{"migrate", "up"}, "no more connections").stderr, "could not be found out")
	})
}
