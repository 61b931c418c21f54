package integration

import (
	"fmt"
	"sync"
	"testing"
)

// TestCancelsDoNotDeadlock: cancel and cancel_namespace lock the same messages in the same
// order, however the callers order their keys.
func TestCancelsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	setUp := db.Connect(t)
	var calls sync.WaitGroup
	for range 8 {
		run(t, setUp, `select outbox.enqueue('n', 'q' || i % 3, i::text, '') from generate_series(1, 300) as i`)
		errs := make(chan error, 3)
		for i, call := range []string{
			`select count(*) from outbox.cancel(array(select i::text from generate_series(300, 1, -1) as i))`,
			`select outbox.cancel_namespace('n')`,
			`select outbox.cancel_namespace('n', 100)`,
		} {
			conn := db.Connect(t)
			calls.Go(func() {
				if _, err := conn.Exec(t.Context(), call); err != nil {
					errs <- fmt.Errorf("call %d: %w", i, err)
				}
			})
		}
		calls.Wait()
		close(errs)
		for err := range errs {
			t.Error(err)
		}
		if left := one[int](t, setUp, "select count(*) from outbox.pending"); left != 0 {
			t.Errorf("%d messages are still pending", left)
		}
		run(t, setUp, "select outbox.prune('0', 1000)")
	}
}
