package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// wantUntouched fails unless nothing is claimed, and n messages pend as if nobody had
// ever tried them (INV-10).
func wantUntouched(t testing.TB, db *pgtest.DB, n int) {
	t.Helper()
	if claimed := one[int](t, db.Pool, "select count(*) from outbox.claimed"); claimed != 0 {
		t.Errorf("%d messages are still claimed", claimed)
	}
	if got := one[int](t, db.Pool, "select count(*) from outbox.pending where attempt = 0 and visible_after <= now()"); got != n {
		t.Errorf("INV-10: %d messages pend untouched, want %d", got, n)
	}
}

func TestDrainBeforeRun(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	fill(t, db.Pool, "ns", "q", 10, 10)
	s := newNode(t, db, newHanging())
	s.Drain()
	s.Drain()
	if err := s.Run(t.Context()); err != nil {
		t.Error(err)
	}
	if s.Stats().Claimed != 0 {
		t.Errorf("a drained node claimed: %+v", s.Stats())
	}
	wantUntouched(t, db, 10)
}

// A drain is heard while claims come back full, one after the other.
func TestDrainUnderBacklog(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	fill(t, db.Pool, "ns", "q", 5000, 10)
	var n *sweepNode
	var s *node.Node
	s = newNode(t, db, node.SinkFunc(func(context.Context, driver.Delivery) error {
		if s.Stats().Done > 100 {
			s.Drain()
		}
		return nil
	}), func(c *node.Config) { c.Batch = 20 })
	n = startNode(t, s)
	if err := n.ended(t); err != nil {
		t.Error(err)
	}
	stats := n.Stats()
	if stats.Claimed >= 2000 || stats.Done != stats.Claimed {
		t.Errorf("a drain after 100 messages: %+v", stats)
	}
	wantUntouched(t, db, 5000-int(stats.Done))
}

// INV-12: a drain finishes what is in flight, also what waits for a slot.
func TestDrainFinishes(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	fill(t, db.Pool, "ns", "q", 30, 10)
	sink := newHanging()
	n := startNode(t, newNode(t, db, sink, func(c *node.Config) { c.Slots, c.Share = 3, 1 }))
	eventually(t, "all is claimed", func() bool { return n.Stats().InFlight == 30 && len(sink.begun) == 3 })
	n.Drain()
	await(t, db.Pool, "select coalesce(paused, '') = 'draining' from outbox.node where node = 'n1'")
	put(t, db.Pool, "ns", "q", "late")
	close(sink.let)
	if s := n.drained(t); s.Done != 30 || s.Claimed != 30 {
		t.Errorf("drained with %+v, want 30 done", s)
	}
	wantUntouched(t, db, 1)
}

// INV-10: what a drain cannot finish in time is handed back and not charged.
func TestDrainTimesOut(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	fill(t, db.Pool, "ns", "q", 30, 10)
	sink := newHanging()
	n := startNode(t, newNode(t, db, sink, func(c *node.Config) { c.Slots, c.DrainTimeout = 8, 50*time.Millisecond }))
	eventually(t, "deliveries hang", func() bool { return n.Stats().InFlight == 30 && len(sink.begun) == 4 })
	if s := n.drained(t); s.Released != 30 || s.Done != 0 {
		t.Errorf("drained with %+v, want 30 released", s)
	}
	wantUntouched(t, db, 30)
}

// INV-10, INV-13: ctx ends all at once. What was handed on or waited is given back; an
// attempt that had failed before is charged.
func TestAbort(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	fill(t, db.Pool, "ns", "q", 30, 1000)
	put(t, db.Pool, "other", "q", "bad")
	hang := newHanging()
	n := startNode(t, newNode(t, db, node.SinkFunc(func(ctx context.Context, m driver.Delivery) error {
		if m.DispatchKey == "bad" {
			return node.RetryAfter(errors.New("boom"), time.Hour)
		}
		return hang.Deliver(ctx, m)
	}), func(c *node.Config) { c.Slots = 8 }))
	eventually(t, "deliveries hang", func() bool { return n.Stats().InFlight == 30 && n.Stats().Retried == 1 })
	stop := errors.New("stop")
	n.cancel(stop)
	if err := n.ended(t); err != stop {
		t.Errorf("Run returns %v, want the cause", err)
	}
	if s := n.Stats(); s.Released != 30 {
		t.Errorf("stats are %+v, want 30 released", s)
	}
	wantUntouched(t, db, 30)
	if got := one[int](t, db.Pool, "select attempt from outbox.messages where dispatch_key = 'bad'"); got != 1 {
		t.Errorf("INV-10: the failed message has %d attempts, want 1", got)
	}
}

// INV-10: what a full queue had refused is handed back too.
func TestAbortWithRefused(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	for i := range 5 {
		fill(t, db.Pool, fmt.Sprint("ns", i), "stalled", 4, 10)
	}
	n := startNode(t, newNode(t, db, newHanging(), func(c *node.Config) {
		c.Routes = map[string]node.Sink{"stalled": newHanging()}
		c.Slots, c.Spare, c.Queue, c.Stash, c.Batch = 2, -1, 3, 1, 10
	}))
	eventually(t, "a hand-off is refused", func() bool { return n.Stats().Pauses == 1 })
	n.cancel(nil)
	if err := n.ended(t); !errors.Is(err, context.Canceled) {
		t.Errorf("Run returns %v", err)
	}
	wantUntouched(t, db, 20)
}

