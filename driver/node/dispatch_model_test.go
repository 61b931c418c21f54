package node

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/fairclaim/fairclaim/driver"
)

// dispatchModel is what a dispatcher should be, without rings or counters: two lists.
type dispatchModel struct {
	limits

	waiting []*item // the oldest first
	running []*item
	kept    []*item      // left behind by the backstop, and their slots with them
	passed  map[lane]int // picks of others since a namespace could have been picked
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

func (m *dispatchModel) runningIn(q *queue) int {
	return countIf(slices.Concat(m.running, m.kept), func(it *item) bool { return it.queue == q })
}

// open says that nothing but a free slot keeps the lane from running one more.
func (m *dispatchModel) open(l lane) bool {
	bytes := int64(0)
	running := slices.Concat(m.running, m.kept)
	for _, it := range running {
		if it.Namespace == l.namespace {
			bytes += it.bytes
		}
	}
	return countIf(running, func(it *item) bool { return laneOf(it) == l }) < m.shareSlots && bytes < m.shareBytes
}

func (m *dispatchModel) ready(q *queue) int {
	return countIf(m.waiting, func(it *item) bool { return it.queue == q && m.open(laneOf(it)) })
}

func (m *dispatchModel) takes(it *item) bool {
	return !m.open(laneOf(it)) || m.ready(it.queue) < m.capacity
}

// begin notes that a queue began with it, and says what is wrong with that.
func (m *dispatchModel) begin(it *item) error {
	i := slices.Index(m.waiting, it)
	if i < 0 {
		return fmt.Errorf("%d began, and it does not wait", it.ID)
	}
	oldest := slices.IndexFunc(m.waiting, func(w *item) bool { return laneOf(w) == laneOf(it) })
	if oldest != i {
		return fmt.Errorf("%d began before %d, an older one of its namespace", it.ID, m.waiting[oldest].ID)
	}
	if n := m.runningIn(it.queue); n == m.slots {
		return fmt.Errorf("%d began as number %d of %d slots", it.ID, n+1, m.slots)
	}
	if !m.open(laneOf(it)) {
		return fmt.Errorf("%d began beyond the share of its namespace, %d and %d bytes", it.ID, m.shareSlots, m.shareBytes)
	}
	others := map[lane]bool{}
	for _, w := range m.waiting {
		if w.queue == it.queue && w.Namespace != it.Namespace && m.open(laneOf(w)) {
			others[laneOf(w)] = true
		}
	}
	for l := range others {
		m.passed[l]++
		if m.passed[l] > 2*len(namespaces) {
			return fmt.Errorf("%s was passed over %d times", l.namespace, m.passed[l])
		}
	}
	m.passed[laneOf(it)] = 0
	m.waiting = slices.Delete(m.waiting, i, i+1)
	m.running = append(m.running, it)
	return nil
}

// beginAll notes that these began since the last step, in an order that nobody has seen:
// one in which all of them may will do.
func (m *dispatchModel) beginAll(began []*item) error {
	var first error
	for i, it := range began {
		next := &dispatchModel{m.limits, slices.Clone(m.waiting), slices.Clone(m.running), slices.Clone(m.kept), maps.Clone(m.passed)}
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

// taken notes what was taken back, and says what is wrong with that.
func (m *dispatchModel) taken(need int64, held map[string]int64, items []*item) error {
	waits, got := int64(0), int64(0)
	for _, it := range m.waiting {
		waits += it.bytes
	}
	for _, it := range items {
		if !slices.Contains(m.waiting, it) || it.bytes == 0 {
			return fmt.Errorf("took %d, with %d bytes, and it does not wait, or has none", it.ID, it.bytes)
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
			if laneOf(w) == laneOf(it) && w.bytes > 0 && w.ID > it.ID {
				return fmt.Errorf("took %d and left %d, which comes after it", it.ID, w.ID)
			}
			if w.bytes > 0 && held[w.Namespace] > held[it.Namespace]+largest {
				return fmt.Errorf("took of %s, which holds %d, and left %s, which holds %d",
					it.Namespace, held[it.Namespace], w.Namespace, held[w.Namespace])
			}
		}
	}
	return nil
}

const largest = 4 // payload, in bytes

var namespaces = []string{"a", "b", "c", "d", "e"}

// dispatchStep is one thing that happens to a dispatcher.
type dispatchStep struct {
	what      string // offer, end, outlive, take or withdraw
	namespace string // of the message offered
	bytes     int64  // of it, or to take
	which     int    // of the queues is offered it, or of the running ones ends
}

func anyStep() *rapid.Generator[dispatchStep] {
	return rapid.Custom(func(t *rapid.T) dispatchStep {
		what := rapid.SampledFrom([]string{"offer", "end", "offer", "end", "offer", "end", "offer", "end", "take", "outlive", "withdraw"}).Draw(t, "what")
		bytes := rapid.Int64Range(0, largest)
		if what == "take" {
			bytes = rapid.Int64Range(1, 6*largest)
		}
		return dispatchStep{
			what, rapid.SampledFrom(namespaces).Draw(t, "namespace"), bytes.Draw(t, "bytes"), rapid.IntRange(0, 9).Draw(t, "which"),
		}
	})
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

// The dispatcher does what the model does, in any order of offers, ends, deliveries that
// outlive their time, and messages taken back: no message is lost or has two outcomes, slots, shares and the bound hold, no
// slot is idle while a message could use it, and a namespace's turn comes round.
func TestDispatcherIsItsModel(t *testing.T) {
	for range 10 { // a hundred lives each
		rapid.Check(t, func(r *rapid.T) { checkDispatch(t, r) })
	}
}

func checkDispatch(t *testing.T, r *rapid.T) {
	slots := rapid.IntRange(1, 6).Draw(r, "slots")
	m := &dispatchModel{
		limits: limits{
			slots: slots, shareSlots: rapid.IntRange(1, slots).Draw(r, "share"),
			shareBytes: rapid.Int64Range(1, 5*largest).Draw(r, "share of bytes"),
			capacity:   rapid.IntRange(1, 8).Draw(r, "capacity"), timeout: time.Hour,
		},
		passed: map[lane]int{},
	}
	queues := rapid.IntRange(1, 2).Draw(r, "queues")
	steps := rapid.SliceOfN(anyStep(), 1, 150).Draw(r, "steps")
	var err error
	synctest.Test(t, func(*testing.T) { err = playDispatch(m, queues, steps) })
	if err != nil {
		r.Fatal(err)
	}
}

// playDispatch does the steps with a dispatcher, and returns where it is not its model.
func playDispatch(m *dispatchModel, queues int, steps []dispatchStep) (err error) {
	d := newDispatcher(m.limits, func() int64 { return 1 })
	type start struct {
		id  int64
		end chan struct{}
	}
	begun, ends := make(chan start, len(steps)), map[int64]chan struct{}{}
	stuck := map[int64]*item{} // outlived their time, and their sinks have not returned
	for range queues {
		d.newQueue(SinkFunc(func(_ context.Context, msg driver.Delivery) error {
			one := start{msg.ID, make(chan struct{})}
			begun <- one
			<-one.end
			return nil
		}))
	}
	defer func() {
		d.withdraw()
		for _, end := range ends {
			close(end)
		}
		d.running.Wait()
		for _, q := range d.all {
			if err == nil && (len(q.tenants) != 0 || len(q.ring) != 0 || len(d.stuck[q]) != 0 || d.leftBehind.Load() != 0 || q.running != 0 || q.ready != 0 || len(d.bytes) != 0) {
				err = fmt.Errorf("at rest it holds %d namespaces, %d turns, %d running, %d ready, bytes of %d",
					len(q.tenants), len(q.ring), q.running, q.ready, len(d.bytes))
			}
		}
	}()
	items := map[int64]*item{}
	ended := 0
	for _, s := range steps {
		switch s.what {
		case "offer":
			id := int64(len(items) + 1)
			it := &item{Delivery: driver.Delivery{ID: id, Namespace: s.namespace}, bytes: s.bytes, queue: d.all[s.which%queues]}
			it.leased.Store(10)
			items[id] = it
			want := m.takes(it)
			if want {
				m.waiting = append(m.waiting, it)
			}
			if got := d.offer(it.queue, it); got != want {
				return fmt.Errorf("offer of %d is %t, want %t", id, got, want)
			}
		case "end":
			if len(ends) == 0 {
				continue
			}
			id := slices.Sorted(maps.Keys(ends))[s.which%len(ends)]
			close(ends[id])
			delete(ends, id)
			if stuck[id] != nil { // what its sink says is nobody's
				delete(stuck, id)
				break
			}
			m.running = slices.DeleteFunc(m.running, func(it *item) bool { return it.ID == id })
			ended++
		case "outlive":
			for _, it := range m.running {
				stuck[it.ID] = it
			}
			ended += len(m.running)
			m.running = nil
			time.Sleep(m.timeout + graceTime + 1) // of the bubble
		case "take":
			held := map[string]int64{}
			for _, it := range slices.Concat(m.running, m.kept, m.waiting) {
				held[it.Namespace] += it.bytes
			}
			if err := m.taken(s.bytes, held, d.takeBack(s.bytes, maps.Clone(held))); err != nil {
				return err
			}
		case "withdraw":
			if got := len(d.withdraw()); got != len(m.waiting) {
				return fmt.Errorf("withdrew %d of %d", got, len(m.waiting))
			}
			m.waiting = nil
		}
		synctest.Wait()
		var began []*item
		for len(begun) > 0 {
			one := <-begun
			ends[one.id] = one.end
			began = append(began, items[one.id])
		}
		for _, q := range d.all {
			if err := m.leftBehind(d, q, stuck); err != nil {
				return err
			}
		}
		slices.SortFunc(began, func(a, b *item) int { return cmp.Compare(a.ID, b.ID) })
		if err := m.beginAll(began); err != nil {
			return err
		}
		for _, q := range d.all {
			if m.runningIn(q) < m.slots && m.ready(q) > 0 {
				return fmt.Errorf("%d of %d slots are in use, and %d messages could run", m.runningIn(q), m.slots, m.ready(q))
			}
			if got, want := d.room(q), m.capacity-m.ready(q); got != want {
				return fmt.Errorf("room is %d, want %d", got, want)
			}
		}
		results := d.collect()
		for _, it := range results {
			if late := stuck[it.ID] != nil; late != it.overdue || late != (it.verdict == toRetry) {
				return fmt.Errorf("%d has the verdict %d, overdue %t", it.ID, it.verdict, it.overdue)
			}
		}
		if ended -= len(results); ended != 0 {
			return fmt.Errorf("%d messages have ended and were not collected", ended)
		}
	}
	return nil
}
