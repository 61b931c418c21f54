package integration

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// A tenant whose deliveries hang does not hold up a quick one on the same node, though it
// came first and has more.
func TestSlowTenantBesideQuick(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, "select outbox.set_quota('slow', 1000)")
	fill(t, db.Pool, "slow", "q", 600, 10)
	hang := newHanging()
	var quick collector
	n := startNode(t, newNode(t, db, node.SinkFunc(func(ctx context.Context, m driver.Delivery) error {
		if m.Namespace == "slow" {
			return hang.Deliver(ctx, m)
		}
		return quick.Deliver(ctx, m)
	}), func(c *node.Config) { c.Slots, c.Batch, c.Queue = 8, 50, 20 }))
	eventually(t, "all of the slow tenant is claimed", func() bool { return n.Stats().InFlight == 600 })
	fill(t, db.Pool, "quick", "q", 1000, 10)
	eventually(t, "the quick tenant is served", func() bool { return n.Stats().Done == 1000 })
	if got := len(hang.begun); got != 4 {
		t.Errorf("the slow tenant holds %d slots of 8, want its share, 4", got)
	}
	if s := n.Stats(); s.Pauses != 0 || s.InFlight != 600 {
		t.Errorf("stats are %+v, want no pause and 600 in flight", s)
	}
	close(hang.let)
	eventually(t, "all is settled", func() bool { return n.Stats().Done == 1600 })
	n.drained(t)
}

// A tenant that takes 30 s a call (here 60 sweeps, as those would be) and a quick one on
// one node: the quick one's median wait stays under two sweeps, the slow one holds its
// share of the slots, and the loop claims on while the first batch is under way.
func TestQuickTenantWaitsLessThanTwoSweeps(t *testing.T) {
	t.Parallel()
	const tick = quickTick
	db := pg.New(t)
	var slow atomic.Int64
	var most atomic.Int64
	g := newGauge(byTenant{
		"slow": node.SinkFunc(func(ctx context.Context, _ driver.Delivery) error {
			now := slow.Add(1)
			defer slow.Add(-1)
			for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
				continue
			}
			select {
			case <-time.After(60 * tick):
			case <-ctx.Done():
			}
			return nil
		}),
		"quick": new(collector),
	})
	g.node = newNode(t, db, g, func(c *node.Config) { c.Slots, c.Share, c.Tick, c.MinPause = 8, 0.5, tick, 5*tick })
	fill(t, db.Pool, "slow", "q", 1000, 10)
	n := startNode(t, g.node)
	eventually(t, "the slow tenant is at work", func() bool { return slow.Load() > 0 })
	quickly(t, trickle(t, db.Pool, g, "quick", "q", 25, 10))
	if s := n.Stats(); s.Pauses != 0 || s.Sweeps < 10 {
		t.Errorf("stats are %+v, want a claim for each message or so, and no pause", s)
	}
	if got := most.Load(); got != 4 {
		t.Errorf("the slow tenant held %d slots of 8, want its share, 4", got)
	}
}

// INV-1: two nodes on the same shards deliver each message once.
func TestTwoNodesShareShards(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	for i := range 10 {
		fill(t, db.Pool, fmt.Sprint("ns", i), "q", 500, 10)
	}
	var sink collector
	var nodes []*sweepNode
	for _, name := range []string{"n1", "n2"} {
		nodes = append(nodes, startNode(t, newNode(t, db, &sink, func(c *node.Config) {
			c.Node, c.Tick, c.Shards = name, time.Millisecond, one[[]int32](t, db.Pool, "select outbox.all_shards()")
		})))
	}
	await(t, db.Pool, "select count(*) = 5000 from outbox.settled")
	var done int64
	for _, n := range nodes {
		s := n.drained(t)
		if s.Lost+s.Released+s.Retried != 0 || s.Done != s.Claimed {
			t.Errorf("stats are %+v", s)
		}
		done += s.Done
	}
	keys := sink.keys()
	if len(keys) != 5000 || len(slices.Compact(keys)) != 5000 || done != 5000 {
		t.Errorf("%d deliveries and %d settled, want 5000", len(keys), done)
	}
	wantOutcomes(t, db.Pool, map[string]int{"done": 5000})
}

