package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// observed counts what a node tells its observer.
type observed struct {
	mu        sync.Mutex // the test reads while the node runs
	events    map[node.Event]int64
	delivered map[node.Event]int64
	calls     map[string]int
	last      node.State
	failures  []string
	surveys   []*node.Survey
}

func newObserved() *observed {
	return &observed{events: map[node.Event]int64{}, delivered: map[node.Event]int64{}, calls: map[string]int{}}
}

func (o *observed) Message(m *driver.Delivery, became node.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events[became]++
	if m.ID == 0 || m.Namespace == "" || m.TaskQueue == "" || m.DispatchKey == "" {
		o.failures = append(o.failures, fmt.Sprintf("%v of a message without a name: %+v", became, m))
	}
}

func (o *observed) Delivered(_ *driver.Delivery, d node.Delivered) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.delivered[d.Said]++
	if d.Waited < 0 || d.Took < 0 || d.Waited > patience() || d.Took > patience() {
		o.failures = append(o.failures, fmt.Sprintf("a delivery waited for %v and took %v", d.Waited, d.Took))
	}
}

func (o *observed) Called(c node.Call) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls[c.Name]++
	if !slices.Contains(append(node.Calls(), node.Duties()...), c.Name) || c.Err != nil || c.Took < 0 || c.Name == "claim" != (c.Outcome != "") {
		o.failures = append(o.failures, fmt.Sprintf("a call was told as %+v", c))
	}
}

func (o *observed) Turned(s node.State) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last.Ended {
		o.failures = append(o.failures, "the loop turned after its end")
	}
	o.last = s
}

func (o *observed) Surveyed(s *node.Survey) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.surveys = append(o.surveys, s)
}

// An observer is told of the same messages as the node's own counts say, whatever becomes of
// them: each claimed message becomes one other thing, in the end.
func TestObserverIsToldOfEachMessage(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, `select outbox.configure('{"max_attempts": 2, "retry_base": "1 ms", "retry_cap": "1 ms"}')`)
	for _, namespace := range []string{"retry", "permanent", "untried", "own", "lost"} {
		fill(t, db.Pool, namespace, "q", 15, 10)
	}
	fill(t, db.Pool, "done", "q", 15, 300_000) // too large to come with the claim
	broken := errors.New("broken")
	sink := node.SinkFunc(func(ctx context.Context, m driver.Delivery) error {
		switch m.Namespace {
		case "retry":
			return broken
		case "permanent":
			return node.Permanent(broken)
		case "untried":
			return node.Undelivered(broken)
		case "own":
			if _, err := driver.Complete(ctx, db.Pool, []driver.Ref{m.Ref()}); err != nil {
				return err
			}
			return node.ErrSettled
		case "lost":
			_, err := db.Pool.Exec(ctx, "select outbox.cancel(array[$1])", m.DispatchKey)
			return err
		}
		return nil
	})
	told := newObserved()
	n := startNode(t, newNode(t, db, sink, func(c *node.Config) { c.Observer, c.Tick = told, 5*time.Millisecond }))
	await(t, db.Pool, "select count(*) = 75 from outbox.settled")
	eventually(t, "some are tried again and again", func() bool { return n.Stats().Released > 60 })
	s := n.drained(t)

	told.mu.Lock()
	defer told.mu.Unlock()
	for _, failure := range told.failures {
		t.Error(failure)
	}
	want := map[node.Event]int64{
		node.Claimed: s.Claimed, node.Done: 30, node.Retried: 15, node.Failed: 30, node.Released: s.Released, node.Lost: 15,
	}
	if fmt.Sprint(told.events) != fmt.Sprint(want) {
		t.Errorf("the observer was told of %v, want %v; stats %+v", told.events, want, s)
	}
	if sum := 30 + 15 + 30 + s.Released + 15; s.Claimed != sum {
		t.Errorf("%d messages were claimed, and %d became something", s.Claimed, sum)
	}
	if got := told.delivered; got[node.Done] != 45 || got[node.Retried] != 30 || got[node.Failed] != 15 || got[node.Released] < 60 {
		t.Errorf("deliveries ended as %v", got)
	}
	for _, name := range []string{"claim", "payloads", "complete", "retry", "fail", "release", "heartbeat", "rescue", "settings"} {
		if told.calls[name] == 0 {
			t.Errorf("no call %s was told of: %v", name, told.calls)
		}
	}
	if last := told.last; !last.Ended || last.Stats != s || last.Paused != node.PausedDraining || last.Shards != 0 || last.Failing != "" {
		t.Errorf("the last state is %+v, want %+v", last, s)
	}
}
