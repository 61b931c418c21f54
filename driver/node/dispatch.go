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

// item is a claimed message on its way through the process.
type item struct {
	driver.Delivery
	bytes   int64  // of its payload: its part of the budget, while it counts there
	counted bool   // its bytes count in the budget; the loop's own, like the next two
	parked  bool   // its payload is not held
	misread int    // how often its payload could not be read
	queue   *queue // where it is delivered
	outcome        // of the delivery; read once it is in dispatcher.results

	lost    atomic.Bool  // the claim is no longer ours: not worth delivering any more
	leased  atomic.Int64 // until when the lease surely holds, in dispatcher.clock time
	started atomic.Int64 // when the delivery began, in dispatcher.clock time; 0: not yet
	cancel  atomic.Pointer[context.CancelCauseFunc]
}

var (
	errLost     = errors.New("the claim was lost")
	errStopping = errors.New("the node is stopping")
	errStale    = errors.New("the lease may have run out before the delivery began")
	errGone     = errors.New("the sink ended its goroutine")
)

// dispatcher hands messages to sinks. Each sink has a queue, bounded, and a number of
// dispatch slots. Offering never blocks; a slot that is free takes the next message, in
// turn from each namespace that has not used up its share: of the slots, and of the bytes
// that all queues deliver. So a namespace whose deliveries hang holds its share and no
// more, and what it has waiting is in nobody's way: it does not even count against the
// bound.
//
// A goroutine lives while it has messages to deliver. The lock is held for bookkeeping
// only, never while a sink works.
type dispatcher struct {
	limits
	clock func() int64 // monotonic nanoseconds

	ctx  context.Context // of all deliveries
	stop context.CancelCauseFunc
	wake chan struct{} // there are results; holds 1

	mu      sync.Mutex
	queues  []*queue
	bytes   map[string]int64 // payload bytes being delivered, by namespace; none at 0
	results []*item
	refill  bool // bytes came free that kept messages waiting, maybe in several queues
	running sync.WaitGroup

	overdue    *atomic.Int64 // deliveries left behind, since the start
	leftBehind *atomic.Int64 // of those, sinks that have not returned
}

// limits are how much a dispatcher does at a time.
type limits struct {
	slots      int           // deliveries, a queue
	share      int           // of those, at most so many of one namespace
	shareBytes int64         // no delivery of a namespace begins while it has as many under way, in all queues
	capacity   int           // messages waiting that could run if a slot were free, a queue
	timeout    time.Duration // one delivery
}

func newDispatcher(l limits, clock func() int64) *dispatcher {
	d := &dispatcher{limits: l, clock: clock, wake: make(chan struct{}, 1), bytes: map[string]int64{}, overdue: new(atomic.Int64), leftBehind: new(atomic.Int64)}
	d.ctx, d.stop = context.WithCancelCause(context.Background())
	return d
}

// queue is what waits for one sink, and how much of it runs. All of it is under the
// dispatcher's lock.
type queue struct {
	d       *dispatcher
	sink    Sink
	tenants map[string]*tenant
	ring    []*tenant // those with something waiting
	next    int       // whose turn it is, in ring
	ready   int       // messages waiting of namespaces below their share
	running int
	stuck   []*sinkCall // left behind by the backstop, their sinks not back; the oldest first

	coming int     // messages whose payloads are being read for it; this and the next are the loop's own
	stash  []*item // claimed for it while it was full
}

// tenant is a namespace's part of a queue.
type tenant struct {
	namespace string
	waiting   []*item
	running   int
}

func (d *dispatcher) newQueue(sink Sink) *queue {
	q := &queue{d: d, sink: sink, tenants: map[string]*tenant{}}
	d.queues = append(d.queues, q)
	return q
}

// open reports whether a namespace is below its share.
func (q *queue) open(t *tenant) bool {
	return t.running < q.d.share && q.d.bytes[t.namespace] < q.d.shareBytes
}

// count adds a namespace's waiting messages to what is ready in each queue where it is
// below its share, or with -1 takes them off: before and after a change of what it runs.
func (d *dispatcher) count(namespace string, sign int) {
	for _, q := range d.queues {
		if t := q.tenants[namespace]; t != nil && q.open(t) {
			q.ready += sign * len(t.waiting)
		}
	}
}

// offer hands a message on, or refuses it where the queue is full. It never blocks.
func (q *queue) offer(it *item) bool {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	t := q.tenants[it.Namespace]
	if t == nil {
		t = &tenant{namespace: it.Namespace}
	}
	if q.open(t) {
		if q.ready >= q.d.capacity {
			return false
		}
		q.ready++
	}
	q.tenants[it.Namespace] = t
	if len(t.waiting) == 0 {
		q.ring = append(q.ring, t)
	}
	t.waiting = append(t.waiting, it)
	q.fill()
	return true
}

// fill begins deliveries in the slots that are free.
func (q *queue) fill() {
	for q.running < q.d.slots {
		it := q.take()
		if it == nil {
			return
		}
		q.d.running.Add(1)
		go q.deliver(it)
	}
}

