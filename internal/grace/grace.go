// Package grace makes contexts for work that must not stop half-way.
package grace

import (
	"context"
	"time"
)

// Context returns a context that goes on for a while after ctx has ended: a call that is under
// way then can still come back and say what it did. It has no deadline of ctx. Its values are
// those of ctx. Call the function when the work is done, to free what the context holds.
func Context(ctx context.Context, after time.Duration) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(after, cancel) })
	return late, func() {
		stop()
		cancel()
	}
}
