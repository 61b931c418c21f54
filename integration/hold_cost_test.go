package integration

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestHoldCost: a claim that serves the usual tenants costs a look-up a tenant more where others are held, and that
// is one buffer or little more, whether one is held or many: where the looked-up names lie in the index is chance, and
// a descent of its own for each would be two or three a tenant. Where no route of a namespace is held, or none of all,
// nothing is looked up for that.
func TestHoldCost(t *testing.T) {
	t.Parallel()
	const claim = `select count(*) from outbox.claim_fair('node', outbox.all_shards(), 100)`
	const read = `select sum(pg_stat_get_xact_blocks_fetched(r.id))::int from (
		select 'outbox.destination'::regclass::oid union all
		select i.indexrelid from pg_index as i where i.indrelid = 'outbox.destination'::regclass) as r(id)`
	db := setUp(t, longBacklog(400, 1, 40, 1))
	conn := db.Connect(t)
	claimOn(t, conn, "node", longShards(), 100)
	run(t, conn, "vacuum analyze")
	all := planBuffers(t, conn, claim)
	others := func(from, to int) string {
		return fmt.Sprintf(`insert into outbox.destination (namespace, task_queue, state, held_since, held_until, changed_at)
			select 'other ' || n, 'q1', 'held', now(), 'infinity', now() from generate_series(%d, %d) as n`, from, to)
	}
	for _, c := range []struct {
		what, sql string
		most      int // buffers of destinations
	}{
		{"none", `select`, 4},
		{"one", `select outbox.hold('x', 'q1')`, 150},
		{"10,000", others(1, 10000), 150},
		{"200,000", others(10001, 200000), 150},
		{"a route of all", `delete from outbox.destination; select outbox.hold(null, 'q9')`, 150},
	} {
		run(t, conn, c.sql)
		run(t, conn, "vacuum analyze")
		var cost int
		for range 3 { // the first one plans
			tx := begin(t, conn)
			cost = -one[int](t, tx, read)
			one[int](t, tx, claim)
			cost += one[int](t, tx, read)
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("beside %s: %d buffers, %.1f %% of %d", c.what, cost, 100*float64(cost)/float64(all), all)
		if cost > c.most {
			t.Errorf("INV-16: a claim of 100 tenants looks up %d buffers of destinations beside %s, want %d at most", cost, c.what, c.most)
		}
	}
}

// TestHoldCostPinned: behind a transaction that keeps an old snapshot, a destination that was held and lifted very many
// times, with reports that were read, costs a claim no more than pages of those rows (INV-14).
func TestHoldCostPinned(t *testing.T) {
	t.Parallel()
	const claim = `select count(*) from outbox.claim_fair('node', outbox.all_shards(), 100)`
	db := setUp(t, longBacklog(200, 1, 40, 1))
	conn := db.Connect(t)
	claimOn(t, conn, "node", longShards(), 100)
	run(t, conn, `select outbox.hold('x', 'q1')`)
	run(t, conn, `vacuum analyze`)
	before := planBuffers(t, conn, claim)
	pin := beginAt(t, db.Connect(t), pgx.RepeatableRead)
	one[int](t, pin, `select count(*)::int from outbox.destination`)
	for range 500 {
		run(t, conn, `select outbox.lift('x', 'q1')`)
		run(t, conn, `select outbox.hold('x', 'q1')`)
		run(t, conn, `insert into outbox.report (at, kind, message_id, claim_token, namespace, task_queue) select now(), 'broken', n, 1, 'x', 'q1' from generate_series(1, 10) as n`)
		one[int](t, conn, `select count(*)::int from outbox.observe('{x}', '{q1}') as o`)
	}
	after := planBuffers(t, conn, claim)
	t.Logf("%d buffers a claim before, %d after 500 holds, lifts and 5,000 reports behind a pinned horizon", before, after)
	if after > before+1000 {
		t.Errorf("INV-14: %d buffers a claim before, %d after", before, after)
	}
}
