package node

import (
	"context"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

// After a full chunk the loop leaves prune alone for so many times as long as that chunk took: while there is more,
// prune takes a quarter of a connection's time. A chunk of 1,000 that takes 10 ms makes 25,000 a second. Where that is
// less than the node settles, prune takes half of the time, or the outbox would grow.
const (
	pruneRest       = 3
	pruneRestBehind = 1
)

// prune is a call, which has ended, that deletes a chunk of what has outlived its retention.
type prune struct {
	messages int
	err      error
	began    int64 // clock times
	ended    int64
}

func callPrune(ctx context.Context, db driver.Querier, clock func() int64) prune {
	before := clock()
	n, err := driver.Prune(ctx, db, maxRows)
	return prune{n, err, before, clock()}
}

// prune is a duty: it begins to delete a chunk where that is due. Only one call is under way.
func (l *loop) prune(ctx context.Context) {
	if l.cutPruning == nil && l.isTimeFor(&l.duties.prune) && !l.beginPrune(ctx) {
		l.pruned(ctx, <-l.prunes)
	}
}

// beginPrune makes the call in a goroutine of its own, so that the loop claims, reads and settles meanwhile, and
// reports true. The loop draws the conclusions from the answer; the goroutine touches nothing of the loop. False:
// the pool has no connection to spare for that, so the call has ended.
func (l *loop) beginPrune(ctx context.Context) bool {
	l.duties.prune.at = never // until it is over
	call, cancel := context.WithTimeout(ctx, l.patience())
	l.cutPruning = cancel
	db, prunes, clock := l.db, l.prunes, l.clock
	if !l.pruneBeside {
		prunes <- callPrune(call, db, clock)
		return false
	}
	go func() { prunes <- callPrune(call, db, clock) }()
	return true
}

// takePruned takes over a prune that has come back.
func (l *loop) takePruned(ctx context.Context) {
	select {
	case p := <-l.prunes:
		l.pruned(ctx, p)
	default:
	}
}

// pruned draws the conclusions from a prune; where it left some, the next one comes soon.
func (l *loop) pruned(ctx context.Context, p prune) {
	l.countPruned(p)
	took := p.ended - p.began
	l.duties.prune.at = p.began + int64(jitter(l.config.PruneEvery))
	if l.pruneMore { // the rest began when the call ended: the loop may have seen that much later
		rest := int64(pruneRest)
		if l.pruneBeside && l.settledSoFar() >= l.madeUp+maxRows {
			rest = pruneRestBehind
		}
		l.duties.prune.at = p.ended + rest*took
	}
	l.attended(ctx, &l.duties.prune, time.Duration(took), p.err)
}

// countPruned notes what a prune has deleted, and that none is under way.
func (l *loop) countPruned(p prune) {
	l.cutPruning()
	l.cutPruning = nil
	l.prunedSoFar += int64(p.messages)
	l.pruneMore = p.messages == maxRows
	if p.err != nil { // nothing is known of what is left
		return
	}
	if l.madeUp += maxRows; !l.pruneMore || l.madeUp > l.settledSoFar() {
		l.madeUp = l.settledSoFar()
	}
}

// settledSoFar counts the messages that will be pruned some day.
func (l *loop) settledSoFar() int64 { return l.stats.done.Load() + l.stats.failed.Load() }

// pruneWhatItSettled goes on at the end of a Once until that has pruned as many messages
// as it has settled, and a chunk more: else the outbox would grow with each. It stops at
// the first error: the next one goes on.
func (l *loop) pruneWhatItSettled(ctx context.Context) {
	for {
		if l.cutPruning != nil {
			select {
			case p := <-l.prunes:
				l.countPruned(p)
				if p.err != nil {
					l.log.Warn("a regular duty failed", "error", p.err)
				}
			case <-ctx.Done():
			case <-l.drain: // it was told to end
			}
		}
		select {
		case <-l.drain:
			return
		default:
		}
		if ctx.Err() != nil || !l.pruneMore || l.prunedSoFar >= l.settledSoFar()+maxRows {
			return
		}
		l.beginPrune(ctx)
	}
}

// endPrune breaks off the prune that is under way: it may take longer than the end has time for, and another node goes on.
func (l *loop) endPrune() {
	if l.cutPruning != nil {
		l.cutPruning()
		l.countPruned(<-l.prunes)
	}
}
