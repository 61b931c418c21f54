package integration

import (
	"fmt"
	"testing"
)

// TestPlanWaiting: what a claim, explain_claim and the view namespaces read does not grow with what waits,
// where the statistics are from a time when nothing waited, or nothing was ripe (INV-14).
func TestPlanWaiting(t *testing.T) {
	t.Parallel()
	const many = 50000
	for name, c := range map[string]struct {
		before, after, call string
		most                int
	}{
		"one message comes due": {
			before: longBacklog(1000, 1, 1, 1),
			after:  `select outbox.enqueue('due', 'q', 'due', '', delay => '1 ms')`,
			call:   `select count(*) from outbox.claim_fair('n', outbox.all_shards(), 10)`, most: 4000,
		},
		"explain_claim": {
			before: `select outbox.enqueue('later ' || n % 300, 'q', 'later ' || n, '', delay => '1 day') from generate_series(1, 1500) as n`,
			after:  fmt.Sprintf(`select outbox.enqueue('flood', 'q', 'ripe ' || n, '') from generate_series(1, %d) as n`, many),
			call:   `select count(*) from outbox.explain_claim('n', outbox.all_shards(), 100)`, most: 20000,
		},
		"namespaces": {
			before: `select outbox.set_quota('quota ' || n, 5) from generate_series(1, 500) as n; select outbox.enqueue('a', 'q', 'a', '')`,
			call:   `select count(n.*) from (select * from outbox.namespaces) as n`, most: 60000,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := setUp(t, c.before)
			admin := db.Admin(t)
			run(t, admin, `vacuum analyze`)
			run(t, db.Connect(t), fmt.Sprintf(`select outbox.enqueue('campaign', 'q', 'campaign ' || n, '', delay => '1 day') from generate_series(1, %d) as n`, many))
			if c.after != "" {
				run(t, db.Connect(t), c.after)
			}
			conn := db.Connect(t)
			run(t, conn, stateByIndex)
			if buffers := planBuffers(t, conn, c.call); buffers > c.most {
				t.Errorf("INV-14: it touches %d buffers, want %d at most", buffers, c.most)
			} else {
				t.Logf("%d buffers", buffers)
			}
		})
	}
}
