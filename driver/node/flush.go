package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

// verdict is what becomes of a message after its delivery.
type verdict int

const (
	done verdict = iota
	again
	failed
	untried
	settled // by the sink
)

// outcome is what a delivery came to. It is read off the sink's error once, by the
// goroutine that got it: an error can have methods, and what they do is the sink's doing.
type outcome struct {
	verdict verdict
	err     error          // nil: delivered
	reason  string         // its text
	delay   *time.Duration // of RetryAfter or RetryNotBefore
	least   bool           // of the latter: the policy's backoff may be longer
	closed  bool           // the sink takes no message any more
	overdue bool           // the sink did not return: the dispatcher gave the delivery up
}

// judge reads a delivery's error as the Sink interface defines it.
func judge(err error) outcome {
	if err == nil {
		return outcome{verdict: done}
	}
	o := outcome{verdict: again, err: err, reason: err.Error(), closed: errors.Is(err, ErrSinkClosed)}
	var permanent *permanentError
	var undelivered *undeliveredError
	var after *retryAfterError
	switch {
	case errors.Is(err, ErrSettled):
		o.verdict = settled
	case o.closed || errors.As(err, &undelivered):
		o.verdict = untried
	case errors.As(err, &permanent):
		o.verdict = failed
	case errors.As(err, &after):
		o.delay, o.least = &after.delay, after.least
	}
	return o
}

// flush settles what has been delivered, one call for each verdict. What a call fails
// for is tried again, until the lease is gone and the answer is that it is lost.
func (l *loop) flush(ctx context.Context) {
	if len(l.results) == 0 || l.clock() < l.retryAt {
		return
	}
	var by [settled + 1][]*item
	for _, it := range l.results {
		by[it.verdict] = append(by[it.verdict], it)
	}
	l.results = l.results[:0]
	for _, it := range by[settled] {
		l.stats.done.Add(1)
		l.progress = true
		l.leave(it)
	}
	l.settle(ctx, by[done], func(ctx context.Context, items []*item) ([]driver.Ref, error) {
		return driver.Complete(ctx, l.db, refsOf(items))
	})
	l.settle(ctx, by[again], func(ctx context.Context, items []*item) ([]driver.Ref, error) {
		return driver.Retry(ctx, l.db, l.failuresOf(items))
	})
	l.settle(ctx, by[failed], func(ctx context.Context, items []*item) ([]driver.Ref, error) {
		return driver.Fail(ctx, l.db, l.failuresOf(items))
	})
	l.settle(ctx, by[untried], func(ctx context.Context, items []*item) ([]driver.Ref, error) {
		return driver.Release(ctx, l.db, refsOf(items))
	})
}

// settle makes one settle call; items that it answers for leave the book.
func (l *loop) settle(ctx context.Context, items []*item, call func(context.Context, []*item) ([]driver.Ref, error)) {
	if len(items) == 0 {
		return
	}
	if l.clock() < l.retryAt { // the call before this one failed
		l.results = append(l.results, items...)
		return
	}
	asked, cancel := patient(ctx, l.patience())
	defer cancel()
	refs, err := call(asked, items)
	if l.failed(ctx, err) {
		l.endOnce(err)
		l.results = append(l.results, items...)
		return
	}
	notOurs := make(map[driver.Ref]bool, len(refs))
	for _, ref := range refs {
		notOurs[ref] = true
	}
	var lost []*item
	for _, it := range items {
		ours := !notOurs[it.Ref()]
		if it.verdict != untried {
			l.progress = true
		} else if ours && !it.parked {
			l.refused = it.err
		}
		if it.atOnce() { // with the next tick: the next claim would bring the same again
			l.again, l.some = false, false
		}
		if !ours {
			l.stats.lost.Add(1)
			lost = append(lost, it)
			l.log.Debug("lost a claim", "id", it.ID, "namespace", it.Namespace, "dispatch_key", it.DispatchKey)
		} else {
			l.countSettled(it)
		}
		l.leave(it)
	}
	if n := len(lost); n > 0 {
		l.log.Warn("lost claims: claimed anew, cancelled, or settled already", "messages", n,
			"last_id", lost[n-1].ID, "last_namespace", lost[n-1].Namespace, "last_dispatch_key", lost[n-1].DispatchKey)
	}
}

// countSettled counts a message as what it was settled as, and notes for the log where it
// was not delivered. A retry that used up the last attempt has failed for good.
func (l *loop) countSettled(it *item) {
	state := "due again"
	switch {
	case it.verdict == done:
		l.stats.done.Add(1)
	case it.verdict == untried:
		l.stats.released.Add(1)
	case it.verdict == failed || l.outbox.Retry.Exhausted(it.Attempt):
		state = "failed"
		l.stats.failed.Add(1)
		l.trouble.failed++
		l.trouble.last = it
	default:
		state = "to be retried"
		l.stats.retried.Add(1)
		l.trouble.retried++
		l.trouble.last = it
	}
	if it.err != nil {
		l.log.Debug("not delivered", "id", it.ID, "namespace", it.Namespace, "dispatch_key", it.DispatchKey,
			"attempt", it.Attempt, "now", state, "error", driver.CleanReason(it.reason))
	}
}

