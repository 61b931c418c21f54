package integration

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
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

// parts are the counts of shards that live nodes own, sorted.
const parts = "select coalesce(array_agg(cardinality(shards) order by cardinality(shards)), '{}') from outbox.nodes where live"

// named gives a node a name.
func named(name string) func(*node.Config) { return func(c *node.Config) { c.Node = name } }

// Nodes find their shards by themselves: they share them when they come, take over what
// one leaves, also while they are paused, and serve what they have been given.
func TestNodesShareShards(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	awaitParts := func(want ...int) {
		t.Helper()
		await(t, db.Pool, "select ("+parts+") = $1::int[] and outbox.unowned_shards() = '{}'", want)
	}
	var sink collector
	hang := newHanging()
	a := startNode(t, newNode(t, db, &sink, named("a")))
	awaitParts(16)
	// b pauses at once, with all the quota's messages in flight, and is a live node still.
	fill(t, db.Pool, "ns", "q", 100, 10)
	eventually(t, "all is settled", func() bool { return a.Stats().Done == 100 })
	b := startNode(t, newNode(t, db, hang, named("b"), func(c *node.Config) { c.Budget, c.Slots, c.Share = 100, 100, 1 }))
	awaitParts(8, 8)
	eventually(t, "b is paused", func() bool {
		fill(t, db.Pool, fmt.Sprint("more", rand.Uint64()), "q", 50, 10)
		return b.Stats().Pauses > 0
	})
	await(t, db.Pool, "select paused is not null and live and cardinality(shards) = 8 from outbox.nodes where node = 'b'")
	c := startNode(t, newNode(t, db, &sink, named("c")))
	awaitParts(5, 5, 6)
	// a stops; what it owned goes to the others, b's messages in flight stay with b.
	a.drained(t)
	awaitParts(8, 8)
	b.Drain()
	await(t, db.Pool, "select paused = 'draining' and shards = '{}' from outbox.nodes where node = 'b'")
	awaitParts(0, 16)
	close(hang.let)
	if err := b.ended(t); err != nil {
		t.Error(err)
	}
	awaitParts(16)
	await(t, db.Pool, "select count(*) = 0 from outbox.messages where status in ('pending', 'claimed')")
	if s := c.drained(t); s.Lost != 0 {
		t.Errorf("lost %d", s.Lost)
	}
	if got := one[int](t, db.Pool, "select cardinality(outbox.unowned_shards())"); got != 16 {
		t.Errorf("%d shards are unowned after the last node left, want 16", got)
	}
}

// A node without a shard claims nothing, and costs the database no claims.
func TestStandby(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, "select outbox.heartbeat('fixed', outbox.all_shards())")
	fill(t, db.Pool, "ns", "q", 10, 10)
	var sink collector
	n := startNode(t, newNode(t, db, &sink))
	beats := func() {
		t.Helper()
		for range 3 {
			await(t, db.Pool, "select heartbeat_at > $1 from outbox.node where node = 'n1'",
				one[time.Time](t, db.Pool, "select heartbeat_at from outbox.node where node = 'n1'"))
		}
	}
	await(t, db.Pool, "select exists (select from outbox.node where node = 'n1')")
	beats()
	if s := n.Stats(); s.Sweeps != 0 {
		t.Errorf("stats are %+v", s)
	}
	run(t, db.Pool, "select outbox.leave('fixed')")
	eventually(t, "all is settled", func() bool { return n.Stats().Done == 10 })
	run(t, db.Pool, "select outbox.heartbeat('fixed', outbox.all_shards())")
	beats()
	before := n.Stats().Sweeps
	beats()
	if got := n.Stats().Sweeps; got != before {
		t.Errorf("without shards it claimed %d times", got-before)
	}
	n.drained(t)
}

// INV-4: what its former owner holds of a shard that has moved is counted by the new one,
// settled by the former, and delivered once.
func TestMovedShardsAreCounted(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, "select outbox.set_quota('ns', 16)")
	fill(t, db.Pool, "ns", "q", 200, 10)
	hang, rest := newHanging(), newHanging()
	wide := func(c *node.Config) { c.Slots, c.Share = 64, 1 }
	a := startNode(t, newNode(t, db, hang, named("a"), wide))
	eventually(t, "a holds the quota", func() bool { return len(hang.begun) == 16 })
	b := startNode(t, newNode(t, db, rest, named("b"), wide))
	await(t, db.Pool, "select ("+parts+") = '{8,8}'")
	held := one[int](t, db.Pool, "select count(*) from outbox.claimed as c join outbox.shard as s using (shard) where s.node = 'b' and c.claimed_by = 'a'")
	// b has a ceiling of half the quota on its half of the shards, a's rows among them.
	eventually(t, "b claims up to its ceiling", func() bool { return len(rest.begun) >= max(8-held, 0) })
	for range 3 {
		sweeps := b.Stats().Sweeps
		eventually(t, "b claims again", func() bool { return b.Stats().Sweeps > sweeps })
	}
	if got := len(rest.begun); got != max(8-held, 0) {
		t.Errorf("b claimed %d beside %d that a holds on its shards, want %d", got, held, max(8-held, 0))
	}
	close(hang.let)
	close(rest.let)
	eventually(t, "all is settled", func() bool { return a.Stats().Done+b.Stats().Done == 200 })
	for _, n := range []*sweepNode{a, b} {
		if s := n.drained(t); s.Lost+s.Released+s.Retried != 0 || s.Claimed != s.Done {
			t.Errorf("stats are %+v", s)
		}
	}
	if got := len(hang.begun) + len(rest.begun); got != 200 {
		t.Errorf("%d deliveries of 200 messages", got)
	}
}

