package integration

import "testing"

// TestPruneGoneNodes: what prune reads for nodes that are gone does not grow with the square of
// their number, where each started after the one before and its name says so (INV-14).
func TestPruneGoneNodes(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	planSettle(t, conn)
	prune := stateCall{sql: `select outbox.prune(null, $1)`, with: `select $1::int`}
	cost := map[int]stateCost{}
	for _, nodes := range []int{200, 2000} {
		run(t, conn, `truncate outbox.walk, outbox.route`)
		run(t, conn, `insert into outbox.walk (node, namespace, round, claimed_at, claimed)
			select 'gone' || lpad(n::text, 6, '0'), 'n', 1, now() - interval '3 h' + n * interval '1 s', 1 from generate_series(1, $1::int) as n`, nodes)
		run(t, conn, `insert into outbox.route (node, namespace, task_queue, served_at)
			select w.node, 'n' || r, 'q', w.claimed_at from outbox.walk as w cross join generate_series(1, 5) as r`)
		cost[nodes] = prune.cost(t, stateWatch(t, db), 10)
	}
	few, many := cost[200], cost[2000]
	if most := few.buffers + 10*1800; many.buffers > most {
		t.Errorf("INV-14: %d buffers for 200 nodes that are gone, %d for 2,000, want at most %d", few.buffers, many.buffers, most)
	}
	if most := few.rows + 10*1800; many.rows > most {
		t.Errorf("INV-14: %d rows for 200 nodes that are gone, %d for 2,000, want at most %d; most in %s", few.rows, many.rows, most, many.most)
	}
}
