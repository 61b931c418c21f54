package node

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

// item is a claimed message on its way through the process.
type item struct {
	driver.Delivery
	bytes   int64  // of its payload: its part of the budget, while they count there
	counted bool   // its bytes count in the budget; the ledger's own, like the next one
	place   place  // where it is, or was last
	misread int    // how often its payload could not be read
	queue   *queue // where it is delivered
	outcome        // of the delivery; read once it is in dispatcher.results

	lost    atomic.Bool  // the claim is no longer ours: not worth delivering any more
	leased  atomic.Int64 // until when the lease surely holds, in dispatcher.clock time
	started atomic.Int64 // when the delivery began, in dispatcher.clock time; 0: not yet
	cancel  atomic.Pointer[context.CancelCauseFunc]
}

// place is where a message in flight is; the ledger's table says what each means.
type place int

const (
	suspect place = iota
	stashed
	parked
	unread
	out
)

var errLost = errors.New("the claim was lost")

// lose stops the delivery of a message whose claim is no longer ours.
func (it *item) lose() {
	it.lost.Store(true)
	if cancel := it.cancel.Load(); cancel != nil {
		(*cancel)(errLost)
	}
}

// limits are how much a dispatcher does at a time.
type limits struct {
	slots      int           // deliveries, a queue
	shareSlots int           // of those, at most so many of one namespace
	shareBytes int64         // no delivery of a namespace begins while it has as many under way, in all queues
	capacity   int           // messages waiting that could run if a slot were free, a queue
	timeout    time.Duration // one delivery
}

// queues are the queues of all sinks, and what they share. All of it is under the dispatcher's
// lock.
type queues struct {
	limits
	all   []*queue
	bytes map[string]int64 // payload bytes being delivered, by namespace; none at 0
}

// queue is what waits for one sink, and how much of it runs. A slot that is free takes the next
// message, in turn from each namespace that has not used up its share: of the slots, and of the
// bytes that all queues deliver. So a namespace whose deliveries hang holds its share and no
// more, and what it has waiting is in nobody's way: it does not even count against the
// bound.
type queue struct {
	queues  *queues
	sink    Sink
	tenants map[string]*tenant
	ring    []*tenant // those with something waiting
	next    int       // whose turn it is, in ring
	ready   int       // messages waiting of namespaces below their share
	running int
}

// tenant is a namespace's part of a queue.
type tenant struct {
	namespace string
	waiting   []*item
	running   int
}

func (qs *queues) add(sink Sink) *queue {
	q := &queue{queues: qs, sink: sink, tenants: map[string]*tenant{}}
	qs.all = append(qs.all, q)
	return q
}

// open reports whether a namespace is below its share.
func (q *queue) open(t *tenant) bool {
	return t.running < q.queues.shareSlots && q.queues.bytes[t.namespace] < q.queues.shareBytes
}

// countReady adds the messages that a namespace has waiting to what is ready, in each queue where
// the namespace is below its share. With the sign -1 it takes them off. What a namespace runs
// may put it above its share, or below: so they are taken off before a change of that, and added
// after it.
func (qs *queues) countReady(namespace string, sign int) {
	for _, q := range qs.all {
		if t := q.tenants[namespace]; t != nil && q.open(t) {
			q.ready += sign * len(t.waiting)
		}
	}
}

// put adds a message to those that wait, or refuses it where the queue is full.
func (q *queue) put(it *item) bool {
	t := q.tenants[it.Namespace]
	if t == nil {
		t = &tenant{namespace: it.Namespace}
	}
	if q.open(t) {
		if q.ready >= q.queues.capacity {
			return false
		}
		q.ready++
	}
	q.tenants[it.Namespace] = t
	if len(t.waiting) == 0 {
		q.ring = append(q.ring, t)
	}
	t.waiting = append(t.waiting, it)
	return true
}

// accepts reports whether the queue takes one more message of a namespace, beside so many that
// are coming.
func (q *queue) accepts(namespace string, coming int) bool {
	t := q.tenants[namespace]
	return t != nil && !q.open(t) || q.ready+coming < q.queues.capacity
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
		q.queues.countReady(t.namespace, -1)
		t.waiting[0] = nil
		t.waiting = t.waiting[1:]
		q.running++
		t.running++
		q.queues.bytes[t.namespace] += it.bytes
		q.queues.countReady(t.namespace, +1)
		if len(t.waiting) == 0 {
			q.ring = append(q.ring[:q.next], q.ring[q.next+1:]...)
		} else {
			q.next++
		}
		return it
	}
	return nil
}

// free counts one of a namespace's messages as no longer running. It reports whether the namespace
// was at its share of bytes: then what comes free may be more than one slot takes, and other
// queues may have something to run.
func (q *queue) free(t *tenant, bytes int64) (full bool) {
	full = q.queues.bytes[t.namespace] >= q.queues.shareBytes
	q.queues.countReady(t.namespace, -1)
	t.running--
	q.running--
	if q.queues.bytes[t.namespace] -= bytes; q.queues.bytes[t.namespace] == 0 {
		delete(q.queues.bytes, t.namespace)
	}
	q.queues.countReady(t.namespace, +1)
	if t.running == 0 && len(t.waiting) == 0 {
		delete(q.tenants, t.namespace)
	}
	return full
}

// withdraw takes out all that waits, so that only what runs is left.
func (q *queue) withdraw() []*item {
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

// takeBack takes out messages that wait, until their payloads come to need bytes. It takes nothing
// where all waiting payloads together are less than that. It takes first from whoever holds most,
// and there the message whose delivery is furthest off. held is the payload bytes in flight of each namespace; those taken are taken off.
func (qs *queues) takeBack(need int64, held map[string]int64) []*item {
	lines := map[string][]*item{}
	waiting := int64(0)
	for _, q := range qs.all {
		for _, t := range q.ring {
			for _, it := range t.waiting {
				if it.bytes > 0 {
					lines[t.namespace] = append(lines[t.namespace], it)
					waiting += it.bytes
				}
			}
		}
	}
	if waiting < need {
		return nil
	}
	taken := map[*item]bool{}
	for need > 0 {
		largest := ""
		for namespace := range lines {
			if largest == "" || held[namespace] > held[largest] || held[namespace] == held[largest] && namespace < largest {
				largest = namespace
			}
		}
		line := lines[largest]
		it := line[len(line)-1]
		if lines[largest] = line[:len(line)-1]; len(line) == 1 {
			delete(lines, largest)
		}
		taken[it] = true
		held[largest] -= it.bytes
		need -= it.bytes
	}
	var items []*item
	for _, q := range qs.all {
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
