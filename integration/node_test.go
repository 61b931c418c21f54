package integration

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// newNode makes a node that is quick in everything, changed by the options.
func newNode(t testing.TB, db *pgtest.DB, sink node.Sink, options ...func(*node.Config)) *node.Node {
	t.Helper()
	config := node.Config{
		Node: "n1", Sink: sink,
		Tick: 20 * time.Millisecond, MinPause: 20 * time.Millisecond,
		RescueEvery: 50 * time.Millisecond, HeartbeatEvery: 50 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, option := range options {
		option(&config)
	}
	s, err := node.New(db.Pool, config)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// sweepNode is a node whose Run is under way.
type sweepNode struct {
	*node.Node
	cancel context.CancelCauseFunc
	done   chan struct{}
	err    error // of Run, once done is closed
}

// startNode calls Run in a goroutine, which has ended when the test is over.
func startNode(t testing.TB, s *node.Node) *sweepNode {
	ctx, cancel := context.WithCancelCause(context.Background())
	n := &sweepNode{Node: s, cancel: cancel, done: make(chan struct{})}
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
	case <-time.After(patience()):
		t.Fatal("Run has not returned")
	}
	if stats := n.Stats(); stats.UsedBytes != 0 || stats.InFlight != 0 {
		t.Errorf("INV-13: %d bytes of %d messages are still in flight after the end", stats.UsedBytes, stats.InFlight)
	}
	return n.err
}

// drained drains the node and fails unless Run returns nil.
func (n *sweepNode) drained(t testing.TB) node.Stats {
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
	deadline := time.NewTimer(patience())
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("waited for %v in vain: %s", patience(), what)
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
	seen []driver.Delivery
}

func (c *collector) Deliver(_ context.Context, m driver.Delivery) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = append(c.seen, m)
	return nil
}

func (c *collector) messages() []driver.Delivery {
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
	begun chan driver.Delivery // holds all that began
	let   chan struct{}
}

func newHanging() *hanging {
	return &hanging{begun: make(chan driver.Delivery, 10_000), let: make(chan struct{})}
}