// INV-11: a sink that takes nothing any more, with more claimed for it than the stash holds, pauses
// claiming, and nothing else: leases are
// extended, other sinks' acks flushed, expired leases rescued, heartbeats sent.
func TestStalledSink(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	shortLeases(t, db.Pool)
	run(t, db.Pool, `select outbox.configure('{"max_attempts": 1000}')`)
	stalled, main := newHanging(), newHanging()
	fill(t, db.Pool, "ns", "main", 1, 10)
	n := startNode(t, newNode(t, db, main, func(c *node.Config) {
		c.Routes = map[string]node.Sink{"stalled": stalled}
		c.Slots, c.Share, c.Queue, c.Stash, c.Batch, c.DeliveryTimeout = 2, 1, 3, 1, 10, time.Hour
	}))
	eventually(t, "a delivery of the main route is under way", func() bool { return len(main.begun) == 1 })
	for i := range 4 { // they hold the slots and the spare ones, and what they have waiting takes no room
		fill(t, db.Pool, fmt.Sprint("s", i), "stalled", 4, 10)
	}
	eventually(t, "four deliveries are stalled, and what comes after them is claimed", func() bool {
		return len(stalled.begun) == 4 && n.Stats().InFlight == 17
	})
	for i := range 4 {
		fill(t, db.Pool, fmt.Sprint("t", i), "stalled", 4, 10)
	}
	await(t, db.Pool, "select exists (select from outbox.node where node = 'n1' and coalesce(paused, '') = 'rejected send')")
	sweeps := n.Stats().Sweeps

	close(main.let)
	eventually(t, "the other sink's ack is flushed", func() bool { return n.Stats().Done == 1 })

	// A claim of a node that is dead.
	run(t, db.Pool, "insert into outbox.claimed select p.id, p.visible_after, nextval('outbox.claim_token'), now(), '-infinity', p.shard, 1, p.payload_bytes, p.namespace, p.task_queue, 'dead' from outbox.pending as p where p.id = $1",
		put(t, db.Pool, "orphan", "main", "orphan"))
	run(t, db.Pool, "delete from outbox.pending where namespace = 'orphan'")
	await(t, db.Pool, "select exists (select from outbox.pending where namespace = 'orphan' and attempt = 0)")

	held := one[int](t, db.Pool, "select count(*) from outbox.claimed where claimed_by = 'n1'")
	for range 8 { // twice as long as the leases last
		await(t, db.Pool, "select min(lease_until) > $1 from outbox.claimed where claimed_by = 'n1'",
			one[time.Time](t, db.Pool, "select min(lease_until) from outbox.claimed where claimed_by = 'n1'"))
	}
	await(t, db.Pool, "select heartbeat_at > $1 from outbox.node where node = 'n1'",
		one[time.Time](t, db.Pool, "select heartbeat_at from outbox.node where node = 'n1'"))
	if got := one[int](t, db.Pool, "select count(*) from outbox.claimed where claimed_by = 'n1'"); got != held || n.Stats().Lost != 0 {
		t.Errorf("%d of %d claims are left after a while, %d lost", got, held, n.Stats().Lost)
	}
	if got := n.Stats().Sweeps; got != sweeps {
		t.Errorf("%d claims were made in the pause", got-sweeps)
	}

	close(stalled.let)
	eventually(t, "all is settled", func() bool { return n.Stats().Done == 34 })
	await(t, db.Pool, "select paused is null from outbox.node where node = 'n1'")
	n.drained(t)
	wantOutcomes(t, db.Pool, map[string]int{"done": 34})
}

