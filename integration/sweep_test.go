package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// newNode makes a node that is quick in everything, changed by the options.
func newNode(t testing.TB, db *pgtest.DB, sink driver.Sink, options ...func(*driver.Config)) *driver.Sweeper {
	t.Helper()
	config := driver.Config{
		Node: "n1", Sink: sink,
		Tick: 20 * time.Millisecond, MinPause: 20 * time.Millisecond,
		RescueEvery: 50 * time.Millisecond, HeartbeatEvery: 50 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, option := range options {
		option(&config)
	}
	s, err := driver.NewSweeper(db.Pool, config)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// sweepNode is a node whose Run is under way.
type sweepNode struct {
	*driver.Sweeper
	cancel context.CancelCauseFunc
	done   chan struct{}
	err    error // of Run, once done is closed
}

// startNode calls Run in a goroutine, which has ended when the test is over.
func startNode(t testing.TB, s *driver.Sweeper) *sweepNode {
	ctx, cancel := context.WithCancelCause(context.Background())
	n := &sweepNode{Sweeper: s, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(n.done)
		n.err = s.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel(nil)
		<-n.done
	})
	return n
}

// ended waits for Run to return, and checks that nothing is left in flight (INV-13).
func (n *sweepNode) ended(t testing.TB) error {
	t.Helper()
	select {
	case <-n.done:
	case <-time.After(30 * time.Second):
		t.Fatal("Run has not returned")
	}
	if stats := n.Stats(); stats.UsedBytes != 0 || stats.InFlight != 0 {
		t.Errorf("INV-13: %d bytes of %d messages are still in flight after the end", stats.UsedBytes, stats.InFlight)
	}
	return n.err
}

// drained drains the node and fails unless Run returns nil.
func (n *sweepNode) drained(t testing.TB) driver.Stats {
	t.Helper()
	n.Drain()
	if err := n.ended(t); err != nil {
		t.Errorf("Run: %v", err)
	}
	return n.Stats()
}

// eventually polls until ok says true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("never: %s", what)
		case <-tick.C:
		}
	}
}

// fill enqueues n messages with a payload of so many bytes; their keys are the
// namespace, a dash and a number from 1.
func fill(t testing.TB, q querier, namespace, queue string, n, bytes int) {
	t.Helper()
	run(t, q, `select outbox.enqueue_batch(array_fill($1::text, array[$3::int]), array_fill($2::text, array[$3::int]),
       array(select $1 || '-' || i from generate_series(1, $3::int) as i),
       array(select convert_to(repeat('x', $4::int), 'UTF8') from generate_series(1, $3::int)))`,
		namespace, queue, n, bytes)
}

// wantOutcomes compares how many messages are in each status.
func wantOutcomes(t testing.TB, q querier, want map[string]int) {
	t.Helper()
	rows, _ := q.Query(t.Context(), "select m.status, count(*)::int from outbox.messages as m group by 1")
	got := map[string]int{}
	var status string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&status, &n}, func() error { got[status] = n; return nil }); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("messages by status: %v, want %v", got, want)
	}
}

// collector is a sink that notes what it delivers.
type collector struct {
	mu   sync.Mutex
	seen []driver.Message
}

func (c *collector) Deliver(_ context.Context, m driver.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = append(c.seen, m)
	return nil
}

func (c *collector) messages() []driver.Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.seen)
}

func (c *collector) keys() []string {
	var keys []string
	for _, m := range c.messages() {
		keys = append(keys, m.DispatchKey)
	}
	slices.Sort(keys)
	return keys
}

// hanging is a sink that works until its context ends or it is let go.
type hanging struct {
	begun chan driver.Message // holds all that began
	let   chan struct{}
}

func newHanging() *hanging {
	return &hanging{begun: make(chan driver.Message, 10_000), let: make(chan struct{})}
}

func (h *hanging) Deliver(ctx context.Context, m driver.Message) error {
	h.begun <- m
	select {
	case <-h.let:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// What a sink answers decides what becomes of a message, however the answer is wrapped.
func TestSweepVerdicts(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	plain := errors.New("no\x00t \xff today")
	answers := map[string]struct {
		err     error
		status  string
		attempt int // charged when it is over
	}{
		"done":              {nil, "done", 1},
		"plain":             {plain, "pending", 1},
		"permanent":         {driver.Permanent(plain), "failed", 1},
		"permanent wrapped": {fmt.Errorf("so: %w", driver.Permanent(plain)), "failed", 1},
		"permanent joined":  {errors.Join(plain, driver.Permanent(plain)), "failed", 1},
		"later":             {driver.RetryAfter(plain, time.Hour), "pending", 1},
		"later joined":      {errors.Join(plain, fmt.Errorf("so: %w", driver.RetryAfter(plain, 1<<62))), "pending", 1},
		"undelivered":       {driver.Undelivered(plain), "pending", 0},
		"undelivered joined": {
			errors.Join(driver.Permanent(plain), driver.Undelivered(plain)), "pending", 0,
		},
		"nil error": {(*nilError)(nil), "pending", 1},
	}
	for name := range answers {
		put(t, db.Pool, "ns", "q", name)
	}
	put(t, db.Pool, "ns", "q", "panic")
	run(t, db.Pool, `select outbox.configure('{"retry_base": "1 h", "retry_cap": "1 h"}')`)
	s := newNode(t, db, driver.SinkFunc(func(_ context.Context, m driver.Message) error {
		if m.DispatchKey == "panic" {
			panic("at\x00 the disco")
		}
		return answers[m.DispatchKey].err
	}))
	if err := s.Once(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	for name, want := range answers {
		got := one[string](t, db.Pool, "select status || ' ' || attempt from outbox.messages where dispatch_key = $1", name)
		if got != fmt.Sprint(want.status, " ", want.attempt) {
			t.Errorf("%s: %s, want %s %d", name, got, want.status, want.attempt)
		}
	}
	for name, part := range map[string]string{"panic": "panicked: at\uFFFD the disco", "plain": "no\uFFFDt \uFFFD today", "nil error": "nil"} {
		got := one[string](t, db.Pool, `select f.error from outbox.failure as f join outbox.message as m using (id) where m.dispatch_key = $1`, name)
		if !strings.Contains(got, part) {
			t.Errorf("%s failed for the reason %q, want %q in it", name, got, part)
		}
	}
	if !one[bool](t, db.Pool, `select visible_after between now() + interval '50 min' and now() + interval '1 h'
from outbox.messages where dispatch_key = 'later'`) {
		t.Error("RetryAfter of an hour was not honoured")
	}
	if !one[bool](t, db.Pool, `select visible_after > now() + interval '100 years' from outbox.messages where dispatch_key = 'later joined'`) {
		t.Error("RetryAfter of 146 years was not honoured")
	}
}

// nilError is the classic: a nil pointer in an error interface, whose method reads it.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }
