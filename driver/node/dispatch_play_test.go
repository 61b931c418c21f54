package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/fairclaim/fairclaim/driver"
)

const (
	largest   = 4 // payload, in bytes
	timesSlow = 4 // a delivery is left behind after so many times of limits.slow
	slowAfter = 3 * time.Second
)

var namespaces = []string{"a", "b", "c", "d", "e"}

// taskQueues are those of the messages; each belongs to one queue.
var taskQueues = []string{"shared 0", "shared 1", "own 2", "own 3"}

// sharedInPlay says whether a task queue's messages go to one endpoint.
func sharedInPlay(taskQueue string) bool { return strings.HasPrefix(taskQueue, "shared") }

// dispatchStep is one thing that happens to a dispatcher.
type dispatchStep struct {
	what      string // offer, probe, end, fail, down, settle, learn, news, pass, take or withdraw
	namespace string // of the message offered, or what is in the news
	bytes     int64  // of it, or to take
	which     int    // of the task queues is offered it, or of the running ones ends, of the destinations is learned of
	health    driver.Health
}

func anyStep() *rapid.Generator[dispatchStep] {
	steps := []string{
		"offer", "offer", "offer", "offer", "end", "end", "end", "fail", "pass", "pass", "take", "withdraw",
		"probe", "down", "down", "settle", "settle", "learn", "learn", "news",
	}
	healths := []driver.Health{driver.Held, driver.Held, driver.Failing, driver.Failing, driver.Recovering, driver.Well, driver.Unknown}
	return rapid.Custom(func(t *rapid.T) dispatchStep {
		what := rapid.SampledFrom(steps).Draw(t, "what")
		bytes := rapid.Int64Range(0, largest)
		if what == "take" {
			bytes = rapid.Int64Range(1, 6*largest)
		}
		return dispatchStep{
			what, rapid.SampledFrom(namespaces).Draw(t, "namespace"), bytes.Draw(t, "bytes"), rapid.IntRange(0, 9).Draw(t, "which"),
			rapid.SampledFrom(healths).Draw(t, "health"),
		}
	})
}

// The dispatcher does what the model does, in any order of offers, ends, time that passes and
// leaves deliveries behind, and messages taken back: no message is lost or has two outcomes; slots, spare slots,
// shares and the bound hold; no slot is idle while a message could use it; and a namespace's turn comes round.
func TestDispatcherIsItsModel(t *testing.T) {
	for range 10 { // a hundred lives each
		rapid.Check(t, func(r *rapid.T) { checkDispatch(t, r) })
	}
}

func checkDispatch(t *testing.T, r *rapid.T) {
	slots := rapid.IntRange(1, 6).Draw(r, "slots")
	m := &dispatchModel{
		limits: limits{
			slots: slots, spare: rapid.IntRange(0, 4).Draw(r, "spare"), shareSlots: rapid.IntRange(1, slots).Draw(r, "share"),
			shareBytes: rapid.Int64Range(1, 5*largest).Draw(r, "share of bytes"),
			capacity:   rapid.IntRange(1, 8).Draw(r, "capacity"), timeout: timesSlow*slowAfter - graceTime, slow: slowAfter,
		},
		ages: map[*item]int{}, hangs: map[lane]bool{}, hung: map[lane]bool{}, passed: map[lane]int{},
		gates: map[driver.Destination]modelGate{}, routes: map[string]*queue{},
	}
	queues := rapid.IntRange(1, 2).Draw(r, "queues")
	length := rapid.IntRange(1, 150).Draw(r, "length") // of itself, rapid makes nearly all lives very short
	steps := rapid.SliceOfN(anyStep(), length, length).Draw(r, "steps")
	var err error
	synctest.Test(t, func(*testing.T) {
		p := newDispatchPlay(m.limits, queues)
		for i, taskQueue := range taskQueues {
			m.routes[taskQueue] = p.all[i%queues]
		}
		err = p.play(m, steps)
		if ended := p.end(); err == nil {
			err = ended
		}
	})
	if err != nil {
		r.Fatal(err)
	}
}

// dispatchPlay is a dispatcher whose sinks do what a test says. It is played in a bubble.
type dispatchPlay struct {
	*dispatcher
	items map[int64]*item
	begun chan dispatchCall
	calls map[int64]dispatchCall // whose sinks have not returned
	stuck map[int64]*item        // left behind, and their sinks have not returned
	ended int                    // messages to be collected
	down  []*item                // failed by their destinations' doing, and not settled
}

// playSink is a sink of a dispatchPlay.
type playSink struct{ SinkFunc }

func (playSink) Shared(taskQueue string) bool { return sharedInPlay(taskQueue) }

// dispatchCall is a call of a sink, which does not listen to its context.
type dispatchCall struct {
	id  int64
	end chan error
}

func newDispatchPlay(l limits, queues int) *dispatchPlay {
	p := &dispatchPlay{
		dispatcher: newDispatcher(l, func() int64 { return 1 }),
		items:      map[int64]*item{}, begun: make(chan dispatchCall, 1000), calls: map[int64]dispatchCall{}, stuck: map[int64]*item{},
	}
	for range queues {
		p.newQueue(playSink{func(_ context.Context, msg driver.Delivery) error {
			call := dispatchCall{msg.ID, make(chan error, 1)}
			p.begun <- call
			return <-call.end
		}})
	}
	return p
}

