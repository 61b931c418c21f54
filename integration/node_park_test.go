package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// hungTenant starts a node with a tenant that hangs and has 40 payloads of 1 kB claimed, of
// which the budget of 10 kB holds some, and the rest is parked.
func hungTenant(t testing.TB, db *pgtest.DB) (*sweepNode, *hanging) {
	t.Helper()
	fill(t, db.Pool, "hung", "q", 40, 1000)
	hang := newHanging()
	n := startNode(t, newNode(t, db, hang, func(c *node.Config) { c.Budget = 10_000 }))
	eventually(t, "all is claimed and most of it parked", func() bool {
		s := n.Stats()
		return s.InFlight == 40 && s.Parked >= 30
	})
	return n, hang
}

// A drain finishes what is under way and what waits with its payload, and releases what is
// parked, uncharged (INV-10).
func TestDrainReleasesParked(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	n, hang := hungTenant(t, db)
	parked := n.Stats().Parked
	n.Drain()
	await(t, db.Pool, "select count(*) = $1 from outbox.pending where attempt = 0", parked)
	eventually(t, "the parked ones have left", func() bool { s := n.Stats(); return s.Parked == 0 && s.InFlight == 40-parked })
	if s := n.Stats(); s.UsedBytes != 1000*s.InFlight {
		t.Errorf("INV-13: stats are %+v, want 1,000 bytes for each in flight", s)
	}
	close(hang.let)
	if s := n.drained(t); s.Done != 40-parked || s.Released != parked {
		t.Errorf("stats are %+v, want %d done and %d released", s, 40-parked, parked)
	}
}

// A hard end releases what is parked as well.
func TestEndReleasesParked(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	n, _ := hungTenant(t, db)
	n.cancel(nil)
	if err := n.ended(t); err == nil {
		t.Error("Run gives nil, want the end of its context")
	}
	if got := one[int](t, db.Pool, "select count(*) from outbox.pending where attempt = 0"); got != 40 {
		t.Errorf("%d messages are pending and uncharged, want 40", got)
	}
	if s := n.Stats(); s.Parked != 0 {
		t.Errorf("%d are parked after the end", s.Parked)
	}
}

// The leases of parked messages run on (INV-10: none expires, none is charged twice), and
// those that an operator cancels leave the node.
func TestParkedKeepTheirLeases(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	shortLeases(t, db.Pool)
	n, hang := hungTenant(t, db)
	await(t, db.Pool, "select clock_timestamp() > min(claimed_at) + 2.5 * $1::interval from outbox.claimed", shortLease())
	if s := n.Stats(); s.InFlight != 40 || s.Lost+s.Released != 0 {
		t.Errorf("after 2.5 leases: %+v, want all 40 in flight", s)
	}
	var busy []string
	for range len(hang.begun) {
		busy = append(busy, (<-hang.begun).DispatchKey)
	}
	run(t, db.Pool, "select outbox.cancel(array(select m.dispatch_key from outbox.message as m where m.dispatch_key <> all ($1)))", busy)
	eventually(t, "the parked ones have left", func() bool { return n.Stats().Parked == 0 })
	if s := n.Stats(); s.InFlight < int64(len(busy)) {
		t.Errorf("stats are %+v, want those in flight that hang, %d", s, len(busy))
	}
	close(hang.let)
	eventually(t, "all have left", func() bool { return n.Stats().InFlight == 0 })
	if s := n.drained(t); s.Lost != int64(40-len(busy)) {
		t.Errorf("stats are %+v, want %d lost", s, 40-len(busy))
	}
	wantOutcomes(t, db.Pool, map[string]int{"cancelled": 40 - len(busy), "done": len(busy)})
}

// A settled part of parked messages makes room for as many: they go on being delivered
// with a budget of a few, each once, uncharged, whatever their sizes.
func TestParkedComeBack(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	fill(t, db.Pool, "slow", "q", 60, 1000)
	run(t, db.Pool, "select outbox.enqueue('slow', 'q', 'sized-' || i, convert_to(repeat('x', i * 50), 'UTF8')) from generate_series(0, 59) as i")
	g := newGauge(node.SinkFunc(func(ctx context.Context, _ driver.Delivery) error {
		select {
		case <-time.After(30 * time.Millisecond): // a slow call, not a wait of the test
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}))
	const budget = 10_000
	// The pause is the shortest there is, so that a tenant that drains slowly is parked.
	g.node = newNode(t, db, g, func(c *node.Config) {
		c.Budget, c.MinPause, c.Tick = budget, time.Millisecond, 5*time.Millisecond
	})
	if err := g.node.Once(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	s := g.node.Stats()
	if s.Done != 120 || s.Parked != 0 || s.InFlight != 0 || s.UsedBytes != 0 || s.Claimed != 120 || s.Released != 0 {
		t.Errorf("stats are %+v, want 120 claimed once and done", s)
	}
	for i := range 60 {
		g.came(t, fmt.Sprint("slow-", i+1))
		g.came(t, fmt.Sprint("sized-", i))
	}
	g.within(t, budget, 2950)
	wantOutcomes(t, db.Pool, map[string]int{"done": 120})
}
