package node

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

var (
	errStopping = errors.New("the node is stopping")
	errStale    = errors.New("the lease may have expired before the delivery began")
	errGone     = errors.New("the sink ended its goroutine")
)

// dispatcher hands messages to sinks. Each sink has a queue, bounded, and a number of
// dispatch slots. Offering never blocks (INV-11). A goroutine lives while it has messages to
// deliver. The lock is held for bookkeeping only, never while a sink works.
//
// A sink may not listen to its context. So a delivery that has not come back graceTime after its
// time-out is left behind: its message counts as timed out, its slot takes the next message, and
// what the sink returns in the end changes nothing. The goroutine that waits for the sink stays, and
// with it the payload, which the budget counts no more. So at most `slots` deliveries of a queue
// lose their slots to others: of further ones the slot is free only when the sink returns. If a
// sink never returns, all its slots end up in use: at most 2 * slots + spare goroutines and payloads.
// It holds up its own queue and nothing else; a namespace holds its share of the slots as before.
type dispatcher struct {
	clock func() int64 // monotonic nanoseconds

	ctx      context.Context // of all deliveries
	stop     context.CancelCauseFunc
	timedOut error         // the cause where a delivery's time is over
	wake     chan struct{} // there are results; holds 1

	mu sync.Mutex
	queues
	results []*item
	stuck   map[*queue][]*sinkCall // left behind, their sinks not back; the oldest first
	running sync.WaitGroup

	overdue    *atomic.Int64 // deliveries left behind, since the start
	leftBehind *atomic.Int64 // of those, sinks that have not returned
}

// worker is a goroutine that calls a sink, for one message after the other.
type worker struct {
	timer *time.Timer // of the call: until it is slow, and then until it is left behind; a new one for each would cost more
	call  *sinkCall   // under the dispatcher's lock; nil: none
}

// sinkCall is one call of a sink. All of it is under the dispatcher's lock.
type sinkCall struct {
	queue   *queue
	it      *item // of no meaning any more once it is answered: another may be reading it
	tenant  *tenant
	bytes   int64
	message driver.Delivery // a copy: the item's may be changed once it is answered
	due     time.Time       // when the worker's timer is to end

	slow     bool
	answered bool // the message has its outcome
	freed    bool // the slot is another's
}

func newDispatcher(l limits, clock func() int64) *dispatcher {
	d := &dispatcher{
		clock: clock, timedOut: fmt.Errorf("timed out after %v", l.timeout), wake: make(chan struct{}, 1), queues: queues{limits: l, bytes: map[string]int64{}},
		stuck: map[*queue][]*sinkCall{}, overdue: new(atomic.Int64), leftBehind: new(atomic.Int64),
	}
	d.ctx, d.stop = context.WithCancelCause(context.Background())
	return d
}

// newQueue makes the queue of a sink.
func (d *dispatcher) newQueue(sink Sink) *queue {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.add(sink)
}

// offer hands messages on, and returns those whose queue is full. It never blocks. Deliveries begin when all of
// them wait: so a slot has a next one, and goes on with it in the same goroutine.
func (d *dispatcher) offer(items ...*item) (refused []*item) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, it := range items {
		if !it.queue.put(it) {
			refused = append(refused, it)
		}
	}
	for _, q := range d.all {
		d.fill(q)
	}
	return refused
}

// accepts reports whether the queue takes one more message of a namespace, beside so many that
// are coming.
func (d *dispatcher) accepts(q *queue, namespace string, coming int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return q.accepts(namespace, coming)
}

// room is how many more messages the queue takes.
func (d *dispatcher) room(q *queue) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.capacity - q.ready
}

// collect returns the messages whose delivery has ended since the last call.
func (d *dispatcher) collect() []*item {
	d.mu.Lock()
	defer d.mu.Unlock()
	results := d.results
	d.results = nil
	return results
}

// withdraw takes back all that waits, so that only what runs is left.
func (d *dispatcher) withdraw() []*item {
	d.mu.Lock()
	defer d.mu.Unlock()
	var items []*item
	for _, q := range d.all {
		items = append(items, q.withdraw()...)
	}
	return items
}

// crowds returns the queues in which namespaces wait for a spare slot while all are in use.
func (d *dispatcher) crowds() []crowd {
	d.mu.Lock()
	defer d.mu.Unlock()
	var crowds []crowd
	for _, q := range d.all {
		if c := q.crowd(); c.waiting > 0 {
			crowds = append(crowds, c)
		}
	}
	return crowds
}

// takeBack takes messages that wait out of the queues again: see queues.takeBack.
func (d *dispatcher) takeBack(need int64, held map[string]int64) []*item {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.queues.takeBack(need, held)
}

// fill begins deliveries in the slots that are free.
func (d *dispatcher) fill(q *queue) {
	for it := q.take(); it != nil; it = q.take() {
		d.running.Add(1)
		go d.deliver(q, it)
	}
}

// fillAll begins what can run where bytes came free.
func (d *dispatcher) fillAll() {
	if !d.refill {
		return
	}
	d.refill = false
	for _, q := range d.all {
		d.fill(q)
	}
}

// deliver delivers a message, and then others, as long as there is one for its slot.
func (d *dispatcher) deliver(q *queue, it *item) {
	w := &worker{}
	defer func() {
		if w.call != nil { // by runtime.Goexit: the slot goes on in another goroutine
			if it = d.finish(w, judge(errGone)); it != nil {
				go d.deliver(q, it)
				return
			}
		}
		d.running.Done()
	}()
	for it != nil {
		m := d.start(w, q, it)
		it = d.finish(w, d.call(q.sink, it, m))
	}
}