// A queue that is full holds up what belongs into it, and nothing else: more tenants than there are slots
// and spare ones, whose deliveries hang on a route of their own, keep no message of a quiet tenant from its healthy
// sink, and nothing of theirs is claimed and given back in a circle, or charged.
func TestFullQueueHoldsUpItsOwn(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	hang := newHanging()
	g := newGauge(new(collector))
	s := newNode(t, db, g, func(c *node.Config) {
		c.Routes = map[string]node.Sink{"slow": hang}
		c.Slots, c.Queue, c.Batch, c.DeliveryTimeout = 4, 20, 10, time.Hour
	})
	g.node = s
	for i := range 18 {
		fill(t, db.Pool, fmt.Sprint("hung", i), "slow", 10, 100)
	}
	n := startNode(t, s)
	eventually(t, "the route's queue is full, and the rest of it claimed", func() bool { return n.Stats().InFlight == 180 })
	trickle(t, db.Pool, g, "quiet", "q", 70, 100)
	eventually(t, "the quiet tenant's are settled", func() bool { return n.Stats().Done == 70 })
	if s := n.Stats(); s.Pauses != 0 || s.Released != 0 || s.Claimed != 250 || s.InFlight != 180 || s.Parked < 70 {
		t.Errorf("stats are %+v, want 180 of 250 claimed ones in flight, those of ten tenants without their payload but for a queue of them, and no pause", s)
	}
	close(hang.let)
	eventually(t, "all is settled", func() bool { return n.Stats().Done == 250 })
	if s := n.drained(t); s.Claimed != 250 || s.Parked != 0 || s.UsedBytes != 0 {
		t.Errorf("stats are %+v, want each of 250 claimed once", s)
	}
	wantOutcomes(t, db.Pool, map[string]int{"done": 250})
}

// INV-12: bytes in flight above the high watermark pause claiming, and once they have
// drained below the low one, it goes on; all the while the budget holds (INV-13). All of
// them are under way: there is nothing to park.
func TestPauseDrainResume(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	for i := range 20 {
		fill(t, db.Pool, fmt.Sprint("ns", i), "q", 5, 1000)
	}
	let := make(chan struct{})
	var most atomic.Int64
	var s *node.Node
	s = newNode(t, db, node.SinkFunc(func(ctx context.Context, _ driver.Delivery) error {
		if used := s.Stats().UsedBytes; used > most.Load() {
			most.Store(used)
		}
		select {
		case <-let:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}), func(c *node.Config) { c.Budget, c.Batch, c.Share = 20_000, 3, 0.1 })
	n := startNode(t, s)
	await(t, db.Pool, "select exists (select from outbox.node where node = 'n1' and coalesce(paused, '') = 'in-flight bytes' and in_flight_bytes between 16000 and 20999)")
	sweeps := s.Stats().Sweeps
	for range 3 { // heartbeats
		await(t, db.Pool, "select heartbeat_at > $1 from outbox.node", one[time.Time](t, db.Pool, "select heartbeat_at from outbox.node"))
	}
	if got := s.Stats(); got.Sweeps != sweeps || got.Pauses != 1 {
		t.Errorf("while paused: %+v, want %d sweeps and 1 pause", got, sweeps)
	}
	for range 16 { // down to 8 kB, or to 4: the last claim may have brought 3 rows
		let <- struct{}{}
	}
	eventually(t, "claiming has resumed", func() bool { return s.Stats().Sweeps > sweeps })
	close(let)
	eventually(t, "all is settled", func() bool { return s.Stats().Done == 100 })
	n.drained(t)
	if got := most.Load(); got >= 21_000 {
		t.Errorf("INV-13: %d bytes were in flight, want less than the budget and one payload", got)
	}
}

// A node whose queues are full says so, though it does not pause: it goes on the moment
// there is room.
func TestFullQueuesAreReported(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	for i := range 20 {
		fill(t, db.Pool, fmt.Sprint("ns", i), "q", 1, 10)
	}
	sink := newHanging()
	n := startNode(t, newNode(t, db, sink, func(c *node.Config) { c.Slots, c.Queue = 2, 4 }))
	eventually(t, "two slots, two spare ones, and a queue of 4 are full", func() bool { return n.Stats().InFlight == 8 })
	await(t, db.Pool, "select exists (select from outbox.node where node = 'n1' and coalesce(paused, '') = 'queues full')")
	if s := n.Stats(); s.InFlight != 8 || s.Pauses != 0 {
		t.Errorf("stats are %+v, want 8 in flight and no pause", s)
	}
	close(sink.let)
	eventually(t, "all is settled", func() bool { return n.Stats().Done == 20 })
	n.drained(t)
}
