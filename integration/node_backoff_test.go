package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// Failing rows do not spin: where all that a claim brings fails at once, none is claimed
// again before its backoff has passed, on the database's clock, and the loop claims no
// more often than there is something to claim.
func TestFailingRowsWaitForTheirBackoff(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, `select outbox.configure('{"retry_base": "500 ms", "retry_multiplier": 2, "retry_jitter": 0.1}')`)
	for i := range 3 {
		fill(t, db.Pool, fmt.Sprint("ns", i), "q", 100, 10)
	}
	boom := errors.New("boom")
	const tick = 50 * time.Millisecond
	n := startNode(t, newNode(t, db, node.SinkFunc(func(context.Context, driver.Delivery) error { return boom }),
		func(c *node.Config) { c.Batch, c.Tick = 50, tick }))
	begun := time.Now()
	await(t, db.Pool, "select count(*) = 900 from outbox.failure as f where f.attempt <= 3")
	s, took := n.Stats(), time.Since(begun)
	n.drained(t)
	if early := list[string](t, db.Pool, `
select format('%s: attempt %s after %s', f.id, f.attempt, f.at - b.at)
from outbox.failure as f join outbox.failure as b on b.id = f.id and b.attempt = f.attempt - 1
where f.at - b.at < 0.9 * interval '500 ms' * 2 ^ (b.attempt - 1)`); len(early) > 0 {
		t.Errorf("%d attempts came before their backoff: %v", len(early), early[:min(len(early), 5)])
	}
	if got := one[int](t, db.Pool, "select count(*) from (select 1 from outbox.failure group by id, attempt having count(*) > 1) as x"); got > 0 {
		t.Errorf("%d attempts failed twice", got)
	}
	// A sweep a tick, jittered, and one more at the most for each that brought something.
	if most := int64(took/(tick*4/5)) + s.Claimed; s.Sweeps > most {
		t.Errorf("%d sweeps in %v for %d messages, want at most %d", s.Sweeps, took, s.Claimed, most)
	}
}

// A sink that asks for a message again at once, or hands it back untried, gets it again
// with the next tick, not in a circle without one.
func TestAtOnceIsTheNextTick(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]error{
		"retry at once": node.RetryAfter(errors.New("again"), 0),
		"not tried":     node.Undelivered(errors.New("not now")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pg.New(t)
			run(t, db.Pool, `select outbox.configure('{"max_attempts": 1000000}')`)
			fill(t, db.Pool, "ns", "q", 100, 10)
			const tick = 500 * time.Millisecond
			n := startNode(t, newNode(t, db, node.SinkFunc(func(context.Context, driver.Delivery) error { return answer }),
				func(c *node.Config) { c.Batch, c.Tick = 50, tick }))
			eventually(t, "both full claims and one more", func() bool { return n.Stats().Sweeps >= 3 })
			begun, from := time.Now(), n.Stats().Sweeps
			eventually(t, "four claims more", func() bool { return n.Stats().Sweeps >= from+4 })
			if took := time.Since(begun); took < 2*tick*4/5 { // jittered, and the first may be close
				t.Errorf("four claims took %v, want them a tick of %v apart", took, tick)
			}
			n.drained(t)
		})
	}
}
