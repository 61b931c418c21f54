package integration

import "testing"

// TestPlanPinned: while a long transaction keeps the dead rows of what was claimed and
// settled since, a claim does not wade through them (INV-14): only the first one behind
// them does, and remembers the edge. What is claimed still would hold the edge back.
func TestPlanPinned(t *testing.T) {
	t.Parallel()
	const claim = `select count(*) from outbox.claim_fair('node', outbox.all_shards(), 100)`
	db := pg.New(t)
	conn := db.Connect(t)
	planSettle(t, conn)
	planFill(t, conn, "ns", 40, 1, 100, planPast)
	claimOn(t, conn, "node", longShards(), 100)
	run(t, conn, "select outbox.complete(array_agg(c.id), array_agg(c.claim_token)) from outbox.claimed as c")
	run(t, conn, "vacuum analyze")
	before := planBuffers(t, conn, claim)

	long := db.Connect(t)
	run(t, long, "begin isolation level repeatable read; select from outbox.config")
	run(t, conn, `
		insert into outbox.claimed (id, namespace, task_queue, shard, visible_after, attempt, payload_bytes, claim_token, claimed_by, claimed_at, lease_until)
		select 1000000 + n, 'ns' || lpad((1 + n % 40)::text, 6, '0'), 'q1', n % 16, now(), 1, 0, nextval('outbox.claim_token'), 'x', now(), now()
		from generate_series(1, 40000) as n;
		delete from outbox.claimed as c where c.id > 1000000`)
	first := planBuffers(t, conn, claim)
	claimOn(t, conn, "node", longShards(), 1)
	after := planBuffers(t, conn, claim)
	t.Logf("%d buffers before, %d with dead rows, %d once a claim has come past them", before, first, after)
	if limit := before + before/2 + 100; after > limit {
		t.Errorf("INV-14: %d buffers before, %d after", before, after)
	}
	if first < 10*before {
		t.Errorf("%d buffers while nobody has come past the dead rows: are they there?", first)
	}
}

// TestPlanPinnedLanes: where a long transaction keeps dead rows at the heads of all lanes, a few of them in each, a claim comes
// past them three times: in its walk, as it looks for lanes, and as it reads them. That none of its routes has very many
// of them it knows from that (INV-14).
func TestPlanPinnedLanes(t *testing.T) {
	t.Parallel()
	const pages = `select pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass)::int`
	db := pg.New(t)
	conn := db.Connect(t)
	hostileFill(t, conn, `select 'n' || n % 100 as namespace, 'q' as task_queue, 0 as shard from generate_series(1, 40000) as n`, hostilePast)
	run(t, conn, "vacuum analyze")
	long := db.Connect(t)
	run(t, long, "begin isolation level repeatable read; select from outbox.config")
	for range 20 {
		settleAll(t, conn, "complete", claimOn(t, conn, "node", longShards(), 1000))
	}
	tx := begin(t, conn)
	before := one[int](t, tx, pages)
	one[int](t, tx, `select count(*)::int from generate_series(0, 99) as n cross join lateral (
		select from outbox.pending as p
		where p.ripe and p.ring = outbox.ring('n' || n) and p.namespace = 'n' || n and p.route_ring = outbox.ring('q') and p.task_queue = 'q' and p.shard = 0
		order by p.visible_after, p.id limit 1) as x`)
	heads := one[int](t, tx, pages) - before
	wantClaimed(t, "a claim", claimOn(t, tx, "node", longShards(), 100), 100)
	cost := one[int](t, tx, pages) - before - heads
	t.Logf("%d pages to the heads of all lanes, %d in a claim", heads, cost)
	if heads < 10000 {
		t.Errorf("%d pages to the heads of all lanes: are the dead rows there?", heads)
	}
	if cost > 7*heads/2 {
		t.Errorf("INV-14: a claim reads %d pages where dead rows at the heads of all lanes make %d", cost, heads)
	}
}
