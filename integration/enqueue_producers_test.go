package integration

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestEnqueueProducers: sixteen producers of one tenant, new or known, each in a long
// transaction of its own, block neither each other nor a claim: no statement here can
// wait for a lock. What they wrote is claimed once they have committed, however
// the claims went on meanwhile (INV-2, INV-11).
func TestEnqueueProducers(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	node := withoutWaiting(t, db.Connect(t))
	for round, tenant := range []string{"new", "known"} {
		var open []pgx.Tx
		for i := range 16 {
			tx := begin(t, withoutWaiting(t, db.Connect(t)))
			put(t, tx, "tenant", "q", fmt.Sprint(tenant, i))
			one[int](t, tx, `select count(b.id) from outbox.enqueue_batch(array_fill('tenant'::text, array[20]), array_fill('q'::text, array[20]),
				array(select $1 || n from generate_series(1, 20) as n), array_fill('x'::bytea, array[20])) as b`, fmt.Sprint(tenant, i, "."))
			open = append(open, tx)
		}
		wantClaimed(t, "while all are open", claimOn(t, node, "node", longShards(), 1000), 0)
		for _, tx := range open[:8] {
			commit(t, tx)
		}
		first := claimOn(t, node, "node", longShards(), 100)
		wantClaimed(t, "while half of them are open", first, 100)
		for _, tx := range open[8:] {
			commit(t, tx)
		}
		run(t, node, `select outbox.configure('{"default_quota": 1000}')`)
		rest := claimOn(t, node, "node", longShards(), 1000)
		wantClaimed(t, fmt.Sprintf("round %d, after all have committed", round), rest, 16*21-100)
	}
}
