package node

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

// dispatchModel is what a dispatcher should be, without rings or counters: lists, each counted anew
// for each question.
type dispatchModel struct {
	limits

	waiting []*item // the oldest first
	running []*item
	routes  map[string]*queue // of the task queues
	kept    []*item           // left behind by the time-out, and their slots with them
	ages    map[*item]int     // of those under way, in times of limits.slow
	hangs   map[lane]bool
	hung    map[lane]bool // as hangs was before the step
	loose   bool          // in this step several things happened at once: who could have been picked when is not known
	gates   map[driver.Destination]modelGate
	passed  map[lane]int // how often others were picked since a namespace last had a turn, or came, where it could have been
}

// modelGate is what a queue knows of a destination since a delivery failed by that one's doing, and none has succeeded.
type modelGate struct {
	state     gateState
	unsettled []*item
}

// lane is a namespace's part of a queue.
type lane struct {
	queue     *queue
	namespace string
}

func laneOf(it *item) lane { return lane{it.queue, it.Namespace} }

func countIf(items []*item, is func(*item) bool) int {
	n := 0
	for _, it := range items {
		if is(it) {
			n++
		}
	}
	return n
}

func sumIf(items []*item, is func(*item) bool) (bytes int64) {
	for _, it := range items {
		if is(it) {
			bytes += it.bytes
		}
	}
	return bytes
}

func (m *dispatchModel) clone() *dispatchModel {
	return &dispatchModel{
		m.limits, slices.Clone(m.waiting), slices.Clone(m.running), m.routes, slices.Clone(m.kept),
		m.ages, m.hangs, m.hung, m.loose, m.gates, maps.Clone(m.passed),
	}
}

func (m *dispatchModel) underWay() []*item { return slices.Concat(m.running, m.kept) }

func (m *dispatchModel) runningIn(q *queue) int {
	return countIf(m.underWay(), func(it *item) bool { return it.queue == q })
}

func (m *dispatchModel) runningOf(l lane) int {
	return countIf(m.underWay(), func(it *item) bool { return laneOf(it) == l })
}

func (m *dispatchModel) slowIn(q *queue) int {
	return countIf(m.underWay(), func(it *item) bool { return it.queue == q && m.ages[it] > 0 })
}

// belowShare says that a namespace has less than its share.
func (m *dispatchModel) belowShare(l lane) bool {
	bytes := sumIf(m.underWay(), func(it *item) bool { return it.Namespace == l.namespace })
	return m.runningOf(l) < m.shareSlots && bytes < m.shareBytes
}

func (m *dispatchModel) hangsNow(l lane) bool { return m.hangs[l] }

// mayRun says that nothing but a free slot keeps the lane from running one more. Those that hang
// share the part of one, by what hangs says.
func (m *dispatchModel) mayRun(l lane, hangs func(lane) bool) bool {
	all := m.underWay()
	slots := countIf(all, func(it *item) bool { return it.queue == l.queue && hangs(laneOf(it)) })
	bytes := sumIf(all, func(it *item) bool { return hangs(laneOf(it)) })
	return m.belowShare(l) && !(hangs(l) && (slots >= m.shareSlots || bytes >= m.shareBytes))
}

func (m *dispatchModel) mayHaveSpare(l lane) bool {
	return m.runningOf(l) == 0 && !m.hangs[l] && m.belowShare(l)
}

// spareOpen is how many more deliveries than slots a queue may have under way.
func (m *dispatchModel) spareOpen(q *queue) int { return min(m.spare, m.slowIn(q)) }

// counts says that what the lane has waiting takes room in its queue.
func (m *dispatchModel) counts(l lane) bool {
	slow := countIf(m.underWay(), func(it *item) bool { return laneOf(it) == l && m.ages[it] > 0 })
	gated := false
	for d := range m.gates {
		gated = gated || d.Namespace == l.namespace && m.queueOf(d) == l.queue
	}
	return m.belowShare(l) && slow == 0 && !m.hangs[l] && !gated
}

