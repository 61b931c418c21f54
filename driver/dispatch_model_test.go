package driver

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// queueModel is what a queue should be, without a ring or counters: two lists.
type queueModel struct {
	slots, share, capacity int

	waiting []*item // the oldest first
	running []*item
	passed  map[string]int // picks of others since a namespace could have been picked
}

func (m *queueModel) runningOf(namespace string) int {
	n := 0
	for _, it := range m.running {
		if it.Namespace == namespace {
			n++
		}
	}
	return n
}

// ready are those that wait for nothing but a free slot.
func (m *queueModel) ready() int {
	n := 0
	for _, it := range m.waiting {
		if m.runningOf(it.Namespace) < m.share {
			n++
		}
	}
	return n
}

func (m *queueModel) takes(it *item) bool {
	return m.runningOf(it.Namespace) >= m.share || m.ready() < m.capacity
}

// begin notes that the queue began with it, and says what is wrong with that.
func (m *queueModel) begin(it *item) error {
	i := slices.Index(m.waiting, it)
	if i < 0 {
		return fmt.Errorf("%d began, and it does not wait", it.ID)
	}
	oldest := slices.IndexFunc(m.waiting, func(w *item) bool { return w.Namespace == it.Namespace })
	if oldest != i {
		return fmt.Errorf("%d began before %d, an older one of its namespace", it.ID, m.waiting[oldest].ID)
	}
	if len(m.running) == m.slots {
		return fmt.Errorf("%d began as number %d of %d slots", it.ID, len(m.running)+1, m.slots)
	}
	if m.runningOf(it.Namespace) == m.share {
		return fmt.Errorf("%d began beyond the share of its namespace, %d", it.ID, m.share)
	}
	others := map[string]bool{}
	for _, w := range m.waiting {
		if w.Namespace != it.Namespace && m.runningOf(w.Namespace) < m.share {
			others[w.Namespace] = true
		}
	}
	for namespace := range others {
		m.passed[namespace]++
		if m.passed[namespace] > 2*len(namespaces) {
			return fmt.Errorf("%s was passed over %d times", namespace, m.passed[namespace])
		}
	}
	m.passed[it.Namespace] = 0
	m.waiting = slices.Delete(m.waiting, i, i+1)
	m.running = append(m.running, it)
	return nil
}

var namespaces = []string{"a", "b", "c", "d", "e"}

// queueStep is one thing that happens to a queue.
type queueStep struct {
	what      string // offer, end or withdraw
	namespace string // of the message offered
	which     int    // of the running ones ends
}

func anyStep() *rapid.Generator[queueStep] {
	return rapid.Custom(func(t *rapid.T) queueStep {
		what := rapid.SampledFrom([]string{"offer", "end", "offer", "end", "offer", "end", "offer", "withdraw"}).Draw(t, "what")
		return queueStep{what, rapid.SampledFrom(namespaces).Draw(t, "namespace"), rapid.IntRange(0, 9).Draw(t, "which")}
	})
}

// The dispatcher does what the model does, in any order of offers, ends and withdrawals:
// no message is lost or delivered twice, slots, shares and the bound hold, no slot is
// idle while a message could use it, and a namespace's turn comes round.
func TestDispatcherIsItsModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		slots := rapid.IntRange(1, 6).Draw(r, "slots")
		m := &queueModel{
			slots: slots, share: rapid.IntRange(1, slots).Draw(r, "share"),
			capacity: rapid.IntRange(1, 8).Draw(r, "capacity"), passed: map[string]int{},
		}
		steps := rapid.SliceOfN(anyStep(), 1, 150).Draw(r, "steps")
		var err error
		synctest.Test(t, func(*testing.T) { err = playQueue(m, steps) })
		if err != nil {
			r.Fatal(err)
		}
	})
}

// playQueue does the steps with a queue, and returns where it is not its model.
func playQueue(m *queueModel, steps []queueStep) (err error) {
	d := newDispatcher(m.slots, m.share, m.capacity, time.Hour, func() int64 { return 1 })
	type delivery struct {
		id  int64
		end chan struct{}
	}
	begun, ends := make(chan delivery, len(steps)), map[int64]chan struct{}{}
	q := d.newQueue(SinkFunc(func(_ context.Context, msg Message) error {
		one := delivery{msg.ID, make(chan struct{})}
		begun <- one
		<-one.end
		return nil
	}))
	defer func() {
		q.withdraw()
		for _, end := range ends {
			close(end)
		}
		d.running.Wait()
		if err == nil && (len(q.tenants) != 0 || len(q.ring) != 0 || q.running != 0 || q.ready != 0) {
			err = fmt.Errorf("at rest it holds %d namespaces, %d turns, %d running, %d ready", len(q.tenants), len(q.ring), q.running, q.ready)
		}
	}()
	items := map[int64]*item{}
	ended := 0
	for _, s := range steps {
		switch s.what {
		case "offer":
			id := int64(len(items) + 1)
			it := &item{Message: Message{ID: id, Namespace: s.namespace}}
			it.leased.Store(10)
			items[id] = it
			want := m.takes(it)
			if want {
				m.waiting = append(m.waiting, it)
			}
			if got := q.offer(it); got != want {
				return fmt.Errorf("offer of %d is %t, want %t", id, got, want)
			}
		case "end":
			if len(m.running) == 0 {
				continue
			}
			i := s.which % len(m.running)
			id := m.running[i].ID
			m.running = slices.Delete(m.running, i, i+1)
			close(ends[id])
			delete(ends, id)
			ended++
		case "withdraw":
			if got := q.withdraw(); len(got) != len(m.waiting) {
				return fmt.Errorf("withdrew %d of %d", len(got), len(m.waiting))
			}
			m.waiting = nil
		}
		synctest.Wait()
		for len(begun) > 0 {
			one := <-begun
			ends[one.id] = one.end
			if err := m.begin(items[one.id]); err != nil {
				return err
			}
		}
		if len(m.running) < m.slots && m.ready() > 0 {
			return fmt.Errorf("%d of %d slots are in use, and %d messages could run", len(m.running), m.slots, m.ready())
		}
		if got, want := q.room(), m.capacity-m.ready(); got != want {
			return fmt.Errorf("room is %d, want %d", got, want)
		}
		if ended -= len(d.collect()); ended != 0 {
			return fmt.Errorf("%d messages have ended and were not collected", ended)
		}
	}
	return nil
}
