package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// INV-11: a prune that is left open makes no claim wait: that of a node whose walk it
// deletes is empty.
func TestPruneMakesNoClaimWait(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn, pruner := db.Connect(t), db.Connect(t)
	for _, node := range []string{"old", "new"} {
		put(t, conn, "n", "q", node)
		claimOne(t, conn, node)
	}
	run(t, conn, "update outbox.walk set claimed_at = claimed_at - interval '2 h' where node = 'old'")
	put(t, conn, "n", "q", "k")
	tx := begin(t, pruner)
	run(t, tx, "select outbox.prune()")
	withoutWaiting(t, conn)
	if got := claim(t, conn, "old", 10); len(got) != 0 {
		t.Errorf("the node whose walk is being pruned claimed %d messages, want none", len(got))
	}
	if got := claim(t, conn, "new", 10); len(got) != 1 {
		t.Errorf("another node claimed %d, want 1", len(got))
	}
	commit(t, tx)
	if n := one[int](t, conn, "select count(*) from outbox.walk where node = 'old'"); n != 0 {
		t.Error("the walk of the node that is gone still stands")
	}
}

// TestPruneDeadNodes: nodes that never left do not pile up.
func TestPruneDeadNodes(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	run(t, conn, "select outbox.heartbeat(n, '{}') from unnest('{dead,silent,live}'::text[]) as n")
	run(t, conn, "update outbox.node set heartbeat_at = heartbeat_at - case node when 'dead' then interval '2 days' when 'silent' then '1 h' else '0' end")
	run(t, conn, "select outbox.prune()")
	if got := list[string](t, conn, "select node from outbox.node order by node"); len(got) != 2 || got[0] != "live" || got[1] != "silent" {
		t.Errorf("the nodes are %q, want live and silent", got)
	}
}

// TestPruneByWorkers: a worker prunes what has outlived its retention, and no dead letter.
func TestPruneByWorkers(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	worker := db.Role(t)
	run(t, db.Pool, "select outbox.grant_worker($1)", worker.Name)
	conn := db.Connect(t, pgtest.As(worker))
	run(t, conn, "select outbox.prune(null, 10)")
	run(t, conn, "select outbox.prune('30 days', 10)")
	for _, call := range []string{"prune(null, 10, true)", "prune('0', 10)"} {
		_, err := conn.Exec(t.Context(), "select outbox."+call)
		wantError(t, err, "42501", "only operators")
	}
}

// TestPruneBySetRole: an operator is who may act as one, by his own name or by the role
// that he has set, and who has set a lesser role has laid his rights down.
func TestPruneBySetRole(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	operators, worker, person, lead := db.Role(t), db.Role(t), db.Role(t), db.Role(t)
	run(t, db.Pool, "select outbox.grant_operator($1), outbox.grant_worker($2), outbox.grant_operator($3)", operators.Name, worker.Name, lead.Name)
	admin := db.Admin(t)
	run(t, admin, "alter role "+person.Name+" noinherit")
	run(t, admin, "grant "+operators.Name+" to "+person.Name)
	run(t, admin, "grant "+worker.Name+" to "+lead.Name)

	conn := db.Connect(t, pgtest.As(person))
	_, err := conn.Exec(t.Context(), "select outbox.prune('0', 10)")
	wantError(t, err, "42501")
	run(t, conn, "set role "+operators.Name)
	run(t, conn, "select outbox.prune('0', 10, true)")

	conn = db.Connect(t, pgtest.As(lead))
	run(t, conn, "select outbox.prune('0', 10, true)")
	run(t, conn, "set role "+worker.Name)
	_, err = conn.Exec(t.Context(), "select outbox.prune('0', 10)")
	wantError(t, err, "42501", "only operators")
	run(t, conn, "select outbox.prune()")
	run(t, conn, "reset role")
	run(t, conn, "select outbox.prune('0', 10, true)")
}

// TestPruneGoneRoutes: for a node that is gone, prune reads that node's routes and not all
// of them (INV-14).
func TestPruneGoneRoutes(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	planSettle(t, conn)
	pruneNodes(t, conn, "gone", 5, 10, "2 h")
	pruneNodes(t, conn, "new", 1, 10, "0")
	few := planBuffers(t, conn, "select outbox.prune()")
	pruneNodes(t, conn, "live", 100, 200, "0")
	if many := planBuffers(t, conn, "select outbox.prune()"); many > few+few/2+50 {
		t.Errorf("INV-14: %d buffers beside one other node, %d beside 100 more with 200 routes each", few, many)
	}
}

