package integration

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// INV-16: messages on their last attempt, whose destination is held while they are out, fail by it and are given back
// uncharged: the node counts and tells no dead letter. One that fails with none of that is one.
func TestLastAttemptAtAHeldDestination(t *testing.T) {
	t.Parallel()
	db := setUp(t, `select outbox.configure('{"max_attempts": 1, "hold_base": "1 h", "hold_cap": "1 day"}')`)
	fill(t, db.Pool, "acme", "q", 6, 1)
	fill(t, db.Pool, "globex", "q", 1, 1)
	begun, let := make(chan struct{}, 7), make(chan struct{})
	sink := node.SinkFunc(func(ctx context.Context, _ driver.Delivery) error {
		begun <- struct{}{}
		select {
		case <-let:
		case <-ctx.Done():
		}
		return node.DestinationFailed(errors.New("no connection"))
	})
	var log lockedBuffer
	n := startNode(t, newNode(t, db, sink, func(c *node.Config) {
		c.Slots, c.Share, c.Spare, c.DeliveryTimeout = 8, 1, -1, time.Hour
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	}))
	eventually(t, "all have begun", func() bool { return len(begun) == 7 })
	run(t, db.Pool, "select outbox.hold('acme', 'q')")
	close(let)
	await(t, db.Pool, "select count(*) = 0 from outbox.claimed")
	if st := n.drained(t); st.Failed != 1 || st.Retried != 6 || strings.Contains(log.String(), "failed=7") {
		t.Errorf("stats are %+v, want 1 failed:\n%s", st, &log)
	}
	wantOutcomes(t, db.Pool, map[string]int{"failed": 1, "pending": 6})
}
