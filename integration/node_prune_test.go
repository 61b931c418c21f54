package integration

import (
	"testing"
	"time"

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
