package integration

import (
	"context"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// A sink that ignores its context: its message counts as timed out (INV-10), the slot delivers the
// others', what the sink says in the end changes nothing, and no bytes stay counted (INV-13).
func TestDeliveryThatOutlivesItsTimeout(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, `select outbox.configure('{"retry_base": "1 h", "retry_cap": "1 h"}')`)
	put(t, db.Pool, "deaf", "q", "deaf")
	let, begun := make(chan struct{}), make(chan struct{})
	n := startNode(t, newNode(t, db, node.SinkFunc(func(_ context.Context, m driver.Delivery) error {
		if m.Namespace == "deaf" {
			close(begun)
			<-let
		}
		return nil
	}), func(c *node.Config) { c.Slots, c.Share, c.DeliveryTimeout = 1, 1, 100*time.Millisecond }))
	<-begun
	fill(t, db.Pool, "quick", "q", 20, 100)
	eventually(t, "the others are delivered, and its attempt is settled", func() bool { s := n.Stats(); return s.Done == 20 && s.Retried == 1 })
	if got := one[string](t, db.Pool, "select error from outbox.failure"); got != "timed out after 100ms, and the sink did not return within 5s more" {
		t.Errorf("the attempt failed for the reason %q", got)
	}
	if s := n.Stats(); s.Overdue != 1 || s.Stuck != 1 || s.Retried != 1 {
		t.Errorf("stats are %+v, want one delivery overdue, stuck and to be retried", s)
	}
	close(let)
	eventually(t, "the sink has returned", func() bool { return n.Stats().Stuck == 0 })
	if s := n.drained(t); s.Done != 20 || s.Lost != 0 || s.UsedBytes != 0 {
		t.Errorf("stats are %+v", s)
	}
	wantOutcomes(t, db.Pool, map[string]int{"done": 20, "pending": 1})
}
