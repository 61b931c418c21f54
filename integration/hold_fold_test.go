package integration

import (
	"fmt"
	"testing"
)

// foldReports are reports that no claim has read: as many of each of these routes as of the others, of as many
// namespaces, the messages all others than before.
func foldReports(t testing.TB, q querier, kind string, namespaces, routes int) {
	t.Helper()
	run(t, q, `insert into outbox.report (at, kind, message_id, claim_token, namespace, task_queue, shared)
		select now(), $1, 1000000 + i, 9000000000000, rpad('tenant ' || i % $2, 100, '.'), 'q' || i % $3, true from generate_series(1, 500) as i`, kind, namespaces, routes)
}

// TestFoldCost: a claim that reads 500 reports writes each destination that they are about once, whatever their number
// and however much is known of it, up to the limit of hold_after: else claims would time out with the fold undone,
// one after the other, and nobody would claim anything (INV-11).
func TestFoldCost(t *testing.T) {
	t.Parallel()
	const written = `select pg_stat_get_xact_tuples_inserted('outbox.destination'::regclass) + pg_stat_get_xact_tuples_updated('outbox.destination'::regclass)`
	for _, c := range []struct{ namespaces, routes, most int }{
		{1, 1, 2}, {500, 1, 501}, {10, 5, 15}, {100, 1, 101},
	} {
		t.Run(fmt.Sprintf("%d namespaces, %d routes", c.namespaces, c.routes), func(t *testing.T) {
			t.Parallel()
			db := setUp(t, longBacklog(1, 1, 1, 1)+`select outbox.configure('{"hold_after": 100}')`)
			conn := db.Connect(t)
			for range 3 { // as full as it gets
				foldReports(t, conn, "broken", c.namespaces, c.routes)
				run(t, conn, `update outbox.report set message_id = message_id + id * 1000`)
				one[int](t, conn, `select count(*)::int from outbox.observe('{x}', '{x}') as o`)
				run(t, conn, `update outbox.destination set score = 4`)
			}
			foldReports(t, conn, "broken", c.namespaces, c.routes)
			tx := begin(t, conn)
			before := one[int](t, tx, written)
			one[int](t, tx, `select count(*)::int from outbox.observe('{x}', '{x}') as o`)
			got := one[int](t, tx, written) - before
			commit(t, tx)
			if n := one[int](t, conn, `select count(*)::int from outbox.report`); n != 0 {
				t.Fatalf("%d reports are not read", n)
			}
			if got > c.most {
				t.Errorf("INV-11: a fold of 500 reports of %d destinations writes %d", c.most, got)
			}
		})
	}
}
