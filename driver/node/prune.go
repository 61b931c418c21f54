package node

import (
	"context"

	"github.com/fairclaim/fairclaim/driver"
)

// pruneRest: after a full chunk the loop leaves prune alone for so many times as long as that
// chunk took. While there is more, prune takes a quarter of the loop's time, and the
// claims and settles the rest. A chunk of 1,000 that takes 25 ms makes 10,000 a second.
const pruneRest = 3

// prune deletes a chunk of what has outlived its retention, and comes again soon where
// there is more.
func (l *loop) prune(ctx context.Context) error {
	before := l.clock()
	n, err := driver.Prune(ctx, l.db, maxRows)
	l.pruned += int64(n)
	if l.pruneMore = n == maxRows; l.pruneMore {
		now := l.clock()
		l.duties.prune.at = now + pruneRest*(now-before)
	}
	return err
}

// pruneWhatItSettled goes on at the end of a Once until that has pruned as many messages
// as it has settled, and a chunk more: else the outbox would grow with each. It stops at
// the first error: the next one goes on.
func (l *loop) pruneWhatItSettled(ctx context.Context) {
	for l.pruneMore && ctx.Err() == nil && l.pruned < l.stats.done.Load()+l.stats.failed.Load()+maxRows {
		select {
		case <-l.drain: // it was told to end
			return
		default:
		}
		call, cancel := context.WithTimeout(ctx, l.patience())
		err := l.prune(call)
		cancel()
		if err != nil {
			l.log.Warn("a regular duty failed", "error", err)
			return
		}
	}
}
