package node

import (
	"fmt"
	"slices"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

// A sink may not listen to its context. So a delivery that has not come back `grace` after its
// time-out is left behind: its message counts as timed out, its slot goes on with the next one, and
// what the sink says in the end is nobody's. The goroutine that waits for the sink stays, and
// with it the payload, which the budget counts no more. So no more than `slots` of a queue
// are left behind without their slots: of those beyond, the slot comes back only
// when the sink does. A sink that never returns ends so with all of its slots in use,
// 2 * slots goroutines and payloads at most, and holds up its own queue and nothing else; a
// namespace holds its share of the slots as before.

// sinkCall is one call of a sink. All of it but the timer is under the dispatcher's lock.
type sinkCall struct {
	q        *queue
	it       *item // of no meaning any more once it is answered: another may be reading it
	tenant   *tenant
	bytes    int64
	message  driver.Delivery // a copy: the item's may be changed once it is answered
	backstop *time.Timer

	answered bool // the message has its outcome
	freed    bool // the slot is another's
}

// start begins a delivery's time.
func (q *queue) start(it *item) *sinkCall {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	call := &sinkCall{q: q, it: it, tenant: q.tenants[it.Namespace], bytes: it.bytes, message: it.Delivery}
	call.backstop = time.AfterFunc(q.d.timeout+grace, func() { q.leaveBehind(call) })
	return call
}

// answer gives a message its outcome, once; the first counts.
func (d *dispatcher) answer(call *sinkCall, o outcome) {
	call.answered = true
	call.it.outcome = o
	d.results = append(d.results, call.it)
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// leaveBehind gives up a delivery that has outlived its time-out.
func (q *queue) leaveBehind(call *sinkCall) {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	if call.answered {
		return
	}
	o := judge(fmt.Errorf("timed out after %v, and the sink did not return within %v more", q.d.timeout, grace))
	o.overdue = true
	q.d.answer(call, o)
	q.d.overdue.Add(1)
	q.d.leftBehind.Add(1)
	q.stuck = append(q.stuck, call)
	q.freeStuck()
	q.d.fillAll()
}

// freeStuck gives the slots of deliveries that were left behind to others, the oldest first, as
// long as not too many of them have lost theirs.
func (q *queue) freeStuck() {
	freed := 0
	for _, call := range q.stuck {
		if call.freed {
			freed++
		}
	}
	for _, call := range q.stuck {
		if freed < q.d.slots && !call.freed {
			freed++
			q.free(call)
		}
	}
	q.fill()
}

// free counts a delivery as no longer running. Where bytes kept more of its namespace waiting
// than one slot takes, all queues look for what can run.
func (q *queue) free(call *sinkCall) {
	call.freed = true
	t := call.tenant
	full := q.d.bytes[t.namespace] >= q.d.shareBytes
	q.d.count(t.namespace, -1)
	t.running--
	q.running--
	if q.d.bytes[t.namespace] -= call.bytes; q.d.bytes[t.namespace] == 0 {
		delete(q.d.bytes, t.namespace)
	}
	q.d.count(t.namespace, +1)
	if t.running == 0 && len(t.waiting) == 0 {
		delete(q.tenants, t.namespace)
	}
	if full {
		q.d.refill = true
	}
}

// finish ends a delivery whose sink has returned, and returns the next message for its slot.
func (q *queue) finish(call *sinkCall, o outcome) *item {
	call.backstop.Stop()
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	late := call.answered
	if late {
		q.d.leftBehind.Add(-1)
		q.stuck = slices.DeleteFunc(q.stuck, func(other *sinkCall) bool { return other == call })
	} else {
		q.d.answer(call, o)
	}
	var next *item
	if !call.freed {
		q.free(call)
		next = q.take()
	}
	if late {
		q.freeStuck()
	}
	q.d.fillAll()
	return next
}

// fillAll begins what can run where bytes came free.
func (d *dispatcher) fillAll() {
	if !d.refill {
		return
	}
	d.refill = false
	for _, q := range d.queues {
		q.fill()
	}
}