// accepts reports whether the queue takes one more message of a namespace, beside those that
// are coming.
func (q *queue) accepts(namespace string) bool {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	t := q.tenants[namespace]
	return t != nil && !q.open(t) || q.ready+q.coming < q.d.capacity
}

// room is how many more messages the queue takes.
func (q *queue) room() int {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	return q.d.capacity - q.ready
}

// take picks the next message to run, nil if there is none, and counts it as running.
func (q *queue) take() *item {
	for range q.ring {
		if q.next >= len(q.ring) {
			q.next = 0
		}
		t := q.ring[q.next]
		if !q.open(t) {
			q.next++
			continue
		}
		it := t.waiting[0]
		q.d.count(t.namespace, -1)
		t.waiting[0] = nil
		t.waiting = t.waiting[1:]
		q.running++
		t.running++
		q.d.bytes[t.namespace] += it.bytes
		q.d.count(t.namespace, +1)
		if len(t.waiting) == 0 {
			q.ring = append(q.ring[:q.next], q.ring[q.next+1:]...)
		} else {
			q.next++
		}
		return it
	}
	return nil
}

// deliver delivers a message, and then others, as long as there is one for its slot.
func (q *queue) deliver(it *item) {
	var call *sinkCall
	defer func() {
		if call != nil { // by runtime.Goexit: the slot goes on in another goroutine
			if it = q.finish(call, judge(errGone)); it != nil {
				go q.deliver(it)
				return
			}
		}
		q.d.running.Done()
	}()
	for it != nil {
		call = q.start(it)
		o := q.d.call(q.sink, it, call.message)
		it = q.finish(call, o)
		call = nil
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
	timedOut := fmt.Errorf("timed out after %v", d.timeout)
	ctx, done := context.WithTimeoutCause(ctx, d.timeout, timedOut)
	defer done()
	defer func() {
		if p := recover(); p != nil {
			o = judge(fmt.Errorf("the sink panicked: %v\n%s", p, debug.Stack()))
		}
	}()
	it.started.Store(d.clock())
	o = judge(sink.Deliver(ctx, m))
	if o.err != nil && context.Cause(ctx) == timedOut && !strings.Contains(o.reason, timedOut.Error()) {
		o.reason = timedOut.Error() + ": " + o.reason // most sinks return ctx.Err(), or what broke by its end
	}
	if o.verdict == again && d.ctx.Err() != nil {
		o.verdict = untried // this node's stop interrupted it: no fault of the message
	}
	return o
}

// lose stops the delivery of a message whose claim is no longer ours.
func (it *item) lose() {
	it.lost.Store(true)
	if cancel := it.cancel.Load(); cancel != nil {
		(*cancel)(errLost)
	}
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
func (q *queue) withdraw() []*item {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	var waiting []*item
	for _, t := range q.ring {
		waiting = append(waiting, t.waiting...)
		t.waiting = nil
		if t.running == 0 {
			delete(q.tenants, t.namespace)
		}
	}
	q.ring, q.ready = nil, 0
	return waiting
}

// takeBack takes messages that wait out of the queues again, until their payloads come to
// need bytes; none, where all that wait would not come to that. Whoever holds most gives
// first, and of that what would be delivered last. held is the payload bytes in flight of
// each namespace; those taken are taken off.
func (d *dispatcher) takeBack(need int64, held map[string]int64) []*item {
	d.mu.Lock()
	defer d.mu.Unlock()
	lines := map[string][]*item{}
	all := int64(0)
	for _, q := range d.queues {
		for _, t := range q.ring {
			for _, it := range t.waiting {
				if it.bytes > 0 {
					lines[t.namespace] = append(lines[t.namespace], it)
					all += it.bytes
				}
			}
		}
	}
	if all < need {
		return nil
	}
	taken := map[*item]bool{}
	for need > 0 {
		most := ""
		for namespace := range lines {
			if most == "" || held[namespace] > held[most] || held[namespace] == held[most] && namespace < most {
				most = namespace
			}
		}
		line := lines[most]
		it := line[len(line)-1]
		if lines[most] = line[:len(line)-1]; len(line) == 1 {
			delete(lines, most)
		}
		taken[it] = true
		held[most] -= it.bytes
		need -= it.bytes
	}
	var items []*item
	for _, q := range d.queues {
		items = append(items, q.remove(taken)...)
	}
	return items
}

// remove takes messages that wait out of the queue, and returns them, the oldest of a
// namespace first.
func (q *queue) remove(taken map[*item]bool) []*item {
	var items []*item
	for i := 0; i < len(q.ring); {
		t := q.ring[i]
		before := len(t.waiting)
		t.waiting = slices.DeleteFunc(t.waiting, func(it *item) bool {
			if taken[it] {
				items = append(items, it)
			}
			return taken[it]
		})
		if q.open(t) {
			q.ready -= before - len(t.waiting)
		}
		if len(t.waiting) > 0 {
			i++
			continue
		}
		q.ring = slices.Delete(q.ring, i, i+1)
		if i < q.next {
			q.next--
		}
		if t.running == 0 {
			delete(q.tenants, t.namespace)
		}
	}
	return items
}