// call delivers one message, under the time-out. A sink that panics has failed; so has
// one whose error panics when it is read.
func (d *dispatcher) call(sink Sink, it *item, m driver.Delivery) (o outcome) {
	ctx, cancel := context.WithCancelCause(d.ctx)
	defer cancel(nil)
	it.cancel.Store(&cancel)
	switch {
	case it.lost.Load():
		return judge(Undelivered(errLost))
	case d.ctx.Err() != nil:
		return judge(Undelivered(errStopping))
	case d.clock() >= it.leased.Load():
		return judge(Undelivered(errStale))
	}
	ctx, done := context.WithTimeoutCause(ctx, d.timeout, d.timedOut)
	defer done()
	defer func() {
		if p := recover(); p != nil {
			o = judge(fmt.Errorf("the sink panicked: %v\n%s", p, debug.Stack()))
		}
	}()
	it.started.Store(d.clock())
	o = judge(sink.Deliver(ctx, m))
	if o.err != nil && context.Cause(ctx) == d.timedOut && !strings.Contains(o.reason, d.timedOut.Error()) {
		o.reason = d.timedOut.Error() + ": " + o.reason // most sinks return ctx.Err(), or what broke by its end
	}
	if (o.verdict == toRetry || o.verdict == toFailDestination) && d.ctx.Err() != nil {
		o.verdict = toRelease // this node's stop interrupted it: no fault of the message
	}
	// What does not answer in time is the namespace's own, until it is known better: some tenants' handlers
	// that hang are no reason to hold all others.
	o.shared = o.verdict == toFailDestination && context.Cause(ctx) != d.timedOut && shares(sink, m.TaskQueue)
	return o
}

// start begins a delivery's time.
func (d *dispatcher) start(w *worker, q *queue, it *item) driver.Delivery {
	d.mu.Lock()
	defer d.mu.Unlock()
	w.call = &sinkCall{queue: q, it: it, tenant: q.tenants[it.Namespace], bytes: it.bytes, message: it.Delivery}
	d.outlastsAfter(w, d.slow)
	return w.call.message
}

// outlastsAfter sets the worker's timer.
func (d *dispatcher) outlastsAfter(w *worker, wait time.Duration) {
	w.call.due = time.Now().Add(wait)
	if w.timer == nil {
		w.timer = time.AfterFunc(wait, func() { d.outlasted(w) })
		return
	}
	w.timer.Reset(wait)
}

// outlasted notes that a delivery has turned slow, or gives it up where it has outlived its time-out.
func (d *dispatcher) outlasted(w *worker) {
	d.mu.Lock()
	defer d.mu.Unlock()
	call := w.call
	switch {
	case call == nil || call.answered:
	case time.Now().Before(call.due): // the timer ended for the call before, which finished at that moment
	case call.slow:
		d.leaveBehind(call)
	default:
		call.slow = true
		call.queue.turnSlow(call.tenant, call.message.Destination())
		d.outlastsAfter(w, d.timeout+graceTime-d.slow)
		d.fill(call.queue)
	}
}

// answer gives a message its outcome, once; the first counts.
func (d *dispatcher) answer(call *sinkCall, o outcome) {
	call.answered = true
	o.ended = d.clock()
	if o.verdict != toRelease && !call.it.lost.Load() { // else it says nothing of the namespace
		call.queue.setHangs(call.tenant, call.slow && (o.verdict == toRetry || o.verdict == toFailDestination))
	}
	switch o.verdict {
	case toFailDestination:
		call.queue.close(call.it, call.message.Destination(), o.shared)
	case toComplete, settledBySink:
		call.queue.reached(call.message.Destination())
	}
	call.it.outcome = o
	d.results = append(d.results, call.it)
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// leaveBehind gives up a delivery that has outlived its time-out.
func (d *dispatcher) leaveBehind(call *sinkCall) {
	o := judge(fmt.Errorf("timed out after %v, and the sink did not return within %v more", d.timeout, graceTime))
	o.overdue = true
	d.answer(call, o)
	d.overdue.Add(1)
	d.leftBehind.Add(1)
	d.stuck[call.queue] = append(d.stuck[call.queue], call)
	d.freeStuck(call.queue)
	d.fillAll()
}

// freeStuck gives the slots of deliveries that were left behind to others, the oldest first, as
// long as not too many of them have lost theirs.
func (d *dispatcher) freeStuck(q *queue) {
	freed := 0
	for _, call := range d.stuck[q] {
		if call.freed {
			freed++
		}
	}
	for _, call := range d.stuck[q] {
		if freed < d.slots && !call.freed {
			freed++
			d.free(call)
		}
	}
	d.fill(q)
}

// free counts a delivery as no longer running.
func (d *dispatcher) free(call *sinkCall) {
	call.freed = true
	call.queue.free(call.tenant, call.message.Destination(), call.bytes, call.slow)
}

// finish ends a delivery whose sink has returned, and returns the next message for its slot.
func (d *dispatcher) finish(w *worker, o outcome) *item {
	w.timer.Stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	call := w.call
	w.call = nil
	late := call.answered
	if late {
		d.leftBehind.Add(-1)
		d.stuck[call.queue] = slices.DeleteFunc(d.stuck[call.queue], func(other *sinkCall) bool { return other == call })
	} else {
		d.answer(call, o)
	}
	var next *item
	if !call.freed {
		d.free(call)
		next = call.queue.take()
	}
	if late {
		d.freeStuck(call.queue)
	}
	d.fill(call.queue)
	d.fillAll()
	return next
}