// leave takes a message out of the book: settled, lost or abandoned. Its bytes are given
// back, if that was not done when it was parked (INV-13).
func (l *loop) leave(it *item) {
	if _, ok := l.book[it.Ref()]; !ok {
		return
	}
	delete(l.book, it.Ref())
	l.stats.inFlight.Add(-1)
	l.suspects.leave(it)
	if it.counted {
		l.letGo(it)
	}
}

// atOnce reports whether the message is due again the moment that it is settled.
func (it *item) atOnce() bool {
	return it.verdict == untried && !it.parked || it.verdict == again && it.delay != nil && *it.delay == 0 && !it.least
}

func refsOf(items []*item) []driver.Ref {
	refs := make([]driver.Ref, len(items))
	for i, it := range items {
		refs[i] = it.Ref()
	}
	return refs
}

func (l *loop) failuresOf(items []*item) []driver.Failure {
	failures := make([]driver.Failure, len(items))
	for i, it := range items {
		delay := it.delay
		if it.least {
			later := max(*delay, l.outbox.Retry.Backoff(it.Attempt, rand.Float64()))
			delay = &later
		}
		failures[i] = driver.Failure{Ref: it.Ref(), Reason: it.reason, Delay: delay}
	}
	return failures
}

func (l *loop) beginDrain() {
	if l.draining {
		return
	}
	l.draining = true
	l.drainAt = l.clock() + int64(l.config.DrainTimeout)
	l.duties.heartbeat = 0
	l.say("draining", "in_flight", len(l.book))
	l.endWaiting(errStopping, func(*item) bool { return true })
}

// withdraw gives back what no delivery has begun for.
func (l *loop) withdraw() {
	waiting := l.unread
	l.unread = nil
	l.endWaiting(errStopping, func(*item) bool { return true })
	for _, q := range l.routes {
		waiting = append(waiting, q.withdraw()...)
	}
	for _, it := range append(waiting, l.sink.withdraw()...) {
		it.outcome = judge(Undelivered(errStopping))
		l.results = append(l.results, it)
	}
}

// grace is how long an end waits for sinks that were told to stop, and for the last
// settle calls.
const grace = 5 * time.Second

// patient is a context for a call that changes who owns messages: where ctx ends under
// way, the call still has a while to come back and say what it did. Cut off, a claim would
// leave messages to their leases that nobody works on.
func patient(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	return call, func() {
		stop()
		cancel()
	}
}

// end stops what still runs, releases all that is left, and says why it ended.
func (l *loop) end(ctx context.Context) error {
	cause := context.Cause(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	l.withdraw()
	l.dispatch.stop(errStopping)
	stuck := !l.stopped(ctx)
	l.collect()
	if stuck {
		for _, it := range l.unanswered() {
			// The delivery still reads the item: what it returns is nobody's any more.
			l.results = append(l.results, &item{Delivery: it.Delivery, bytes: it.bytes, counted: it.counted, outcome: judge(Undelivered(errStopping))})
		}
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
	}
	l.retryAt, l.awayAt, l.backoff = 0, 0, 0
	for l.flush(ctx); len(l.results) > 0 && ctx.Err() == nil; l.flush(ctx) {
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(l.retryAt - l.clock())):
		}
	}
	if n := len(l.book); n > 0 {
		l.log.Warn("abandoned messages: they are due again when their leases have run out", "messages", n)
	}
	for _, it := range l.book {
		l.log.Debug("abandoned a message", "id", it.ID, "namespace", it.Namespace, "dispatch_key", it.DispatchKey)
		l.leave(it)
	}
	if l.live {
		l.failed(ctx, driver.Leave(ctx, l.db, l.config.Node, l.process))
	} else if cause == nil && l.ending == nil {
		l.pruneWhatItSettled(ctx)
	}
	l.report()
	l.say("ended", "done", l.stats.done.Load(), "retried", l.stats.retried.Load(), "failed", l.stats.failed.Load(),
		"released", l.stats.released.Load(), "lost", l.stats.lost.Load())
	reason := l.ending
	if cause != nil {
		reason = cause
	}
	if stuck {
		return errors.Join(reason, fmt.Errorf("a sink still works %v after it was told to stop", grace))
	}
	return reason
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

// unanswered are the messages whose delivery has not returned.
func (l *loop) unanswered() []*item {
	answered := make(map[*item]bool, len(l.results))
	for _, it := range l.results {
		answered[it] = true
	}
	var items []*item
	for _, it := range l.book {
		if !answered[it] {
			items = append(items, it)
		}
	}
	return items
}
