package node

import (
	"context"
	"math/rand/v2"

	"github.com/fairclaim/fairclaim/driver"
)

// takeDelivered takes over what has been delivered.
func (l *loop) takeDelivered() {
	for _, it := range l.dispatch.collect() {
		it.Payload, it.Headers = nil, nil // do not keep them until the message is settled
		if it.overdue {
			l.log.Error("a sink does not return: gave its delivery up", "timeout", l.config.DeliveryTimeout.String(),
				"namespace", it.Namespace, "task_queue", it.TaskQueue, "dispatch_key", it.DispatchKey, "attempt", it.Attempt,
				"not_returned", l.stats.stuck.Load())
		}
		if it.closed && l.ending == nil {
			l.ending = it.err
			l.log.Error("a sink is closed: ending", "error", it.err)
		}
		l.results = append(l.results, it)
	}
	if l.ending != nil {
		l.beginDrain()
	}
}

// settleAll settles what has been delivered, one call for each verdict. Where a call fails,
// its messages are tried again until the leases are gone and the answer is that they are lost.
func (l *loop) settleAll(ctx context.Context) {
	if len(l.results) == 0 || !l.mayCall() {
		return
	}
	var by [settledBySink + 1][]*item
	for _, it := range l.results {
		by[it.verdict] = append(by[it.verdict], it)
	}
	l.results = l.results[:0]
	for _, it := range by[settledBySink] {
		l.stats.done.Add(1)
		l.pace.hasTried()
		l.ledger.leave(it.Ref())
	}
	l.settle(ctx, by[toComplete], func(ctx context.Context, items []*item) ([]driver.Ref, error) {
		return driver.Complete(ctx, l.db, refsOf(items))
	})
	l.settle(ctx, by[toRetry], func(ctx context.Context, items []*item) ([]driver.Ref, error) {
		return driver.Retry(ctx, l.db, failuresOf(items, l.outbox.Retry))
	})
	l.settle(ctx, by[toFail], func(ctx context.Context, items []*item) ([]driver.Ref, error) {
		return driver.Fail(ctx, l.db, failuresOf(items, l.outbox.Retry))
	})
	l.settle(ctx, by[toRelease], func(ctx context.Context, items []*item) ([]driver.Ref, error) {
		return driver.Release(ctx, l.db, refsOf(items))
	})
}

// settle makes one settle call. Its items leave the ledger, settled or lost; where it fails,
// they stay to be settled.
func (l *loop) settle(ctx context.Context, items []*item, call func(context.Context, []*item) ([]driver.Ref, error)) {
	if len(items) == 0 {
		return
	}
	if !l.mayCall() { // the call before this one failed
		l.results = append(l.results, items...)
		return
	}
	asked, cancel := patient(ctx, l.patience())
	defer cancel()
	refs, err := call(asked, items)
	if !l.worked(ctx, err) {
		l.results = append(l.results, items...)
		return
	}
	lost := make(map[driver.Ref]bool, len(refs))
	for _, ref := range refs {
		lost[ref] = true
	}
	var last *item // of the lost ones
	for _, it := range items {
		wasLost := lost[it.Ref()]
		if wasLost {
			last = it
			l.stats.lost.Add(1)
			l.log.Debug("lost a claim", "id", it.ID, "namespace", it.Namespace, "dispatch_key", it.DispatchKey)
		} else {
			l.countSettled(it)
		}
		l.setPace(it, wasLost)
		l.ledger.leave(it.Ref())
	}
	if last != nil {
		l.log.Warn("lost claims: claimed anew, cancelled, or settled already", "messages", len(lost),
			"last_id", last.ID, "last_namespace", last.Namespace, "last_dispatch_key", last.DispatchKey)
	}
}

// setPace tells the pace what a settled message means for the next claim. A parked message
// that is released does not change the pace: no sink has seen it, and the budget keeps it from coming again.
func (l *loop) setPace(it *item, lost bool) {
	if it.verdict != toRelease {
		l.pace.hasTried()
	} else if !lost && it.place != parked {
		l.pace.handedBack(it.err)
	}
	if it.atOnce() && it.place != parked {
		l.pace.atNextTick()
	}
}

// countSettled counts a message as what it was settled as, and notes for the log where it
// was not delivered. A retry that used up the last attempt has failed for good.
func (l *loop) countSettled(it *item) {
	state := "due again"
	switch {
	case it.verdict == toComplete:
		l.stats.done.Add(1)
	case it.verdict == toRelease:
		l.stats.released.Add(1)
	case it.verdict == toFail || l.outbox.Retry.Exhausted(it.Attempt):
		state = "failed"
		l.stats.failed.Add(1)
		l.failures.failed++
		l.failures.last = it
	default:
		state = "to be retried"
		l.stats.retried.Add(1)
		l.failures.retried++
		l.failures.last = it
	}
	if it.err != nil {
		l.log.Debug("not delivered", "id", it.ID, "namespace", it.Namespace, "dispatch_key", it.DispatchKey,
			"attempt", it.Attempt, "now", state, "error", driver.CleanReason(it.reason))
	}
}

func refsOf(items []*item) []driver.Ref {
	refs := make([]driver.Ref, len(items))
	for i, it := range items {
		refs[i] = it.Ref()
	}
	return refs
}

// failuresOf are the failed attempts as the outbox is told of them. Where a sink says a least
// delay, the policy's backoff is drawn here: the outbox takes a delay, or draws its own.
func failuresOf(items []*item, policy driver.RetryPolicy) []driver.Failure {
	failures := make([]driver.Failure, len(items))
	for i, it := range items {
		delay := it.delay
		if it.least {
			later := max(*delay, policy.Backoff(it.Attempt, rand.Float64()))
			delay = &later
		}
		failures[i] = driver.Failure{Ref: it.Ref(), Reason: it.reason, Delay: delay}
	}
	return failures
}
