package integration

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/driver/node"
	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// pruneSettled writes messages that were done before their retention began.
func pruneSettled(t *testing.T, db *pgtest.DB, n int) {
	t.Helper()
	run(t, db.Pool, `
		with m as (
		  insert into outbox.message (namespace, task_queue, dispatch_key, content_type, headers, payload)
		  select 'old', 'q', 'old ' || k, 'text/plain', '{}', '' from generate_series(1, $1::int) as k
		  returning *)
		insert into outbox.settled (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
		select m.id, m.namespace, m.task_queue, 0, 'done', 1, now() - interval '30 days', 'n' from m`, n)
}

// TestSweepPruneKeepsUp: a node prunes until nothing is left that can go, without waiting
// for a tick between.
func TestSweepPruneKeepsUp(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	pruneSettled(t, db, 12_500)
	n := startNode(t, newNode(t, db, new(collector), func(c *node.Config) { c.Tick, c.PruneEvery = time.Hour, time.Hour }))
	await(t, db.Pool, "select count(*) = 0 from outbox.settled")
	n.drained(t)
}

// TestSweepOncePrunes: runs of Once do not let an outbox grow: each prunes at least as many
// messages as it settles, and some more while there are any.
func TestSweepOncePrunes(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	pruneSettled(t, db, 12_500)
	fill(t, db.Pool, "ns", "q", 5000, 1)
	if err := newNode(t, db, new(collector), func(c *node.Config) { c.Tick = time.Hour }).Once(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	const old = "select count(*) from outbox.settled where settled_by = 'n'"
	left := one[int](t, db.Pool, old)
	if left > 12_500-5000-1000 {
		t.Errorf("%d old messages are left of 12,500, after 5,000 were settled", left)
	}
	for range left/1000 + 1 { // with nothing to settle, a chunk each
		if err := newNode(t, db, new(collector)).Once(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
	if n := one[int](t, db.Pool, old); n != 0 {
		t.Errorf("%d old messages are left", n)
	}
	wantOutcomes(t, db.Pool, map[string]int{"done": 5000})
}

// A node prunes with any number of connections.
func TestPruneByFewConnections(t *testing.T) {
	t.Parallel()
	for _, connections := range []int{1, 2, 3} {
		db := pg.New(t)
		pruneSettled(t, db, 2500)
		fill(t, db.Pool, "ns", "q", 100, 1)
		s, err := node.New(rolePool(t, db, connections), node.Config{Node: "n1", Sink: new(collector), Tick: 20 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		n := startNode(t, s)
		await(t, db.Pool, "select count(*) filter (where namespace = 'ns') = 100 and count(*) = 100 from outbox.settled")
		if s := n.drained(t); s.Done != 100 || s.Lost != 0 {
			t.Errorf("%d connections: stats are %+v", connections, s)
		}
	}
}

// hangingPrune makes an outbox whose prune hangs, at a row that the transaction has locked, in a node whose calls have
// more time than the test has patience. begun waits until it hangs.
func hangingPrune(t *testing.T) (db *pgtest.DB, lock pgx.Tx, patient func(*node.Config), begun func()) {
	t.Helper()
	db = setUp(t, `select outbox.configure('{"lease": "10 hours"}')`)
	pruneSettled(t, db, 10)
	lock = begin(t, db.Connect(t))
	run(t, lock, "select from outbox.message for update")
	return db, lock, func(c *node.Config) { c.CallTimeout = time.Hour }, func() {
		t.Helper()
		await(t, db.Pool, `select count(*) = 1 from pg_stat_activity
			where wait_event_type = 'Lock' and query ~ 'outbox.prune' and datname = current_database()`)
	}
}

// While a prune hangs, the node claims, delivers and settles (INV-11); and it goes on to prune.
func TestClaimsBesidePrune(t *testing.T) {
	t.Parallel()
	db, lock, patient, begun := hangingPrune(t)
	n := startNode(t, newNode(t, db, new(collector), patient, func(c *node.Config) { c.PruneEvery = time.Millisecond }))
	begun()
	for _, ns := range []string{"a", "b", "c"} {
		fill(t, db.Pool, ns, "q", 10, 1)
		await(t, db.Pool, "select count(*) = 10 from outbox.settled where namespace = $1", ns)
	}
	if old := one[int](t, db.Pool, "select count(*) from outbox.settled where namespace = 'old'"); old != 10 {
		t.Errorf("%d old messages are there while the prune hangs, want 10", old)
	}
	commit(t, lock)
	await(t, db.Pool, "select count(*) = 0 from outbox.settled where namespace = 'old'")
	pruneSettled(t, db, 10)
	await(t, db.Pool, "select count(*) = 0 from outbox.settled where namespace = 'old'")
	n.drained(t)
}

// A prune that hangs holds up no end: neither a drain, nor one at once, nor the drain of a Once that waits for it.
func TestEndBreaksAPruneOff(t *testing.T) {
	t.Parallel()
	t.Run("drain", func(t *testing.T) {
		t.Parallel()
		db, _, patient, begun := hangingPrune(t)
		n := startNode(t, newNode(t, db, new(collector), patient))
		begun()
		n.drained(t)
		atRest(t, db)
	})
	t.Run("at once", func(t *testing.T) {
		t.Parallel()
		db, _, patient, begun := hangingPrune(t)
		n := startNode(t, newNode(t, db, new(collector), patient))
		begun()
		n.cancel(errors.New("at once"))
		if err := n.ended(t); err == nil || err.Error() != "at once" {
			t.Errorf("it ended with %v", err)
		}
		atRest(t, db)
	})
	t.Run("drain of a Once", func(t *testing.T) {
		t.Parallel()
		db, _, patient, begun := hangingPrune(t)
		fill(t, db.Pool, "ns", "q", 10, 1)
		s := newNode(t, db, new(collector), patient)
		ended := make(chan error, 1)
		go func() { ended <- s.Once(t.Context(), 0) }()
		begun()
		s.Drain()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Once: %v", err)
			}
			atRest(t, db)
		case <-time.After(patience()):
			t.Error("Once has not returned")
		}
	})
}

// atRest wants that a node which has ended leaves no call under way; pgx closes a connection whose call was broken off
// in the background.
func atRest(t *testing.T, db *pgtest.DB) {
	t.Helper()
	eventually(t, "no connection is in use", func() bool { return db.Pool.Stat().AcquiredConns() == 0 })
}