// queueOf is where messages of a destination are delivered.
func (m *dispatchModel) queueOf(d driver.Destination) *queue { return m.routes[d.TaskQueue] }

// to are the deliveries under way to a destination.
func (m *dispatchModel) to(d driver.Destination) (items []*item) {
	for _, it := range m.underWay() {
		if it.Destination() == d || ofAll(it.Destination()) == d {
			items = append(items, it)
		}
	}
	return items
}

// lets says that a message's destination may be tried.
func (m *dispatchModel) lets(it *item) bool {
	own, all := it.Destination(), ofAll(it.Destination())
	g, gated := m.gates[own]
	lets := !gated || g.state == gateTrying && len(m.to(own)) == 0
	if g, gated := m.gates[all]; gated {
		quick := countIf(m.to(all), func(it *item) bool { return m.ages[it] == 0 })
		lets = lets && g.state == gateTrying && quick == 0
	}
	return lets || it.Probe
}

// next is the message that a lane begins next; nil where all wait for their destinations.
func (m *dispatchModel) next(l lane) *item {
	i := slices.IndexFunc(m.waiting, func(w *item) bool { return laneOf(w) == l && m.lets(w) })
	if i < 0 {
		return nil
	}
	return m.waiting[i]
}

// offer notes that a message waits: probes before the others of their namespace.
func (m *dispatchModel) offer(it *item) {
	i := len(m.waiting)
	if it.Probe {
		if first := slices.IndexFunc(m.waiting, func(w *item) bool { return laneOf(w) == laneOf(it) }); first >= 0 {
			i = first
		}
	} else {
		for _, d := range []driver.Destination{it.Destination(), ofAll(it.Destination())} {
			if g, gated := m.gates[d]; gated && g.state == gateHeld {
				m.gates[d] = modelGate{gateClosed, g.unsettled}
			}
		}
	}
	m.waiting = slices.Insert(m.waiting, i, it)
}

// doubts are the destinations that the outbox is to be asked about.
func (m *dispatchModel) doubts() (doubts []driver.Destination) {
	for d, g := range m.gates {
		if g.state == gateClosed && len(g.unsettled) == 0 {
			doubts = append(doubts, d)
		}
	}
	slices.SortFunc(doubts, func(a, b driver.Destination) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.TaskQueue, b.TaskQueue))
	})
	return doubts
}

// learn notes what the outbox says, and returns what is to be given back.
func (m *dispatchModel) learn(d driver.Destination, health driver.Health) (back []*item) {
	g, gated := m.gates[d]
	switch {
	case health == driver.Held:
		m.gates[d] = modelGate{gateHeld, g.unsettled}
		m.waiting = slices.DeleteFunc(m.waiting, func(w *item) bool {
			takes := !w.Probe && (w.Destination() == d || ofAll(w.Destination()) == d)
			if takes {
				back = append(back, w)
			}
			return takes
		})
	case health != driver.Unknown && gated && g.state == gateClosed && len(g.unsettled) == 0:
		m.gates[d] = modelGate{state: gateTrying}
	}
	return back
}

// settled notes that a failure was settled.
func (m *dispatchModel) settled(it *item) {
	for d, g := range m.gates {
		g.unsettled = slices.DeleteFunc(g.unsettled, func(other *item) bool { return other == it })
		m.gates[d] = g
	}
}

func (m *dispatchModel) ready(q *queue) int {
	return countIf(m.waiting, func(it *item) bool { return it.queue == q && m.counts(laneOf(it)) })
}

func (m *dispatchModel) takes(it *item) bool {
	return it.Probe || !m.counts(laneOf(it)) || m.ready(it.queue) < m.capacity
}

// waitingLanes are the namespaces that have something waiting in a queue that may be tried.
func (m *dispatchModel) waitingLanes(q *queue) map[lane]bool {
	lanes := map[lane]bool{}
	for _, it := range m.waiting {
		if it.queue == q && m.lets(it) {
			lanes[laneOf(it)] = true
		}
	}
	return lanes
}

