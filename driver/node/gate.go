package node

import "github.com/fairclaim/fairclaim/driver"

// gates keep a queue from trying a destination in vain. The outbox holds a destination once enough of its
// messages have failed in a row, and no claim takes them any more; but what a node has claimed by then waits here, thousands
// of messages perhaps. So a delivery that fails by its destination's doing closes the destination's gate:
//
//	gate    what begins                               it becomes
//	none    what has a slot                           closed  when a delivery fails by the destination's doing
//	closed  nothing                                   trying, or held: what the outbox says, asked once the failure is settled
//	trying  one message, where none is under way      closed  when that fails so, too
//	held    nothing: what waited was given back       closed  when another message comes: the hold may be over
//
// A delivery that succeeds removes the gate. The probe of a held destination passes: the outbox sends one at a
// time, and it is to be tried. So a destination that is dead costs each node the deliveries under way when
// the first of them failed, and all nodes together about as many more as the outbox counts.
//
// Where namespaces share an endpoint, the failure closes the gate of the route of all, too; there, what has
// turned slow under way keeps nothing else from being tried: it may hang for its own namespace alone.
//
// A queue remembers up to maxGates; all of it is under the dispatcher's lock.
type gates struct {
	off   bool // the outbox holds nothing: see holds
	by    map[driver.Destination]*gate
	own   map[string]int // of a namespace alone, those of its routes; none at 0
	under map[driver.Destination]underWay
	doubt bool // since it was last asked for, there is something to ask the outbox
}

type gate struct {
	state     gateState
	unsettled map[*item]bool // failed by the destination's doing: the outbox is to be asked after their settle
	wasHeld   bool           // and has not been reached since
}

type gateState int

const (
	gateClosed gateState = iota
	gateTrying
	gateHeld
)

// underWay is what is under way to a destination.
type underWay struct{ quick, slow int }

// maxGates is how many gates a queue remembers. A destination whose gate it has forgotten can be tried
// in vain as often as one that has just died.
const maxGates = 10_000

func newGates() gates {
	return gates{by: map[driver.Destination]*gate{}, own: map[string]int{}, under: map[driver.Destination]underWay{}}
}

// ofAll is the route of all that a destination is part of.
func ofAll(d driver.Destination) driver.Destination {
	return driver.Destination{TaskQueue: d.TaskQueue}
}

// countUnderWay adds deliveries to what is under way to a destination.
func (g *gates) countUnderWay(d driver.Destination, quick, slow int) {
	for _, d := range []driver.Destination{d, ofAll(d)} {
		u := g.under[d]
		u.quick += quick
		u.slow += slow
		if g.under[d] = u; u == (underWay{}) {
			delete(g.under, d)
		}
	}
}

// lets reports whether a message may begin as far as its destination goes.
func (g *gates) lets(it *item) bool {
	if len(g.by) == 0 || it.Probe {
		return true
	}
	d := it.Destination()
	return g.open(d, g.under[d].slow == 0) && g.open(ofAll(d), true)
}

func (g *gates) open(d driver.Destination, noneSlow bool) bool {
	gate := g.by[d]
	return gate == nil || gate.state == gateTrying && g.under[d].quick == 0 && noneSlow
}

// first is the first of these messages of a namespace that may begin, as far as destinations go; -1 where none may. What
// is waiting can be long: what the gates refuse of a task queue, they refuse of all of it but the probe.
func (g *gates) first(waiting []*item) int {
	var refused *item
	for i, it := range waiting {
		if refused != nil && it.TaskQueue == refused.TaskQueue && !it.Probe {
			continue
		}
		if g.lets(it) {
			return i
		}
		refused = it
	}
	return -1
}

// gate returns the gate of a destination; a new one is closed.
func (q *queue) gate(d driver.Destination) *gate {
	g := q.gates.by[d]
	if g == nil {
		for other, g := range q.gates.by {
			if len(q.gates.by) < maxGates {
				break
			}
			if len(g.unsettled) == 0 {
				q.removeGate(other)
			}
		}
		g = &gate{unsettled: map[*item]bool{}}
		q.gateOwn(d, +1)
		q.gates.by[d] = g
	}
	return g
}

func (q *queue) removeGate(d driver.Destination) {
	if q.gates.by[d] != nil {
		delete(q.gates.by, d)
		q.gateOwn(d, -1)
	}
}