// ctx may end at any moment, also in the middle of a claim or a settle: no message is left
// to its lease, and none is counted twice.
func TestAbortAtAnyMoment(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	fill(t, db.Pool, "ns", "q", 3000, 10)
	random := rand.New(rand.NewPCG(1, 2))
	stop := errors.New("stop")
	done := 0
	for range 60 {
		ctx, cancel := context.WithCancelCause(t.Context())
		s := newNode(t, db, node.SinkFunc(func(context.Context, driver.Delivery) error { return nil }), func(c *node.Config) {
			c.Batch, c.Tick, c.RescueEvery, c.PruneEvery = 10, time.Millisecond, time.Hour, -1
		})
		timer := time.AfterFunc(time.Duration(random.IntN(30_000))*time.Microsecond, func() { cancel(stop) })
		if err := s.Run(ctx); err != stop {
			t.Fatalf("Run returns %v, want the cause", err)
		}
		timer.Stop()
		got := s.Stats()
		if got.Lost != 0 || got.Claimed != got.Done+got.Released || got.UsedBytes != 0 {
			t.Fatalf("stats are %+v", got)
		}
		if n := one[int](t, db.Pool, "select count(*) from outbox.claimed"); n != 0 {
			t.Fatalf("%d messages are left to their leases", n)
		}
		done += int(got.Done)
	}
	wantUntouched(t, db, 3000-done)
}

// A sink that is closed ends the node with its error; what it holds is handed back.
func TestSinkClosedEndsTheNode(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	fill(t, db.Pool, "ns", "q", 100, 100)
	fill(t, db.Pool, "other", "mail", 100, 100)
	var calls atomic.Int64
	var mail collector
	n := startNode(t, newNode(t, db, node.SinkFunc(func(context.Context, driver.Delivery) error {
		if calls.Add(1) > 10 {
			return errors.Join(errors.New("broken pipe"), fmt.Errorf("stdout: %w", node.ErrSinkClosed))
		}
		return nil
	}), func(c *node.Config) { c.Routes = map[string]node.Sink{"mail": &mail} }))
	if err := n.ended(t); !errors.Is(err, node.ErrSinkClosed) {
		t.Errorf("Run returns %v, want ErrSinkClosed", err)
	}
	s := n.Stats()
	if s.Done != 10+int64(len(mail.messages())) {
		t.Errorf("%d done, want 10 and the %d of the other route", s.Done, len(mail.messages()))
	}
	wantUntouched(t, db, 200-int(s.Done))
}

// A sink that does not listen cannot hold the node: its messages are released, and the
// error says so.
func TestSinkThatDoesNotListen(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	fill(t, db.Pool, "ns", "q", 5, 100)
	let, begun := make(chan struct{}), make(chan struct{}, 5)
	defer close(let)
	n := startNode(t, newNode(t, db, node.SinkFunc(func(context.Context, driver.Delivery) error {
		begun <- struct{}{}
		<-let
		return nil
	}), func(c *node.Config) { c.Slots, c.Share = 2, 1 }))
	eventually(t, "deliveries hang", func() bool { return len(begun) == 2 && n.Stats().InFlight == 5 })
	n.cancel(nil)
	err := n.ended(t)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "still works") {
		t.Errorf("Run returns %v", err)
	}
	wantUntouched(t, db, 5)
}

// Nor can it hold a drain for longer than that may take, or a second where that is little.
func TestDrainOfASinkThatDoesNotListen(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	fill(t, db.Pool, "ns", "q", 5, 100)
	let, begun := make(chan struct{}), make(chan struct{}, 5)
	defer close(let)
	n := startNode(t, newNode(t, db, node.SinkFunc(func(context.Context, driver.Delivery) error {
		begun <- struct{}{}
		<-let
		return nil
	}), func(c *node.Config) { c.Slots, c.Share, c.DrainTimeout = 2, 1, 50*time.Millisecond }))
	eventually(t, "deliveries hang", func() bool { return len(begun) == 2 && n.Stats().InFlight == 5 })
	n.Drain()
	if err := n.ended(t); err == nil || !strings.Contains(err.Error(), "a sink still works 1s after it was told to stop") {
		t.Errorf("Run returns %v", err)
	}
	wantUntouched(t, db, 5)
}

// No goroutine outlives Run. It is the one test here that is not parallel: it looks at all
// goroutines there are.
func TestNoGoroutineOutlivesRun(t *testing.T) {
	db := pg.New(t)
	fill(t, db.Pool, "ns", "q", 300, 10)
	fill(t, db.Pool, "hang", "mail", 300, 10)
	put(t, db.Pool, "ns", "q", "panic")
	if err := db.Pool.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := goleak.IgnoreCurrent()
	hang := newHanging()
	n := startNode(t, newNode(t, db, node.SinkFunc(func(_ context.Context, m driver.Delivery) error {
		if m.DispatchKey == "panic" {
			panic("boom")
		}
		return nil
	}), func(c *node.Config) { c.Routes = map[string]node.Sink{"mail": hang} }))
	eventually(t, "work is under way", func() bool { return n.Stats().Done >= 300 && len(hang.begun) == 32 })
	n.cancel(nil)
	if err := n.ended(t); !errors.Is(err, context.Canceled) {
		t.Errorf("Run returns %v", err)
	}
	if err := goleak.Find(before, goleak.IgnoreAnyFunction("github.com/jackc/pgx/v5/pgxpool.(*Pool).backgroundHealthCheck")); err != nil {
		t.Error(err)
	}
}

// A ctx that is over before Run begins is what Run returns.
func TestRunWithoutTime(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	if err := newNode(t, db, newHanging()).Run(ctx); err != stop {
		t.Errorf("Run returns %v, want the cause", err)
	}
}