// TestShardsMoveUnderLoad: nodes come and go under load, and some believe they own what
// others do: each message is claimed by one at a time (INV-1), delivered and settled once
// by the one that claimed it, and no claim brings a tenant above its ceiling, a strict one
// above its quota (INV-4). FAIRCLAIM_HAMMER_TIME makes it longer.
func TestShardsMoveUnderLoad(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	for _, quota := range []string{"'strict', 5, true", "'small', 3", "'big', 64"} {
		run(t, db.Pool, "select outbox.set_quota("+quota+")")
	}
	var delivered sync.Map // dispatch key: the node
	var doubles atomic.Int64
	sinkOf := func(name string) node.Sink {
		return node.SinkFunc(func(ctx context.Context, m driver.Delivery) error {
			if other, again := delivered.LoadOrStore(m.DispatchKey, name); again {
				doubles.Add(1)
				t.Errorf("INV-1: %s is delivered by %s, and was by %s", m.DispatchKey, name, other)
			}
			select {
			case <-time.After(time.Duration(rand.IntN(20)) * time.Millisecond):
			case <-ctx.Done():
			}
			return nil
		})
	}
	born := 0
	birth := func(options ...func(*node.Config)) *sweepNode {
		born++
		name := fmt.Sprint("n", born)
		return startNode(t, newNode(t, db, sinkOf(name), append(options, named(name), func(c *node.Config) {
			c.Batch, c.Logger = 20, slog.New(slog.DiscardHandler)
		})...))
	}
	// Some name shards as their own, the same ones: they overlap as long as they live, and
	// all others for as long as those have not heard of it.
	all := one[[]int32](t, db.Pool, "select outbox.all_shards()")
	nodes := []*sweepNode{birth(), birth(), birth()}
	sample := newQuotaSampler(t, db, map[string]int{"strict": 5})
	enqueued := 0
	var total node.Stats
	stop := func(n *sweepNode) {
		s := n.drained(t)
		total.Done, total.Claimed, total.Lost = total.Done+s.Done, total.Claimed+s.Claimed, total.Lost+s.Lost
	}
	moves := 0
	for until := time.Now().Add(hammerLength(t)); time.Now().Before(until); moves++ {
		for _, namespace := range []string{"strict", "small", "big", fmt.Sprint("ns", moves)} {
			enqueued++
			run(t, db.Pool, "select outbox.enqueue($1, 'q', format('%s-%s-%s', $1::text, $2::int, i), '') from generate_series(1, 25) as i", namespace, enqueued)
		}
		i := rand.IntN(len(nodes))
		stop(nodes[i])
		if i > 0 && rand.IntN(3) == 0 { // the first one takes what nobody names
			nodes[i] = birth(func(c *node.Config) { c.Shards = all[:4+rand.IntN(12)] })
		} else {
			nodes[i] = birth()
		}
		await(t, db.Pool, "select outbox.unowned_shards() = '{}' and exists (select from outbox.node as n where n.node = $1)", fmt.Sprint("n", born))
	}
	eventually(t, "all is settled", func() bool { return one[bool](t, db.Pool, "select count(*) = $1 from outbox.settled", 25*enqueued) })
	sample.stop()
	for _, n := range nodes {
		stop(n)
	}
	if total.Done != int64(25*enqueued) || total.Claimed != total.Done || total.Lost != 0 || doubles.Load() != 0 {
		t.Errorf("of %d messages: %+v, %d delivered twice", 25*enqueued, total, doubles.Load())
	}
	rows, _ := db.Pool.Query(t.Context(), "select m.dispatch_key, s.settled_by, s.attempts from outbox.settled as s join outbox.message as m using (id)")
	var key, by string
	var attempts int
	if _, err := pgx.ForEachRow(rows, []any{&key, &by, &attempts}, func() error {
		if node, _ := delivered.Load(key); node != by || attempts != 1 {
			t.Errorf("%s was delivered by %v, settled by %s, in %d attempts", key, node, by, attempts)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if moves < 3 {
		t.Errorf("shards moved %d times only", moves)
	}
}

// quotaSampler looks all the time at how many messages namespaces have claimed.
type quotaSampler struct{ stop func() }

func newQuotaSampler(t *testing.T, db *pgtest.DB, most map[string]int) quotaSampler {
	conn := db.Connect(t)
	var over atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !over.Load() {
			for namespace, quota := range most {
				var n int
				err := conn.QueryRow(context.Background(), "select count(*) from outbox.claimed where namespace = $1", namespace).Scan(&n)
				if err != nil || n > quota {
					t.Errorf("INV-4: %d of %s are claimed, its quota is %d (%v)", n, namespace, quota, err)
					return
				}
			}
		}
	}()
	stop := func() { over.Store(true); <-done }
	t.Cleanup(stop) // before the connection is closed
	return quotaSampler{stop}
}

// INV-1, INV-4: two processes that use one name both believe they own its shards; they say
// so, and deliver everything once.
func TestTwoProcessesOfOneName(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, "select outbox.set_quota('strict', 3, true)")
	var sink collector
	var logs [2]lockedBuffer
	var nodes []*sweepNode
	for i := range logs {
		nodes = append(nodes, startNode(t, newNode(t, db, &sink, func(c *node.Config) {
			c.Logger = slog.New(slog.NewTextHandler(&logs[i], nil))
		})))
	}
	sample := newQuotaSampler(t, db, map[string]int{"strict": 3})
	fill(t, db.Pool, "strict", "q", 100, 10)
	fill(t, db.Pool, "ns", "q", 300, 10)
	for i := range logs {
		eventually(t, "both warn", func() bool { return strings.Contains(logs[i].String(), "another process uses this node's name") })
	}
	await(t, db.Pool, "select cardinality(processes) = 2 and cardinality(shards) = 16 from outbox.nodes")
	await(t, db.Pool, "select count(*) = 400 from outbox.settled")
	sample.stop()
	nodes[0].drained(t)
	await(t, db.Pool, "select exists (select from outbox.nodes where live and cardinality(shards) = 16)")
	nodes[1].drained(t)
	keys := sink.keys()
	if len(keys) != 400 || len(slices.Compact(keys)) != 400 {
		t.Errorf("%d deliveries, want 400 of as many keys", len(keys))
	}
}

// A node that may send no heartbeats says so at the start, instead of waiting for shards
// that nobody gives it.
func TestAutoNodeWithoutRights(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	role := db.Role(t)
	run(t, db.Pool, "select outbox.grant_worker($1)", role.Name)
	run(t, db.Pool, "revoke execute on function outbox.heartbeat from "+role.Name)
	s, err := node.New(db.Connect(t, pgtest.As(role)), node.Config{Node: "n1", Sink: &collector{}})
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, s.Run(t.Context()), "42501", "heartbeat")
}