// idle says what a queue could run, and does not.
func (m *dispatchModel) idle(q *queue) error {
	for l := range m.waitingLanes(q) {
		switch n := m.runningIn(q); {
		case n < m.slots && m.mayRun(l, m.hangsNow):
			return fmt.Errorf("%d of %d slots are in use, and %s could run", n, m.slots, l.namespace)
		case n < m.slots+m.spareOpen(q) && m.mayHaveSpare(l):
			return fmt.Errorf("%d are under way in %d slots and %d spare ones, and %s has none of them", n, m.slots, m.spareOpen(q), l.namespace)
		}
	}
	return nil
}

// begin notes that a queue began with it, and says what is wrong with that. What happened in the
// same step happened in an order that nobody has seen: a namespace may have had a slot just before it hung.
func (m *dispatchModel) begin(it *item) error {
	i := slices.Index(m.waiting, it)
	if i < 0 {
		return fmt.Errorf("%d began, and it does not wait", it.ID)
	}
	if !m.lets(it) {
		return fmt.Errorf("%d began, and its destination is in trouble: %+v, %+v", it.ID, m.gates[it.Destination()], m.gates[ofAll(it.Destination())])
	}
	if next := m.next(laneOf(it)); next != it && !(m.loose && next.Destination() != it.Destination()) { // else that may have come free later
		return fmt.Errorf("%d began before %d, an older one of its namespace", it.ID, next.ID)
	}
	n, spare := m.runningIn(it.queue), m.spareOpen(it.queue)
	may := m.mayHaveSpare
	if n < m.slots {
		may = func(l lane) bool { return m.mayRun(l, func(l lane) bool { return m.hangs[l] && m.hung[l] }) }
	} else if n >= m.slots+spare {
		return fmt.Errorf("%d began beside %d in %d slots and %d spare ones", it.ID, n, m.slots, spare)
	}
	if !may(laneOf(it)) {
		return fmt.Errorf("%d began beyond what its namespace may have: %d slots and %d bytes, or one spare slot", it.ID, m.shareSlots, m.shareBytes)
	}
	for l := range m.waitingLanes(it.queue) {
		if l == laneOf(it) || !may(l) || !m.mayRun(l, m.hangsNow) || m.loose {
			continue
		}
		if m.passed[l]++; m.passed[l] >= len(namespaces) {
			return fmt.Errorf("%s was passed over %d times", l.namespace, m.passed[l])
		}
	}
	delete(m.passed, laneOf(it))
	m.waiting = slices.Delete(m.waiting, i, i+1)
	m.running = append(m.running, it)
	return nil
}

