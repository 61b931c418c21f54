package integration

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// badServer is a trouble of PostgreSQL; the nodes stay, and go on by themselves.
type badServer struct {
	own     bool                          // a server of its own
	prepare func(t *testing.T, b *badDay) // nil: nothing
	trouble func(t *testing.T, b *badDay, server *pgtest.Server)
	twice   int      // most messages that may be delivered twice
	logged  []string // what a node says meanwhile
}

func badServers() map[string]badServer {
	const failed, again = "the database failed a call", "the database answers again"
	return map[string]badServer{
		"killed": {own: true, twice: 100, logged: []string{failed, again}, trouble: func(t *testing.T, _ *badDay, server *pgtest.Server) {
			for _, down := range []time.Duration{badTime(t), 0} {
				if err := server.Kill(t.Context()); errors.Is(err, errors.ErrUnsupported) {
					t.Skip("this kind of server cannot be killed")
				} else if err != nil {
					t.Fatal(err)
				}
				<-time.After(down)
				if err := server.Restart(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}},
		"sessions terminated in a loop": {twice: 100, logged: []string{failed}, trouble: func(t *testing.T, b *badDay, _ *pgtest.Server) {
			admin := b.db.Admin(t)
			for end := time.Now().Add(badTime(t)); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
				terminateAll(t, admin)
			}
		}},
		// As a fail-over to a standby that nobody has promoted yet.
		"read only": {twice: 100, logged: []string{failed, "read-only", again}, trouble: func(t *testing.T, b *badDay, _ *pgtest.Server) {
			admin := b.db.Admin(t, pgtest.Param("default_transaction_read_only", "off"))
			run(t, admin, fmt.Sprintf("alter database %s set default_transaction_read_only = on", b.db.Name))
			terminateAll(t, admin)
			<-time.After(badTime(t))
			run(t, admin, fmt.Sprintf("alter database %s reset default_transaction_read_only", b.db.Name))
			terminateAll(t, admin)
		}},
		"disk full for claims":   fullDisk(0, "insert on outbox.claimed"),
		"disk full for settles":  fullDisk(0, "insert on outbox.settled"),
		"disk full for enqueues": fullDisk(0, "insert on outbox.message"),
		"disk full": fullDisk(100, "insert on outbox.message", "insert on outbox.pending", "insert or update on outbox.claimed",
			"insert on outbox.settled", "insert or update on outbox.node", "insert or update on outbox.walk"),
	}
}

// fullDisk refuses writes as PostgreSQL does when the disk is full.
func fullDisk(twice int, events ...string) badServer {
	return badServer{
		twice: twice,
		prepare: func(t *testing.T, b *badDay) {
			run(t, b.db.Pool, `create table public.disk_full ();
create function public.disk_full() returns trigger language plpgsql security definer as $$
begin
  if exists (select from public.disk_full) then
    raise exception 'could not extend file: No space left on device' using errcode = 'disk_full';
  end if;
  return null;
end $$`)
			for i, event := range events {
				run(t, b.db.Pool, fmt.Sprintf("create trigger full_%d before %s for each statement execute function public.disk_full()", i, event))
			}
		},
		trouble: func(t *testing.T, b *badDay, _ *pgtest.Server) {
			run(t, b.db.Pool, "insert into public.disk_full default values")
			<-time.After(badTime(t))
			run(t, b.db.Pool, "delete from public.disk_full")
		},
	}
}

func terminateAll(t *testing.T, admin querier) {
	t.Helper()
	run(t, admin, "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()")
}

// PostgreSQL has a bad time, longer than a lease. Nobody restarts a node: each goes on by
// itself, every message is done and was delivered (INV-2), and twice only where its settle
// was cut off. Meanwhile a node knocks now and then, and says so.
func TestServerFails(t *testing.T) {
	t.Parallel()
	for name, test := range badServers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var db *pgtest.DB
			server := pg.Server()
			if test.own {
				var cluster *pgtest.Cluster
				cluster, db = ownServer(t)
				server = cluster.Server()
			} else {
				db = pg.New(t)
			}
			b := newBadDay(t, db)
			if test.prepare != nil {
				test.prepare(t, b)
			}
			proxy := pgtest.NewProxy(t, db.DSN)
			nodes := []*sweepProcess{b.node("one", proxy.DSN(db.DSN)), b.node("two", db.DSN)}
			stop := b.feed()
			eventually(t, "both work", func() bool { return b.hooks.from("one") > 20 && b.hooks.from("two") > 20 })
			before, start := proxy.Accepted(), time.Now()
			test.trouble(t, b, server)
			knocked, delivered := proxy.Accepted()-before, [2]int{b.hooks.from("one"), b.hooks.from("two")}
			over := time.Now()
			// Two for each try: the second one asks the server to cancel the call.
			most := 10 + int(10*over.Sub(start).Seconds())
			eventually(t, "both work again", func() bool {
				return b.hooks.from("one") > delivered[0]+20 && b.hooks.from("two") > delivered[1]+20
			})
			t.Logf("%d connections meanwhile; both work again after %v", knocked, time.Since(over))
			stop()
			b.settled()
			for _, n := range nodes {
				n.stop(t)
				n.quiet(t, 100, test.logged...)
			}
			if knocked > most {
				t.Errorf("a node opened %d connections, want %d at most", knocked, most)
			}
			run(t, db.Pool, "drop function if exists public.disk_full() cascade") // check() tells of triggers that run what is not the outbox's
			b.account(test.twice, over.Sub(start))
		})
	}
}