// gateOwn counts the gates of a namespace alone: while it has one, what it has waiting takes no room in the queue.
func (q *queue) gateOwn(d driver.Destination, n int) {
	if d.Namespace == "" {
		return
	}
	q.queues.countReady(d.Namespace, -1)
	if q.gates.own[d.Namespace] += n; q.gates.own[d.Namespace] == 0 {
		delete(q.gates.own, d.Namespace)
	}
	q.queues.countReady(d.Namespace, +1)
}

// close closes the gate of a delivery's destination, which has made it fail; and that of the route of all, where
// that counts there, too.
func (q *queue) close(it *item, d driver.Destination, shared bool) {
	if q.gates.off {
		return
	}
	for _, d := range []driver.Destination{d, ofAll(d)} {
		if d.Namespace == "" && !shared {
			continue
		}
		g := q.gate(d)
		g.state = gateClosed
		g.unsettled[it] = true
	}
}

// reached removes the gates of a destination, to which a delivery has succeeded.
func (q *queue) reached(d driver.Destination) {
	q.removeGate(d)
	q.removeGate(ofAll(d))
}

// settled notes that a failure is settled.
func (q *queue) settled(it *item) {
	for _, d := range []driver.Destination{it.Destination(), ofAll(it.Destination())} {
		if g := q.gates.by[d]; g != nil && g.unsettled[it] {
			delete(g.unsettled, it)
			q.gates.doubt = true
		}
	}
}

// arrived notes that a message waits: where its destination was held, it may not be any more.
func (q *queue) arrived(it *item) {
	if it.Probe {
		return
	}
	for _, d := range []driver.Destination{it.Destination(), ofAll(it.Destination())} {
		if g := q.gates.by[d]; g != nil && g.state == gateHeld {
			g.state = gateClosed
			q.gates.doubt = true
		}
	}
}

// learn notes what the outbox says of a destination. Where that is held, it takes out what waits for it, but for the
// probe, and says whether the hold is news.
func (q *queue) learn(d driver.Destination, health driver.Health) (back []*item, news bool) {
	switch g := q.gates.by[d]; {
	case q.gates.off || health == driver.Unknown:
	case health == driver.Held:
		g = q.gate(d)
		news = !g.wasHeld
		g.state, g.wasHeld = gateHeld, true
		return q.takeOut(d), news
	case g != nil && g.state == gateClosed && len(g.unsettled) == 0:
		g.state = gateTrying
	}
	return nil, false
}

// takeOut takes out what waits for a destination, but for the probe.
func (q *queue) takeOut(d driver.Destination) []*item {
	taken := map[*item]bool{}
	take := func(t *tenant) {
		for _, it := range t.waiting {
			if !it.Probe && it.TaskQueue == d.TaskQueue {
				taken[it] = true
			}
		}
	}
	if d.Namespace == "" {
		for _, t := range q.ring {
			take(t)
		}
	} else if t := q.tenants[d.Namespace]; t != nil {
		take(t)
	}
	if len(taken) == 0 {
		return nil
	}
	return q.remove(taken)
}

// settled notes that failures are settled which were their destinations' doing.
func (d *dispatcher) settled(items []*item) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, it := range items {
		it.queue.settled(it)
	}
}

// doubtful reports whether there is something new to ask the outbox about destinations.
func (d *dispatcher) doubtful() (doubt bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range d.all {
		doubt = doubt || q.gates.doubt
		q.gates.doubt = false
	}
	return doubt
}

// doubts are destinations whose gates are closed until the outbox has answered, up to so many.
func (d *dispatcher) doubts(most int) (doubts []driver.Destination) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range d.all {
		for at, g := range q.gates.by {
			if g.state == gateClosed && len(g.unsettled) == 0 && len(doubts) < most {
				doubts = append(doubts, at)
			}
		}
	}
	return doubts
}

// learn takes over what the outbox says of destinations, each of its queue, begins what may begin now, and returns
// what waited for those that are held, and how many holds are news.
func (d *dispatcher) learn(of map[driver.Destination]*queue, health map[driver.Destination]driver.Health) (back []*item, news int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	changed := map[*queue]bool{}
	for at, h := range health {
		items, isNews := of[at].learn(at, h)
		if back = append(back, items...); isNews {
			news++
		}
		changed[of[at]] = true
	}
	for q := range changed {
		d.fill(q)
	}
	return back, news
}

// gate has destinations gated, or lets all pass.
func (d *dispatcher) gate(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range d.all {
		if q.gates.off = !on; on {
			continue
		}
		for at := range q.gates.by {
			q.removeGate(at)
		}
		d.fill(q)
	}
}
