package node

import (
	"slices"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

// limits are how much a dispatcher does at a time.
type limits struct {
	slots      int           // deliveries, a queue
	spare      int           // deliveries above that, a queue, but no more than are slow
	shareSlots int           // of slots, at most so many of one namespace, and of all that hang together
	shareBytes int64         // no delivery of a namespace begins while it has as many under way, in all queues; none of one that hangs, while all of these have
	capacity   int           // messages waiting that could run if a slot were free, a queue
	timeout    time.Duration // one delivery
	slow       time.Duration // a delivery that has lasted so long is slow
}

// queues are the queues of all sinks, and what they share. All of it is under the dispatcher's
// lock.
type queues struct {
	limits
	all          []*queue
	bytes        map[string]int64 // payload bytes being delivered, by namespace; none at 0
	hangingBytes int64            // those of namespaces in queues where they hang
	refill       bool             // bytes came free that kept messages waiting, maybe in several queues
}

// queue is what waits for one sink, and how much of it runs. A slot that is free takes the next
// message, in turn from each namespace that has not used up its share: of the slots, and of the
// bytes that all queues deliver. So a namespace whose deliveries hang holds its share and no
// more.
//
// Several such namespaces fill the slots. So there are spare slots, and each delivery that turns
// slow opens one of them. A spare slot takes a message of a namespace that has nothing under way
// in the queue, again in turn. In a queue whose deliveries are quick, the slots are the bound.
//
// A namespace hangs in a queue from a delivery that was slow and failed to the first one that
// succeeds, or fails sooner. Namespaces that hang get no spare slot, and all of them together have
// the share of one. So each can hold a spare slot until its first delivery has timed out. From then
// on the rest of the slots and the spare ones are the others', whatever number of namespaces hangs.
//
// Messages whose destination is in trouble are passed over, as its gate says: see gates.
//
// What waits of a namespace that is at its share, or hangs, or has a slow delivery under way, or a gate, does
// not count against the bound of the queue: it is in nobody's way, and would keep the node from
// claiming for others. The quota of the namespace bounds it.
type queue struct {
	queues  *queues
	sink    Sink
	tenants map[string]*tenant
	ring    []*tenant           // those with something waiting: who has had no turn for longest comes first
	ready   int                 // messages waiting that count against the bound
	running int                 // deliveries under way
	slow    int                 // those of them that are slow
	hanging int                 // those of them of namespaces that hang
	hung    map[string]struct{} // namespaces that hang, and have nothing in the queue now
	gates   gates
}

// maxHung is how many namespaces a queue remembers that hang and have nothing in it. One that it
// has forgotten can hold a spare slot once more.
const maxHung = 10_000

// tenant is a namespace's part of a queue.
type tenant struct {
	namespace string
	waiting   []*item
	running   int
	bytes     int64 // of what runs
	slow      int   // deliveries under way that are slow
	hangs     bool
}

func (qs *queues) add(sink Sink) *queue {
	q := &queue{queues: qs, sink: sink, tenants: map[string]*tenant{}, hung: map[string]struct{}{}, gates: newGates()}
	qs.all = append(qs.all, q)
	return q
}

// belowShare reports whether a namespace has not used up its share.
func (q *queue) belowShare(t *tenant) bool {
	return t.running < q.queues.shareSlots && q.queues.bytes[t.namespace] < q.queues.shareBytes
}

// mayRun reports whether a namespace may have a slot that is free.
func (q *queue) mayRun(t *tenant) bool {
	return q.belowShare(t) &&
		!(t.hangs && (q.hanging >= q.queues.shareSlots || q.queues.hangingBytes >= q.queues.shareBytes))
}

// mayHaveSpare reports whether a namespace may have a spare slot that is open.
func (q *queue) mayHaveSpare(t *tenant) bool {
	return t.running == 0 && !t.hangs && q.belowShare(t)
}

// counts reports whether what a namespace has waiting counts against the bound of the queue.
func (q *queue) counts(t *tenant) bool {
	return q.belowShare(t) && t.slow == 0 && !t.hangs && q.gates.own[t.namespace] == 0
}

// change changes something of a namespace that decides whether its messages count, here or, by its
// bytes, in any queue: so they are taken off before the change, and counted after it.
func (q *queue) change(t *tenant, do func()) {
	q.queues.countReady(t.namespace, -1)
	do()
	q.queues.countReady(t.namespace, +1)
}

// countReady adds the messages that a namespace has waiting to what is ready, in each queue where
// they count. With the sign -1 it takes them off.
func (qs *queues) countReady(namespace string, sign int) {
	for _, q := range qs.all {
		if t := q.tenants[namespace]; t != nil && q.counts(t) {
			q.ready += sign * len(t.waiting)
		}
	}
}

// put adds a message to those that wait, or refuses it where the queue is full. A probe is never refused: it
// goes first, before what waits of its namespace.
func (q *queue) put(it *item) bool {
	t := q.tenant(it.Namespace)
	if !it.Probe && !q.takes(t, 0) {
		return false
	}
	q.tenants[it.Namespace] = t
	delete(q.hung, it.Namespace)
	if len(t.waiting) == 0 {
		q.ring = append(q.ring, t)
	}
	if it.Probe {
		t.waiting = slices.Insert(t.waiting, 0, it)
	} else {
		t.waiting = append(t.waiting, it)
	}
	if q.counts(t) {
		q.ready++
	}
	q.arrived(it)
	return true
}

// accepts reports whether the queue takes one more message of a namespace, beside so many that
// are coming.
func (q *queue) accepts(namespace string, coming int) bool {
	return q.takes(q.tenant(namespace), coming)
}

func (q *queue) takes(t *tenant, coming int) bool {
	return !q.counts(t) || q.ready+coming < q.queues.capacity
}

// tenant returns a namespace's part of the queue. One that has nothing in it has no record: it gets a
// new one, which is not kept.
func (q *queue) tenant(namespace string) *tenant {
	if t := q.tenants[namespace]; t != nil {
		return t
	}
	_, hangs := q.hung[namespace]
	return &tenant{namespace: namespace, hangs: hangs}
}

// take picks the next message to run, nil if there is none or no slot for it, and counts it as
// running.
func (q *queue) take() *item {
	switch {
	case q.running < q.queues.slots:
		return q.pick(q.mayRun)
	case q.running < q.queues.slots+min(q.queues.spare, q.slow):
		return q.pick(q.mayHaveSpare)
	}
	return nil
}

// pick takes a message of the first namespace that may run one. Those that may not keep their
// turn.
func (q *queue) pick(may func(*tenant) bool) *item {
	for i, t := range q.ring {
		if !may(t) {
			continue
		}
		first := q.gates.first(t.waiting)
		if first < 0 {
			continue
		}
		q.ring = slices.Delete(q.ring, i, i+1)
		if len(t.waiting) > 1 {
			q.ring = append(q.ring, t)
		}
		return q.begin(t, first)
	}
	return nil
}

// begin counts one of the messages that a namespace has waiting as running.
func (q *queue) begin(t *tenant, i int) *item {
	it := t.waiting[i]
	q.change(t, func() {
		if i == 0 { // the usual one
			t.waiting[0] = nil
			t.waiting = t.waiting[1:]
		} else {
			t.waiting = slices.Delete(t.waiting, i, i+1)
		}
		q.countRunning(t, 1, it.bytes)
		q.gates.countUnderWay(it.Destination(), 1, 0)
	})
	return it
}

// countRunning adds deliveries and their bytes to what runs.
func (q *queue) countRunning(t *tenant, n int, bytes int64) {
	q.running += n
	t.running += n
	t.bytes += bytes
	if t.hangs {
		q.hanging += n
		q.queues.hangingBytes += bytes
	}
	if q.queues.bytes[t.namespace] += bytes; q.queues.bytes[t.namespace] == 0 {
		delete(q.queues.bytes, t.namespace)
	}
}

// turnSlow counts a delivery of a namespace as slow, which opens a spare slot.
func (q *queue) turnSlow(t *tenant, to driver.Destination) {
	q.change(t, func() {
		q.slow++
		t.slow++
		q.gates.countUnderWay(to, -1, 1)
	})
}

// setHangs notes whether a namespace hangs.
func (q *queue) setHangs(t *tenant, hangs bool) {
	if t.hangs == hangs {
		return
	}
	q.change(t, func() {
		q.noteFull(t)
		if t.hangs = hangs; hangs {
			q.hanging += t.running
			q.queues.hangingBytes += t.bytes
		} else {
			q.hanging -= t.running
			q.queues.hangingBytes -= t.bytes
		}
	})
}

// free counts one of a namespace's messages as no longer running.
func (q *queue) free(t *tenant, to driver.Destination, bytes int64, slow bool) {
	q.change(t, func() {
		q.noteFull(t)
		q.countRunning(t, -1, -bytes)
		if slow {
			q.slow--
			t.slow--
			q.gates.countUnderWay(to, 0, -1)
		} else {
			q.gates.countUnderWay(to, -1, 0)
		}
	})
	q.forget(t)
}

// noteFull notes that bytes of a namespace come free, where its share of them was used up: then
// more may begin than the slot takes that comes free, and in other queues, too.
func (q *queue) noteFull(t *tenant) {
	qs := q.queues
	if qs.bytes[t.namespace] >= qs.shareBytes || t.hangs && qs.hangingBytes >= qs.shareBytes {
		qs.refill = true
	}
}

// forget drops the record of a namespace that has nothing in the queue. That it hangs is kept.
func (q *queue) forget(t *tenant) {
	if t.running > 0 || len(t.waiting) > 0 {
		return
	}
	delete(q.tenants, t.namespace)
	if !t.hangs {
		return
	}
	if len(q.hung) >= maxHung {
		for namespace := range q.hung { // whichever comes first
			delete(q.hung, namespace)
			break
		}
	}
	q.hung[t.namespace] = struct{}{}
}

// withdraw takes out all that waits, so that only what runs is left.
func (q *queue) withdraw() []*item {
	var waiting []*item
	for _, t := range q.ring {
		waiting = append(waiting, t.waiting...)
		t.waiting = nil
		q.forget(t)
	}
	q.ring, q.ready = nil, 0
	return waiting
}

// takeBack takes out messages that wait, until their payloads come to need bytes. It takes nothing
// where all waiting payloads together are less than that. It takes first from whoever holds most,
// and there the message whose delivery is furthest off. A probe is not taken. held is the payload bytes in flight of each namespace; those taken are taken off.
func (qs *queues) takeBack(need int64, held map[string]int64) []*item {
	lines := map[string][]*item{}
	waiting := int64(0)
	for _, q := range qs.all {
		for _, t := range q.ring {
			for _, it := range t.waiting {
				if it.bytes > 0 && !it.Probe {
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
		q.change(t, func() {
			t.waiting = slices.DeleteFunc(t.waiting, func(it *item) bool {
				if taken[it] {
					items = append(items, it)
				}
				return taken[it]
			})
		})
		if len(t.waiting) > 0 {
			i++
			continue
		}
		q.ring = slices.Delete(q.ring, i, i+1)
		q.forget(t)
	}
	return items
}