// beginAll notes that these began since the last step, in an order that nobody has seen:
// one in which all of them may will do.
func (m *dispatchModel) beginAll(began []*item) error {
	var first error
	for i, it := range began {
		next := m.clone()
		err := next.begin(it)
		if err == nil {
			err = next.beginAll(slices.Concat(began[:i], began[i+1:]))
		}
		if err == nil {
			*m = *next
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// end notes that a delivery has ended: by an error, or by its destination's doing, and that of all, too.
func (m *dispatchModel) end(it *item, how string) {
	m.hangs[laneOf(it)] = how != "end" && m.ages[it] > 0
	for _, d := range []driver.Destination{it.Destination(), ofAll(it.Destination())} {
		if how == "end" {
			delete(m.gates, d)
		}
		inTime := time.Duration(m.ages[it])*slowAfter < m.timeout // else it says nothing of the route of all
		if how == "down" && (d.Namespace != "" || sharedInPlay(d.TaskQueue) && inTime) {
			m.gates[d] = modelGate{gateClosed, append(slices.Clone(m.gates[d].unsettled), it)}
		}
	}
	m.running = slices.DeleteFunc(m.running, func(other *item) bool { return other == it })
}

// age lets the time pass in which a delivery turns slow, and returns those that have outlived
// their time-out.
func (m *dispatchModel) age() (outlived []*item) {
	m.loose = true
	for _, it := range slices.Clone(m.running) {
		if m.ages[it]++; m.ages[it] == timesSlow {
			outlived = append(outlived, it)
			m.end(it, "fail")
		}
	}
	return outlived
}

// taken notes what was taken back, and says what is wrong with that.
func (m *dispatchModel) taken(need int64, held map[string]int64, items []*item) error {
	waits, got := int64(0), int64(0)
	for _, it := range m.waiting {
		if !it.Probe {
			waits += it.bytes
		}
	}
	for _, it := range items {
		if !slices.Contains(m.waiting, it) || it.bytes == 0 || it.Probe {
			return fmt.Errorf("took %d, with %d bytes, and it does not wait, has none, or is a probe", it.ID, it.bytes)
		}
		got += it.bytes
		held[it.Namespace] -= it.bytes
	}
	if waits < need && got > 0 || waits >= need && got < need {
		return fmt.Errorf("took %d bytes of %d, where %d were needed", got, waits, need)
	}
	enough := false // without one of them it would have been too little
	for _, it := range items {
		enough = enough || got-it.bytes < need
	}
	if got > 0 && !enough {
		return fmt.Errorf("took %d bytes where %d were needed", got, need)
	}
	m.waiting = slices.DeleteFunc(m.waiting, func(it *item) bool { return slices.Contains(items, it) })
	for _, w := range m.waiting {
		for _, it := range items {
			if laneOf(w) == laneOf(it) && w.bytes > 0 && !w.Probe && w.ID > it.ID {
				return fmt.Errorf("took %d and left %d, which comes after it", it.ID, w.ID)
			}
			if w.bytes > 0 && !w.Probe && held[w.Namespace] > held[it.Namespace]+largest {
				return fmt.Errorf("took of %s, which holds %d, and left %s, which holds %d",
					it.Namespace, held[it.Namespace], w.Namespace, held[w.Namespace])
			}
		}
	}
	return nil
}

// leftBehind notes which deliveries of a queue are left behind with their slots, and says what
// is wrong with that: slots come back, as long as not too many have.
func (m *dispatchModel) leftBehind(d *dispatcher, q *queue, stuck map[int64]*item) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	m.kept = slices.DeleteFunc(m.kept, func(it *item) bool { return it.queue == q })
	freed := 0
	for _, call := range d.stuck[q] {
		if stuck[call.message.ID] == nil {
			return fmt.Errorf("%d is left behind and should not be", call.message.ID)
		}
		if call.freed {
			freed++
		} else {
			m.kept = append(m.kept, call.it)
		}
	}
	all := 0
	for _, it := range stuck {
		if it.queue == q {
			all++
		}
	}
	if len(d.stuck[q]) != all || freed != min(all, m.slots) {
		return fmt.Errorf("%d are left behind, of %d slots came back; want %d, of %d", len(d.stuck[q]), freed, all, min(all, m.slots))
	}
	return nil
}

// wrong says what of a dispatcher at rest is not as the model has it, once these began.
func (m *dispatchModel) wrong(d *dispatcher, began []*item, stuck map[int64]*item) error {
	for _, q := range d.all {
		if err := m.leftBehind(d, q, stuck); err != nil {
			return err
		}
	}
	slices.SortFunc(began, func(a, b *item) int { return cmp.Compare(a.ID, b.ID) })
	m.loose = m.loose || len(began) > 1
	if err := m.beginAll(began); err != nil {
		return err
	}
	m.hung, m.loose = maps.Clone(m.hangs), false
	maps.DeleteFunc(m.passed, func(l lane, _ int) bool { return !m.waitingLanes(l.queue)[l] })
	for _, q := range d.all {
		if err := m.idle(q); err != nil {
			return err
		}
		if got, want := d.room(q), m.capacity-m.ready(q); got != want {
			return fmt.Errorf("room is %d, want %d", got, want)
		}
		if got := m.runningIn(q); got > m.slots+m.spareOpen(q) {
			return fmt.Errorf("%d are under way in %d slots, with %d slow", got, m.slots, m.slowIn(q))
		}
	}
	return nil
}
