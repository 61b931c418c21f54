package node

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

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
		l.delivered(it)
		l.results = append(l.results, it)
	}
	if l.ending != nil {
		l.beginDrain()
	}
}

// settling is a round of settles that is under way: one call for each verdict, in a goroutine of its own, so
// that the loop claims and reads meanwhile. Its items stay in the ledger. The loop makes the round and draws the
// conclusions from the answers; the goroutine makes the calls and touches nothing of the loop.
type settling []settleCall

// settleCall settles the items of one verdict.
type settleCall struct {
	items []*item
	do    func(ctx context.Context) (lost, uncharged []driver.Ref, err error)
}

// settleAnswer is how one of the calls ended.
type settleAnswer struct {
	lost      []driver.Ref
	uncharged []driver.Ref // of failures by their destination
	err       error
	took      time.Duration
}

// settle begins to settle what has been delivered. Only one round is under way: what is delivered meanwhile goes
// into the next one together. Where the database is one connection, the round is over when settle returns.
func (l *loop) settle(ctx context.Context) {
	if l.settling != nil || len(l.results) == 0 || !l.mayCall() {
		return
	}
	if slices.ContainsFunc(l.results, func(it *item) bool { return it.verdict == toFailDestination }) {
		markReached(l.results)
	}
	var by [settledBySink + 1][]*item
	for _, it := range l.results {
		if it.verdict == toFailDestination && l.clock() < l.holds.offUntil {
			it.verdict = toRetry
		}
		by[it.verdict] = append(by[it.verdict], it)
	}
	l.results = nil
	for _, it := range by[settledBySink] {
		l.stats.done.Add(1)
		l.config.Observer.Message(&it.Delivery, Done)
		l.pace.hasTried()
		l.ledger.leave(it.Ref())
	}
	var round settling
	for _, v := range []verdict{toComplete, toRetry, toFail, toFailDestination, toRelease} {
		items := by[v]
		if len(items) == 0 {
			continue
		}
		for _, it := range items {
			l.slowDown(it) // a claim may come before the round is back
		}
		round = append(round, settleCall{items: items, do: l.settleOf(v, items)})
	}
	if len(round) == 0 {
		return
	}
	cut, cutOff := context.WithCancel(context.WithoutCancel(ctx))
	l.settling, l.cutSettling = round, cutOff
	patience := l.patience()
	if !l.sideBySide {
		l.settled(ctx, round.run(ctx, cut, patience))
		return
	}
	go func() { l.answers <- round.run(ctx, cut, patience) }()
}

// mustSettle reports whether claims wait for settles: one has failed and none has worked since, or as much waits to be
// settled as a queue holds.
func (l *loop) mustSettle() bool {
	unsettled := len(l.results)
	for _, c := range l.settling {
		unsettled += len(c.items)
	}
	return l.settlesFail || unsettled >= l.config.Queue
}

// settleOf is the call that settles items with a verdict. All that it needs of the loop is read now.
func (l *loop) settleOf(v verdict, items []*item) func(context.Context) (lost, uncharged []driver.Ref, err error) {
	db := l.db
	var do func(context.Context) ([]driver.Ref, error)
	switch v {
	case toComplete:
		do = func(ctx context.Context) ([]driver.Ref, error) { return driver.Complete(ctx, db, refsOf(items)) }
	case toRelease:
		do = func(ctx context.Context) ([]driver.Ref, error) { return driver.Release(ctx, db, refsOf(items)) }
	case toFailDestination:
		failures := destinationFailuresOf(items)
		return func(ctx context.Context) (lost, uncharged []driver.Ref, err error) {
			return driver.FailDestination(ctx, db, failures)
		}
	case toFail:
		failures := failuresOf(items, l.outbox.Retry)
		do = func(ctx context.Context) ([]driver.Ref, error) { return driver.Fail(ctx, db, failures) }
	default:
		failures := failuresOf(items, l.outbox.Retry)
		do = func(ctx context.Context) ([]driver.Ref, error) { return driver.Retry(ctx, db, failures) }
	}
	return func(ctx context.Context) (lost, uncharged []driver.Ref, err error) {
		lost, err = do(ctx)
		return lost, nil, err
	}
}

// run makes the calls of a round, until one fails, and returns the answers. The end of ctx leaves a call its
// grace (see patient), the end of cut does not.
func (s settling) run(ctx, cut context.Context, patience time.Duration) []settleAnswer {
	var answers []settleAnswer
	for _, c := range s {
		asked, cancel := patient(ctx, patience)
		stop := context.AfterFunc(cut, cancel)
		before := time.Now()
		lost, uncharged, err := c.do(asked)
		answers = append(answers, settleAnswer{lost, uncharged, err, time.Since(before)})
		stop()
		cancel()
		if err != nil {
			break
		}
	}
	return answers
}

