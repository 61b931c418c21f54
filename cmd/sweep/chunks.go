package main

import (
	"context"
	"fmt"
	"time"
)

// chunkRows is how many messages one transaction of a long command changes: locks
// are held for moments only, and stopping loses little.
const chunkRows = 1000

// inChunks calls do, which changes up to n messages and says how many it did, until
// it finds fewer or limit (0: none) is reached. Between two calls it tells progress,
// and stops when ctx ends. It returns the sum, beside an error too.
func (a *app) inChunks(ctx context.Context, limit int64, do func(ctx context.Context, n int) (int64, error)) (int64, error) {
	working, stop := graceful(ctx, stopGrace)
	defer stop()
	var done int64
	told := time.Now()
	for {
		if ctx.Err() != nil {
			return done, withHint(fmt.Errorf("%w; %s done", context.Cause(ctx), plural(done, "message")), "Run it again for the rest.")
		}
		n := int64(chunkRows)
		if limit > 0 {
			n = min(n, limit-done)
		}
		if n == 0 {
			return done, nil
		}
		some, err := do(working, int(n))
		done += some
		if err != nil {
			return done, err
		}
		if some < n {
			return done, nil
		}
		if time.Since(told) >= progressEvery {
			told = time.Now()
			a.log.Info(a.command, "done", done)
		}
	}
}