func (h *hanging) Deliver(ctx context.Context, m driver.Delivery) error {
	h.begun <- m
	select {
	case <-h.let:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Messages go to the sink of their route, each once, and are settled (INV-2).
func TestSweepDeliversByRoute(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	var rest, mail, audit collector
	fill(t, db.Pool, "a", "jobs", 150, 10)
	fill(t, db.Pool, "b", "mail", 150, 10)
	fill(t, db.Pool, "c", "audit", 150, 0)
	n := startNode(t, newNode(t, db, &rest, func(c *node.Config) {
		c.Routes = map[string]node.Sink{"mail": &mail, "audit": &audit}
	}))
	eventually(t, "all is settled", func() bool { return n.Stats().Done == 450 })
	stats := n.drained(t)
	for namespace, sink := range map[string]*collector{"a": &rest, "b": &mail, "c": &audit} {
		keys := sink.keys()
		if len(keys) != 150 || len(slices.Compact(keys)) != 150 {
			t.Errorf("%d messages came to the sink of %s, want 150, each once", len(keys), namespace)
		}
		for _, m := range sink.messages() {
			if m.Namespace != namespace || m.Attempt != 1 {
				t.Errorf("the sink of %s got %s of %s, attempt %d", namespace, m.DispatchKey, m.Namespace, m.Attempt)
			}
		}
	}
	wantOutcomes(t, db.Pool, map[string]int{"done": 450})
	if stats.Claimed != 450 || stats.Lost+stats.Released+stats.Retried+stats.Failed != 0 {
		t.Errorf("stats are %+v", stats)
	}
	if one[bool](t, db.Pool, "select exists (select from outbox.node)") {
		t.Error("a node that has drained is still on record")
	}
}

// However small the node is made, it needs no tick to go on.
func TestSweepSmallNodes(t *testing.T) {
	t.Parallel()
	for name, option := range map[string]func(*node.Config){
		"one of all":  func(c *node.Config) { c.Slots, c.Queue, c.Batch = 1, 1, 1 },
		"one slot":    func(c *node.Config) { c.Slots = 1 },
		"queue of 1":  func(c *node.Config) { c.Queue = 1 },
		"batch of 1":  func(c *node.Config) { c.Batch = 1 },
		"tiny share":  func(c *node.Config) { c.Share = 1e-9 },
		"whole share": func(c *node.Config) { c.Share = 1 },
		"big batch":   func(c *node.Config) { c.Batch, c.Queue = 10_000, 3 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pg.New(t)
			for i := range 10 {
				fill(t, db.Pool, fmt.Sprint("ns", i), "q", 20, 1)
			}
			run(t, db.Pool, "select outbox.set_quota('ns0', 1)")
			var sink collector
			n := startNode(t, newNode(t, db, &sink, option, func(c *node.Config) { c.Tick = time.Hour }))
			eventually(t, "all is settled", func() bool { return n.Stats().Done == 200 })
			n.drained(t)
			if keys := sink.keys(); len(keys) != 200 || len(slices.Compact(keys)) != 200 {
				t.Errorf("%d deliveries, want 200 of as many keys", len(keys))
			}
		})
	}
}

// A short queue holds up no slot: claims go on at once as long as they fill it.
func TestSweepShortQueueFillsSlots(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	fill(t, db.Pool, "ns", "q", 30, 10)
	sink := newHanging()
	n := startNode(t, newNode(t, db, sink, func(c *node.Config) { c.Queue, c.Slots, c.Share, c.Tick = 1, 20, 1, time.Hour }))
	eventually(t, "all slots work", func() bool { return len(sink.begun) == 20 })
	close(sink.let)
	eventually(t, "all is settled", func() bool { return n.Stats().Done == 30 })
	n.drained(t)
}

// INV-13: payloads that are empty, and ones larger than the whole budget, go through, and
// the budget is exceeded by no more than one payload.
func TestSweepPayloadsAndBudget(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	fill(t, db.Pool, "empty", "q", 200, 0)
	fill(t, db.Pool, "small", "q", 200, 300)
	fill(t, db.Pool, "huge", "q", 20, 1<<20)
	const budget = 2000
	var most atomic.Int64
	var s *node.Node
	s = newNode(t, db, node.SinkFunc(func(_ context.Context, m driver.Delivery) error {
		used := s.Stats().UsedBytes
		for old := most.Load(); used > old && !most.CompareAndSwap(old, used); old = most.Load() {
			continue
		}
		if want := map[string]int{"empty": 0, "small": 300, "huge": 1 << 20}[m.Namespace]; len(m.Payload) != want {
			t.Errorf("a payload of %s has %d bytes, want %d", m.Namespace, len(m.Payload), want)
		}
		return nil
	}), func(c *node.Config) { c.Budget = budget; c.MinPause = time.Millisecond; c.Tick = time.Millisecond })
	n := startNode(t, s)
	eventually(t, "all is settled", func() bool { return n.Stats().Done == 420 })
	stats := n.drained(t)
	if stats.Pauses == 0 {
		t.Error("a payload above the budget paused nothing")
	}
	if most := most.Load(); most < 1<<20 || most >= budget+1<<20 {
		t.Errorf("%d bytes were in flight, want a payload of %d and less than the budget of %d beside it", most, 1<<20, budget)
	}
}

// No transaction is open while a sink works: not the claim's, nor any other.
func TestSweepHoldsNoTransaction(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	put(t, db.Pool, "ns", "q", "k")
	admin := db.Admin(t)
	s := newNode(t, db, node.SinkFunc(func(context.Context, driver.Delivery) error {
		eventually(t, "an instant without a transaction", func() bool {
			return one[int](t, admin, `select count(*) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null`) == 0
		})
		return nil
	}), func(c *node.Config) { c.Tick = time.Hour })
	if err := s.Once(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
}

// INV-8: polls of an outbox with nothing to give write nothing: no row, no transaction id.
func TestSweepIdlePollsWriteNothing(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	for _, prepare := range []string{
		"select 1",
		"select outbox.set_quota('held', 0), outbox.enqueue('held', 'q', 'k1', '')",
		"select outbox.enqueue('later', 'q', 'k2', '', delay => interval '1 h')",
		"select outbox.pause('paused'), outbox.enqueue('paused', 'q', 'k3', '')",
	} {
		run(t, conn, prepare)
		tx := begin(t, conn)
		if rows := claim(t, tx, "n1", 100); len(rows) != 0 {
			t.Fatalf("after %s: claimed %v", prepare, rows)
		}
		run(t, tx, "select outbox.rescue(), outbox.prune()")
		if one[bool](t, tx, "select pg_current_xact_id_if_assigned() is not null") {
			t.Errorf("after %s: an idle poll wrote something", prepare)
		}
		commit(t, tx)
	}
}

// What is wrong with a node's configuration is found when it starts.
func TestSweepRefusesToStart(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	var sink collector
	for want, option := range map[string]func(*node.Config){
		"shard 16: the outbox has shards 0 to 15": func(c *node.Config) { c.Shards = []int32{0, 16} },
		"shard -1":       func(c *node.Config) { c.Shards = []int32{-1} },
		"Batch is 10001": func(c *node.Config) { c.Batch = 10_001 },
	} {
		err := newNode(t, db, &sink, option).Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Run gives %v, want an error with %q", err, want)
		}
	}
	s := newNode(t, db, &sink)
	if err := s.Once(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); err == nil {
		t.Error("a node that has run ran again")
	}
}