// takeSettled takes over a round of settles that has come back.
func (l *loop) takeSettled(ctx context.Context) {
	select {
	case answers := <-l.answers:
		l.settled(ctx, answers)
	default:
	}
}

// settleRest waits for the round that is under way; where waiting ends first, its call is broken off, and what it
// was to settle is left in results. From then on the loop waits for each round.
func (l *loop) settleRest(ctx, waiting context.Context) {
	l.sideBySide = false
	if l.settling == nil {
		return
	}
	defer context.AfterFunc(waiting, l.cutSettling)()
	l.settled(ctx, <-l.answers)
}

// settled draws the conclusions from a round of settles: its items leave the ledger, settled or lost. Where a
// call failed, its items and those of the calls behind it are to be settled again, until the leases are gone
// and the answer is that they are lost.
func (l *loop) settled(ctx context.Context, answers []settleAnswer) {
	round := l.settling
	l.settling = nil
	l.cutSettling()
	for i, c := range round {
		if i >= len(answers) { // the call before it failed
			l.results = append(l.results, c.items...)
			continue
		}
		of, a := c.items[0].verdict, answers[i]
		if of == toFailDestination && l.cannotHold(a.err) {
			l.results = append(l.results, c.items...)
			continue
		}
		l.called(ctx, Call{Name: of.call(), Took: a.took, Err: a.err})
		l.settlesFail = !l.worked(ctx, a.err)
		if l.settlesFail {
			l.results = append(l.results, c.items...)
			continue
		}
		if of == toFailDestination {
			l.dispatch.settled(c.items)
		}
		l.conclude(c.items, a)
	}
}

// conclude has settled items leave the ledger.
func (l *loop) conclude(items []*item, a settleAnswer) {
	lost, uncharged := setOf(a.lost), setOf(a.uncharged)
	var last *item // of the lost ones
	for _, it := range items {
		wasLost, became := lost[it.Ref()], Lost
		if wasLost {
			last = it
			l.stats.lost.Add(1)
			l.log.Debug("lost a claim", "id", it.ID, "namespace", it.Namespace, "dispatch_key", it.DispatchKey)
		} else {
			became = l.countSettled(it, !uncharged[it.Ref()])
		}
		l.config.Observer.Message(&it.Delivery, became)
		l.setPace(it, wasLost)
		l.ledger.leave(it.Ref())
	}
	if last != nil {
		l.log.Warn("lost claims: claimed anew, cancelled, or settled already", "messages", len(lost),
			"last_id", last.ID, "last_namespace", last.Namespace, "last_dispatch_key", last.DispatchKey)
	}
}

// setPace tells the pace what a settled message means for the next claim. A parked message
// that is released does not change the pace: no sink has seen it, and the budget keeps it from coming again. No more is one
// handed back whose destination is held.
func (l *loop) setPace(it *item, lost bool) {
	if it.verdict != toRelease {
		l.pace.hasTried()
	} else if !lost && it.place != parked && !errors.Is(it.err, errHeld) {
		l.pace.handedBack(it.err)
	}
	l.slowDown(it)
}

// slowDown has the next claim wait for its tick where a settle leaves a message due at that moment: else it
// would bring it again.
func (l *loop) slowDown(it *item) {
	if it.atOnce() && it.place != parked {
		l.pace.atNextTick()
	}
}

// countSettled counts a message as what it was settled as, notes for the log where it was not
// delivered, and returns what has become of it. A retry that was charged the last attempt has failed for good.
func (l *loop) countSettled(it *item, charged bool) (became Event) {
	state := "due again"
	switch {
	case it.verdict == toComplete:
		became = Done
		l.stats.done.Add(1)
	case it.verdict == toRelease:
		became = Released
		l.stats.released.Add(1)
		if it.err != nil && it.started.Load() != 0 && !l.draining { // the sink could not begin: its command is gone, say
			l.failures.givenBack++
			l.failures.last = it
		}
	case it.verdict == toFail || charged && l.outbox.Retry.Exhausted(it.Attempt):
		state, became = "failed", Failed
		l.stats.failed.Add(1)
		l.failures.failed++
		l.failures.last = it
		l.notify(failedNotice(it))
	default:
		state, became = "to be retried", Retried
		l.stats.retried.Add(1)
		l.failures.retried++
		l.failures.last = it
	}
	if it.err != nil {
		l.log.Debug("not delivered", "id", it.ID, "namespace", it.Namespace, "dispatch_key", it.DispatchKey,
			"attempt", it.Attempt, "now", state, "error", driver.CleanReason(it.reason))
	}
	return became
}

func setOf(refs []driver.Ref) map[driver.Ref]bool {
	set := make(map[driver.Ref]bool, len(refs))
	for _, ref := range refs {
		set[ref] = true
	}
	return set
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
