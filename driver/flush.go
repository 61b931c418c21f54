package driver

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// verdict is what becomes of a message after its delivery.
type verdict int

const (
	done verdict = iota
	again
	failed
	untried
)

// judge reads a delivery's error as the Sink interface defines it.
func judge(err error) verdict {
	var permanent *permanentError
	var undelivered *undeliveredError
	switch {
	case err == nil:
		return done
	case errors.As(err, &undelivered), errors.Is(err, ErrSinkClosed):
		return untried
	case errors.As(err, &permanent):
		return failed
	default:
		return again
	}
}

// failure writes a delivery's error as the settle call takes it.
func failure(it *item) Failure {
	f := Failure{Ref: it.Ref(), Reason: it.err.Error()}
	var after *retryAfterError
	if errors.As(it.err, &after) {
		f.Delay = &after.delay
	}
	return f
}

// flush settles what has been delivered, one call for each verdict. What a call fails
// for is tried again, until the lease is gone and the answer is that it is lost.
func (l *loop) flush(ctx context.Context) {
	if len(l.results) == 0 || l.clock() < l.retryAt {
		return
	}
	var by [untried + 1][]*item
	for _, it := range l.results {
		v := judge(it.err)
		by[v] = append(by[v], it)
	}
	l.results = l.results[:0]
	l.settle(ctx, by[done], &l.stats.done, func(ctx context.Context, items []*item) ([]int64, error) {
		return Complete(ctx, l.db, refsOf(items))
	})
	l.settle(ctx, by[again], &l.stats.retried, func(ctx context.Context, items []*item) ([]int64, error) {
		return Retry(ctx, l.db, failuresOf(items))
	})
	l.settle(ctx, by[failed], &l.stats.failed, func(ctx context.Context, items []*item) ([]int64, error) {
		return Fail(ctx, l.db, failuresOf(items))
	})
	l.settle(ctx, by[untried], &l.stats.released, func(ctx context.Context, items []*item) ([]int64, error) {
		return Release(ctx, l.db, refsOf(items))
	})
}

// settle makes one settle call; items that it answers for leave the book.
func (l *loop) settle(ctx context.Context, items []*item, count interface{ Add(int64) int64 },
	call func(context.Context, []*item) ([]int64, error),
) {
	if len(items) == 0 {
		return
	}
	if l.clock() < l.retryAt { // the call before this one failed
		l.results = append(l.results, items...)
		return
	}
	timed, cancel := context.WithTimeout(ctx, l.config.CallTimeout)
	defer cancel()
	ids, err := call(timed, items)
	if l.failed(ctx, err) {
		l.results = append(l.results, items...)
		return
	}
	settled := make(map[int64]bool, len(ids))
	for _, id := range ids {
		settled[id] = true
	}
	count.Add(int64(len(ids)))
	for _, it := range items {
		if !settled[it.ID] {
			l.stats.lost.Add(1)
			l.log.Warn("lost a claim: claimed anew, cancelled, or settled elsewhere",
				"id", it.ID, "namespace", it.Namespace, "dispatch_key", it.DispatchKey)
		} else if it.err != nil {
			l.log.Debug("not delivered", "id", it.ID, "namespace", it.Namespace, "dispatch_key", it.DispatchKey,
				"attempt", it.Attempt, "error", cleanReason(it.err.Error()))
		}
		l.leave(it)
	}
}

func refsOf(items []*item) []Ref {
	refs := make([]Ref, len(items))
	for i, it := range items {
		refs[i] = it.Ref()
	}
	return refs
}

func failuresOf(items []*item) []Failure {
	failures := make([]Failure, len(items))
	for i, it := range items {
		failures[i] = failure(it)
	}
	return failures
}

func (l *loop) beginDrain() {
	l.draining = true
	l.drainAt = l.clock() + int64(l.config.DrainTimeout)
	l.log.Info("draining", "in_flight", len(l.book))
}

// withdraw gives back what no delivery has begun for.
func (l *loop) withdraw() {
	waiting := l.stash
	l.stash = nil
	for _, q := range l.routes {
		waiting = append(waiting, q.withdraw()...)
	}
	for _, it := range append(waiting, l.sink.withdraw()...) {
		it.err = Undelivered(errStopping)
		l.results = append(l.results, it)
	}
}

// grace is how long an end waits for sinks that were told to stop, and for the last
// settle calls.
const grace = 5 * time.Second

// end stops what still runs, releases all that is left, and says why it ended.
func (l *loop) end(ctx context.Context) error {
	aborted := ctx.Err() != nil
	reason := l.ending
	if aborted {
		reason = context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	l.withdraw()
	l.dispatch.stop(errStopping)
	stuck := !l.stopped(ctx)
	l.collect()
	if stuck {
		for _, it := range l.unanswered() {
			// The delivery still reads the item: what it returns is nobody's any more.
			l.results = append(l.results, &item{Message: it.Message, bytes: it.bytes, err: Undelivered(errStopping)})
		}
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
	}
	l.retryAt = 0
	l.flush(ctx)
	for _, it := range l.book {
		l.log.Warn("abandoned a message: it is due again when its lease has run out", "id", it.ID, "dispatch_key", it.DispatchKey)
		l.leave(it)
	}
	if l.live {
		l.failed(ctx, Leave(ctx, l.db, l.config.Node))
	}
	l.log.Info("ended", "done", l.stats.done.Load(), "released", l.stats.released.Load())
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