// message makes the next message for a queue.
func (p *dispatchPlay) message(namespace string, queue int, bytes int64) *item {
	id := int64(len(p.items) + 1)
	it := &item{Delivery: driver.Delivery{ID: id, Namespace: namespace}, bytes: bytes, queue: p.all[queue]}
	it.leased.Store(10)
	p.items[id] = it
	return it
}

// began returns what has begun since it was last called.
func (p *dispatchPlay) began() (items []*item) {
	synctest.Wait()
	for len(p.begun) > 0 {
		call := <-p.begun
		p.calls[call.id] = call
		items = append(items, p.items[call.id])
	}
	return items
}

// answer lets the sink of a delivery return.
func (p *dispatchPlay) answer(id int64, err error) {
	p.calls[id].end <- err
	delete(p.calls, id)
	delete(p.stuck, id)
}

// play does the steps, and returns where the dispatcher is not its model.
func (p *dispatchPlay) play(m *dispatchModel, steps []dispatchStep) error {
	for i, s := range steps {
		if err := p.step(m, s); err != nil {
			return err
		}
		if err := m.wrong(p.dispatcher, p.began(), p.stuck); err != nil {
			return fmt.Errorf("step %d, %s: %w", i+1, s.what, err)
		}
		results := p.collect()
		for _, it := range results {
			if it.verdict == toFailDestination {
				p.down = append(p.down, it)
			}
			if late := p.stuck[it.ID] != nil; late != it.overdue || late && it.verdict != toRetry {
				return fmt.Errorf("%d has the verdict %d, overdue %t", it.ID, it.verdict, it.overdue)
			}
		}
		if p.ended -= len(results); p.ended != 0 {
			return fmt.Errorf("%d messages have ended and were not collected", p.ended)
		}
	}
	return nil
}

func (p *dispatchPlay) step(m *dispatchModel, s dispatchStep) error {
	switch s.what {
	case "offer", "probe":
		taskQueue := s.which % len(taskQueues)
		it := p.message(s.namespace, taskQueue%len(p.all), s.bytes)
		it.TaskQueue, it.Probe = taskQueues[taskQueue], s.what == "probe"
		want := m.takes(it)
		if want {
			m.offer(it)
		}
		if got := offered(p.dispatcher, it.queue, it); got != want {
			return fmt.Errorf("offer of %d is %t, want %t", it.ID, got, want)
		}
	case "settle":
		p.settled(p.down)
		for _, it := range p.down {
			m.settled(it)
		}
		p.down = nil
	case "learn":
		doubts := m.doubts()
		if got := p.doubts(1000); len(got) != len(doubts) {
			return fmt.Errorf("it doubts %v, want %v", got, doubts)
		}
		if len(doubts) > 0 {
			return p.hear(m, doubts[s.which%len(doubts)], s.health)
		}
	case "news":
		return p.hear(m, driver.Destination{Namespace: s.namespace, TaskQueue: taskQueues[s.which%len(taskQueues)]}, s.health)
	case "end", "fail", "down":
		if len(p.calls) == 0 {
			return nil
		}
		id := slices.Sorted(maps.Keys(p.calls))[s.which%len(p.calls)]
		if p.stuck[id] == nil { // else what its sink says is nobody's
			m.end(p.items[id], s.what)
			p.ended++
		}
		var err error
		switch s.what {
		case "fail":
			err = errors.New("failed")
		case "down":
			err = DestinationFailed(errors.New("down"))
		}
		p.answer(id, err)
	case "pass":
		outlived := m.age()
		for _, it := range outlived {
			p.stuck[it.ID] = it
		}
		p.ended += len(outlived)
		time.Sleep(slowAfter) // of the bubble
	case "take":
		held := map[string]int64{}
		for _, it := range slices.Concat(m.underWay(), m.waiting) {
			held[it.Namespace] += it.bytes
		}
		return m.taken(s.bytes, held, p.takeBack(s.bytes, maps.Clone(held)))
	case "withdraw":
		if got := len(p.withdraw()); got != len(m.waiting) {
			return fmt.Errorf("withdrew %d of %d", got, len(m.waiting))
		}
		m.waiting = nil
	}
	return nil
}

// hear has the dispatcher learn of a destination, and says what is wrong with what it gives back.
func (p *dispatchPlay) hear(m *dispatchModel, d driver.Destination, health driver.Health) error {
	want := m.learn(d, health)
	got, _ := p.learn(map[driver.Destination]*queue{d: m.queueOf(d)}, map[driver.Destination]driver.Health{d: health})
	byID := func(a, b *item) int { return cmp.Compare(a.ID, b.ID) }
	slices.SortFunc(want, byID)
	slices.SortFunc(got, byID)
	if !slices.Equal(got, want) {
		return fmt.Errorf("%v is %s: gave %d back, want %d", d, health, len(got), len(want))
	}
	return nil
}

// end lets all end, and says what the dispatcher still holds.
func (p *dispatchPlay) end() error {
	p.withdraw()
	p.began()
	for _, call := range p.calls {
		call.end <- nil
	}
	p.running.Wait()
	for _, q := range p.all {
		if len(q.tenants)+len(q.ring)+len(p.dispatcher.stuck[q])+q.running+q.ready+q.slow+q.hanging+len(p.bytes)+len(q.gates.under) != 0 || p.hangingBytes != 0 || p.leftBehind.Load() != 0 {
			return fmt.Errorf("at rest it holds %d namespaces, %d turns, %d running, %d slow, %d hanging with %d bytes, %d ready, bytes of %d",
				len(q.tenants), len(q.ring), q.running, q.slow, q.hanging, p.hangingBytes, q.ready, len(p.bytes))
		}
	}
	return nil
}
