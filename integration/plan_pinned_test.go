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
