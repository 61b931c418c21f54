package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

// drainTimes is how long a drain waits for deliveries to finish, and then, for those that are cut
// short, to return: together no longer than the whole may take (a second more, where that is little),
// so that whoever waits for the process kills none that is about to give its messages back.
func drainTimes(whole time.Duration) (finish, stop time.Duration) {
	stop = min(graceTime, whole/4)
	return whole - stop, max(stop, time.Second)
}

// end stops what still runs, releases all that is left, and says why it ended.
func (l *loop) end(ctx context.Context) error {
	l.endSurvey()
	cause, asked := context.Cause(ctx), ctx
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceTime)
	defer cancel()
	l.withdraw()
	l.dispatch.stop(errStopping)
	patience := graceTime
	if l.draining && cause == nil {
		_, patience = drainTimes(l.config.DrainTimeout)
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stuck := !l.stopped(waiting)
	l.takeDelivered()
	l.settleRest(asked, waiting)
	if stuck {
		l.releaseUnanswered()
	}
	if waiting.Err() != nil { // the last calls have their time nevertheless
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), graceTime)
		defer cancel()
	}
	l.backoff = backoff{}
	for l.settle(ctx); len(l.results) > 0 && ctx.Err() == nil; l.settle(ctx) {
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(l.backoff.callsAt - l.clock())):
		}
	}
	abandoned := l.ledger.inFlight()
	if n := abandoned; n > 0 {
		l.log.Warn("abandoned messages: they are due again when their leases have expired", "messages", n)
	}
	for ref, it := range l.ledger.items {
		l.log.Debug("abandoned a message", "id", it.ID, "namespace", it.Namespace, "dispatch_key", it.DispatchKey)
		l.ledger.leave(ref)
	}
	events := len(l.notices.queued)
	if err := l.enqueueNotices(ctx); err != nil {
		l.log.Warn("events were not enqueued", "messages", events, "error", err)
	}
	if l.live {
		l.worked(ctx, driver.Leave(ctx, l.db, l.config.Node, l.process))
	} else if cause == nil && l.ending == nil {
		l.pruneWhatItSettled(ctx)
	}
	l.endPrune()
	l.turned(true)
	l.failures.write(l.log, l.clock(), true)
	l.say("ended", "done", l.stats.done.Load(), "retried", l.stats.retried.Load(), "failed", l.stats.failed.Load(),
		"released", l.stats.released.Load(), "lost", l.stats.lost.Load(), "abandoned", abandoned)
	reason := l.ending
	if cause != nil {
		reason = cause
	}
	if abandoned > 0 && reason == nil {
		reason = fmt.Errorf("%d messages were neither settled nor given back: the database could not be reached", abandoned)
	}
	if stuck {
		return errors.Join(reason, fmt.Errorf("a sink still works %v after it was told to stop", patience))
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

// stopped waits for the deliveries to return.
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
