package node

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/watermark"
)

// notes is an observer that keeps what it is told.
type notes struct {
	events    []Event
	delivered []Delivered
	calls     []Call
}

func (n *notes) Message(_ *driver.Delivery, became Event) { n.events = append(n.events, became) }

func (n *notes) Delivered(_ *driver.Delivery, delivery Delivered) {
	n.delivered = append(n.delivered, delivery)
}
func (n *notes) Called(c Call) { n.calls = append(n.calls, c) }
func (n *notes) Turned(State)  {}

func (n *notes) Surveyed(*Survey) {}

// The observer is told how long a message waited for its delivery, how long that took, and what the
// sink said; however long the loop takes to hear of it. A message whose delivery has not
// begun is none.
func TestObserveDeliveries(t *testing.T) {
	boom := errors.New("boom")
	for name, test := range map[string]struct {
		sink SinkFunc
		want []Delivered
	}{
		"done": {func(context.Context, driver.Delivery) error { time.Sleep(time.Second); return nil }, []Delivered{{3 * time.Second, time.Second, Done}}},
		"settled by the sink": {
			func(context.Context, driver.Delivery) error { return ErrSettled }, []Delivered{{3 * time.Second, 0, Done}},
		},
		"retry":     {func(context.Context, driver.Delivery) error { return boom }, []Delivered{{3 * time.Second, 0, Retried}}},
		"permanent": {func(context.Context, driver.Delivery) error { return Permanent(boom) }, []Delivered{{3 * time.Second, 0, Failed}}},
		"untried":   {func(context.Context, driver.Delivery) error { return Undelivered(boom) }, []Delivered{{3 * time.Second, 0, Released}}},
		"given up": {
			func(context.Context, driver.Delivery) error { time.Sleep(time.Hour); return nil },
			[]Delivered{{3 * time.Second, 10*time.Second + graceTime, Retried}},
		},
		"not begun": {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDispatcher(limits{slots: 1, shareSlots: 1, shareBytes: 1, capacity: 2, timeout: 10 * time.Second, slow: time.Second}, bubbleClock())
				told := &notes{}
				l := &loop{config: Config{Observer: told}, dispatch: d, clock: d.clock}
				it := claimed(1, "ns")
				l.entered(it, d.clock())
				time.Sleep(3 * time.Second)
				if test.sink == nil {
					it.lose()
				}
				offered(d, d.newQueue(test.sink), it)
				<-d.wake
				time.Sleep(time.Minute) // the loop is busy
				for _, it := range d.collect() {
					l.delivered(it)
				}
				if !slices.Equal(told.delivered, test.want) || !slices.Equal(told.events, []Event{Claimed}) {
					t.Errorf("told of %v and the events %v, want %v", told.delivered, told.events, test.want)
				}
				d.stop(nil)
				d.running.Wait()
			})
		})
	}
}

// What the observer is told of the database: a call that fails is named until one works. A heartbeat
// that works makes up for it only where the node makes no claims. What fails because the node
// ends says nothing.
func TestObserveFailures(t *testing.T) {
	boom := errors.New("boom")
	control, err := watermark.New(watermark.Params{HighBytes: 2, LowBytes: 1}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	told := &notes{}
	clock := func() int64 { return 7 }
	l := &loop{
		config: Config{Batch: 1, Observer: told}, outbox: driver.OutboxSettings{MaxBatch: 1},
		clock: clock, control: control, dispatch: newDispatcher(limits{capacity: 1}, clock),
	}
	l.defaultQueue = l.dispatch.newQueue(nil)
	ended, end := context.WithCancel(t.Context())
	end()
	call := func(ctx context.Context, name string, err error) func() {
		return func() { l.called(ctx, Call{Name: name, Err: err}) }
	}
	beat := func(ctx context.Context, err error) func() {
		return func() { l.observeDuty(ctx, &l.duties.heartbeat, 4, err) }
	}
	for i, step := range []struct {
		do         func()
		failed     string
		beatFailed bool
		calls      int
		shards     int
	}{
		{call(t.Context(), "claim", nil), "", false, 1, 1},
		{call(t.Context(), "claim", boom), "claim", false, 2, 1},
		{beat(t.Context(), nil), "claim", false, 3, 1},
		{beat(t.Context(), boom), "claim", true, 4, 1},
		{beat(ended, boom), "claim", true, 4, 1},
		{beat(t.Context(), nil), "", false, 5, 0}, // it has lost its shards: it claims no more
		{call(ended, "complete", boom), "", false, 5, 1},
		{call(t.Context(), "complete", boom), "complete", false, 6, 1},
		{call(t.Context(), "claim", nil), "", false, 7, 1},
	} {
		l.shards = make([]int32, step.shards)
		step.do()
		if l.seen.failed != step.failed || l.seen.beatFailed != step.beatFailed || len(told.calls) != step.calls {
			t.Errorf("step %d: %+v after %d calls, want %+v", i, l.seen, len(told.calls), step)
		}
	}
	if c := told.calls[3]; c.Name != "heartbeat" || c.Took != 4 || c.Err != boom {
		t.Errorf("the heartbeat was told as %+v", c)
	}
}
