package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// What a dead node had claimed is delivered by the Once that takes it back, not by the next.
func TestSweepOnceDeliversWhatItRescues(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	fill(t, db.Pool, "ns", "q", 20, 10)
	claim(t, db.Pool, "dead", 20)
	expire(t, db.Pool, "ns")
	s := newNode(t, db, new(collector))
	if err := s.Once(t.Context(), 0); err != nil || s.Stats().Done != 20 {
		t.Errorf("Once gives %v and delivers %d messages, want 20", err, s.Stats().Done)
	}
}

// Once ends after so many claims, or when there is nothing left.
func TestSweepOnceEnds(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	fill(t, db.Pool, "ns", "q", 50, 10)
	var sink collector
	few := func(c *node.Config) { c.Batch = 10 }
	s := newNode(t, db, &sink, few)
	if err := s.Once(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if stats := s.Stats(); stats.Sweeps != 2 || stats.Done != 20 {
		t.Errorf("two sweeps of 10: %+v", stats)
	}
	if err := newNode(t, db, &sink, few).Once(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, db.Pool, map[string]int{"done": 50})
	s = newNode(t, db, &sink, few)
	if err := s.Once(t.Context(), 0); err != nil || s.Stats().Sweeps != 1 {
		t.Errorf("with nothing to do: %v after %d sweeps", err, s.Stats().Sweeps)
	}
	if one[bool](t, db.Pool, "select exists (select from outbox.node)") {
		t.Error("Once made a live node")
	}
}

// A sink that fails everything does not keep Once: what is to be retried is due later,
// what was handed back untried would come again and again.
func TestSweepOnceEndsWithABadSink(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, test := range map[string]struct {
		answer error
		want   error
		after  map[string]int
		tried  int // attempts charged of all
	}{
		"fails":       {boom, nil, map[string]int{"pending": 30}, 30},
		"at once":     {node.RetryAfter(boom, 0), nil, map[string]int{"failed": 30}, 90},
		"permanently": {node.Permanent(boom), nil, map[string]int{"failed": 30}, 30},
		"undelivered": {node.Undelivered(boom), boom, map[string]int{"pending": 30}, 0},
		"closed":      {fmt.Errorf("a: %w", node.ErrSinkClosed), node.ErrSinkClosed, map[string]int{"pending": 30}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pg.New(t)
			run(t, db.Pool, `select outbox.configure('{"max_attempts": 3, "retry_base": "1 h"}')`)
			fill(t, db.Pool, "ns", "q", 30, 10)
			s := newNode(t, db, node.SinkFunc(func(context.Context, driver.Delivery) error { return test.answer }))
			ctx, cancel := context.WithTimeout(t.Context(), patience())
			defer cancel()
			if err := s.Once(ctx, 0); !errors.Is(err, test.want) {
				t.Errorf("Once gives %v, want %v", err, test.want)
			}
			wantOutcomes(t, db.Pool, test.after)
			if tried := one[int](t, db.Pool, "select sum(attempt) from outbox.messages"); tried != test.tried {
				t.Errorf("%d attempts are charged, want %d", tried, test.tried)
			}
		})
	}
}

// A node whose sink hands everything back does not claim at full speed: once a tick.
func TestSweepDoesNotSpin(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	fill(t, db.Pool, "ns", "q", 200, 10)
	n := startNode(t, newNode(t, db, node.SinkFunc(func(context.Context, driver.Delivery) error {
		return node.Undelivered(errors.New("not today"))
	}), func(c *node.Config) { c.Tick = time.Hour }))
	eventually(t, "all that was claimed is given back", func() bool {
		s := n.Stats()
		return s.Claimed > 0 && s.Released == s.Claimed
	})
	await(t, db.Pool, "select heartbeat_at > $1::timestamptz + interval '200 ms' from outbox.node",
		one[time.Time](t, db.Pool, "select clock_timestamp()"))
	if s := n.drained(t); s.Sweeps > 3 {
		t.Errorf("%d sweeps within one tick", s.Sweeps)
	}
	if one[int](t, db.Pool, "select max(attempt) from outbox.pending") != 0 {
		t.Error("an attempt is charged for a message that was not tried (INV-10)")
	}
}

// Two that overlap, as cron starts them, share the work or leave it to the first: each
// message is delivered once, before the last of them ends: whoever is shut out is shut out by one
// that goes on.
func TestSweepOnceOverlaps(t *testing.T) {
	t.Parallel()
	for _, names := range [][2]string{{"once", "once"}, {"once-1", "once-2"}} {
		t.Run(names[1], func(t *testing.T) {
			t.Parallel()
			db := pg.New(t)
			fill(t, db.Pool, "ns", "q", 500, 10)
			var sink collector
			var nodes [2]*node.Node
			done := make(chan error, 2)
			for i, name := range names {
				nodes[i] = newNode(t, db, &sink, func(c *node.Config) { c.Node, c.Batch = name, 10 })
				go func() { done <- nodes[i].Once(t.Context(), 0) }()
			}
			for range names {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			keys := sink.keys()
			if len(keys) != 500 || len(slices.Compact(keys)) != 500 {
				t.Errorf("%d deliveries, want 500 of as many keys", len(keys))
			}
			if lost := nodes[0].Stats().Lost + nodes[1].Stats().Lost; lost != 0 {
				t.Errorf("%d claims were lost", lost)
			}
		})
	}
}