// TestPruneKeptRoutes: nodes that are gone and stay, because they have the newest route of a
// namespace, are not in the way of others that can go.
func TestPruneKeptRoutes(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	pruneNodes(t, conn, "kept", 120, 1, "3 h")
	run(t, conn, "update outbox.route set namespace = node")
	pruneNodes(t, conn, "gone", 30, 0, "2 h")
	pruneNodes(t, conn, "live", 1, 1, "0")
	for range 20 { // each time, a node goes with a chance of two in three
		run(t, conn, "select outbox.prune()")
	}
	if got := list[string](t, conn, "select distinct left(node, 4) from outbox.walk order by 1"); len(got) != 2 || got[0] != "kept" || got[1] != "live" {
		t.Errorf("the nodes with a walk are %q, want kept and live", got)
	}
	if n := one[int](t, conn, "select count(*) from outbox.route"); n != 121 {
		t.Errorf("%d routes are left, want 121", n)
	}
}

// pruneNodes makes nodes with routes that claimed last so long ago.
func pruneNodes(t *testing.T, conn *pgx.Conn, name string, nodes, routes int, ago string) {
	t.Helper()
	run(t, conn, `insert into outbox.walk (node, namespace, round, claimed_at, claimed)
		select $1 || n, 'n', 1, now() - $3::text::interval, 1 from generate_series(1, $2::int) as n`, name, nodes, ago)
	run(t, conn, `insert into outbox.route (node, namespace, task_queue, served_at)
		select $1 || n, 'n' || r, 'q', now() - $4::text::interval from generate_series(1, $2::int) as n, generate_series(1, $3::int) as r`, name, nodes, routes, ago)
}

// TestPrune: done and cancelled messages older than the retention go, failed ones
// only when asked, with payloads and failures; keys are free again (INV-2).
func TestPrune(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	fill := func() {
		for i, how := range []string{"complete", "cancel", "fail"} {
			for age := range 3 {
				id := put(t, conn, "n", "q", fmt.Sprint(how, age))
				row := claimOne(t, conn, "n1")
				if how == "cancel" {
					run(t, conn, "select outbox.cancel(array[$1])", row.Key)
				} else {
					settle(t, conn, how, id, row.Token)
				}
				run(t, conn, "update outbox.settled set settled_at = clock_timestamp() - make_interval(days => $2) where id = $1", id, age*5+i)
			}
		}
	}
	keys := func() string {
		return strings.Join(list[string](t, conn, "select dispatch_key from outbox.messages order by 1"), " ")
	}
	fill()
	put(t, conn, "n", "q", "pending")
	for _, c := range []struct {
		call string
		gone int
		left string
	}{
		{"prune()", 2, "cancel0 cancel1 complete0 complete1 fail0 fail1 fail2 pending"},
		{"prune('1000000 years')", 0, "cancel0 cancel1 complete0 complete1 fail0 fail1 fail2 pending"},
		{"prune('3 days', 1)", 1, "cancel0 cancel1 complete0 fail0 fail1 fail2 pending"},
		{"prune('3 days', 1)", 1, "cancel0 complete0 fail0 fail1 fail2 pending"},
		{"prune('3 days', 1)", 0, "cancel0 complete0 fail0 fail1 fail2 pending"},
		{"prune('3 days', failed => true)", 2, "cancel0 complete0 fail0 pending"},
		{"prune('0', failed => true)", 3, "pending"},
	} {
		if got := one[int](t, conn, "select outbox."+c.call); got != c.gone {
			t.Errorf("%s deleted %d, want %d", c.call, got, c.gone)
		}
		if got := keys(); got != c.left {
			t.Errorf("after %s there are %s, want %s", c.call, got, c.left)
		}
	}
	if got := one[int](t, conn, "select (select count(*) from outbox.failure) + (select count(*) from outbox.settled)"); got != 0 {
		t.Errorf("%d rows of pruned messages stayed", got)
	}
	run(t, conn, "delete from outbox.pending")
	fill() // the keys are free
}
