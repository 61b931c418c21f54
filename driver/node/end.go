package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

// end stops what still runs, releases all that is left, and says why it ended.
func (l *loop) end(ctx context.Context) error {
	cause := context.Cause(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceTime)
	defer cancel()
	l.withdraw()
	l.dispatch.stop(errStopping)
	stuck := !l.stopped(ctx)
	l.takeDelivered()
	if stuck {
		l.releaseUnanswered()
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), graceTime)
		defer cancel()
	}
	l.backoff = backoff{}
	for l.settleAll(ctx); len(l.results) > 0 && ctx.Err() == nil; l.settleAll(ctx) {
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(l.backoff.callsAt - l.clock())):
		}
	}
	if n := l.ledger.inFlight(); n > 0 {
		l.log.Warn("abandoned messages: they are due again when their leases have expired", "messages", n)
	}
	for ref, it := range l.ledger.items {
		l.log.Debug("abandoned a message", "id", it.ID, "namespace", it.Namespace, "dispatch_key", it.DispatchKey)
		l.ledger.leave(ref)
	}
	if l.live {
		l.worked(ctx, driver.Leave(ctx, l.db, l.config.Node, l.process))
	} else if cause == nil && l.ending == nil {
		l.pruneWhatItSettled(ctx)
	}
	l.failures.write(l.log, l.clock(), true)
	l.say("ended", "done", l.stats.done.Load(), "retried", l.stats.retried.Load(), "failed", l.stats.failed.Load(),
		"released", l.stats.released.Load(), "lost", l.stats.lost.Load())
	reason := l.ending
	if cause != nil {
		reason = cause
	}
	if stuck {
		return errors.Join(reason, fmt.Errorf("a sink still works %v after it was told to stop", graceTime))
	}
	return reason
}

// withdraw gives back what no delivery has begun for.
func (l *loop) withdraw() {
	l.endWaiting(errStopping, func(*item) bool { return true })
	for _, it := range append(l.ledger.endUnread(), l.dispatch.withdraw()...) {
		l.toSettle(it, Undelivered(errStopping))
	}
}

// stopped waits for the deliveries, as long as ctx lasts.
func (l *loop) stopped(ctx context.Context) bool {
	idle := make(chan struct{})
	go func() {
		l.dispatch.running.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		return true
	case <-ctx.Done():
		return false
	}
}

// releaseUnanswered has the messages released whose delivery has not returned. The delivery
// still reads the item, and nobody reads what it returns: so a copy is settled.
func (l *loop) releaseUnanswered() {
	answered := make(map[driver.Ref]bool, len(l.results))
	for _, it := range l.results {
		answered[it.Ref()] = true
	}
	for ref, it := range l.ledger.items {
		if !answered[ref] {
			l.toSettle(&item{Delivery: it.Delivery, bytes: it.bytes, place: it.place}, Undelivered(errStopping))
		}
	}
}
