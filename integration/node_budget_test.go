package integration

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// gauge is a sink that notes at each delivery the bytes in flight and how many claims its node had made, on the way to another.
type gauge struct {
	sink node.Sink
	node *node.Node // set before it runs

	mu    sync.Mutex
	most  int64
	taken map[string][]int64 // by dispatch key, the claims until it came
}

func newGauge(sink node.Sink) *gauge { return &gauge{sink: sink, taken: map[string][]int64{}} }

func (g *gauge) Deliver(ctx context.Context, m driver.Delivery) error {
	s := g.node.Stats()
	g.mu.Lock()
	g.most = max(g.most, s.UsedBytes)
	g.taken[m.DispatchKey] = append(g.taken[m.DispatchKey], s.Sweeps)
	g.mu.Unlock()
	if m.Attempt != 1 {
		return node.Permanent(fmt.Errorf("attempt %d, want 1", m.Attempt)) // INV-10: nothing was charged before
	}
	return g.sink.Deliver(ctx, m)
}

// came returns after how many claims a message came, and fails if it came more than once.
func (g *gauge) came(t testing.TB, key string) (claims int64, yet bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.taken[key]) > 1 {
		t.Errorf("%s came %d times", key, len(g.taken[key]))
	}
	if len(g.taken[key]) == 0 {
		return 0, false
	}
	return g.taken[key][0], true
}

// within checks INV-13: no more than the budget and one payload was ever in flight.
func (g *gauge) within(t testing.TB, budget, payload int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.most >= budget+payload {
		t.Errorf("INV-13: %d bytes were in flight, want less than the budget of %d and a payload of %d", g.most, budget, payload)
	}
}

// trickle enqueues n messages, one after the other has come, and returns, in order, how many claims were made
// from the commit of each to its delivery.
func trickle(t testing.TB, q querier, g *gauge, namespace, queue string, n, bytes int) []int64 {
	t.Helper()
	var claims []int64
	for i := range n {
		key := fmt.Sprintf("%s/%s/%d", namespace, queue, i)
		run(t, q, "select outbox.enqueue($1, $2, $3, convert_to(repeat('x', $4), 'UTF8'))", namespace, queue, key, bytes)
		before := g.node.Stats().Sweeps
		eventually(t, key+" is delivered", func() bool { _, yet := g.came(t, key); return yet })
		came, _ := g.came(t, key)
		claims = append(claims, came-before)
	}
	slices.Sort(claims)
	return claims
}

// quickTick is the tick of nodes whose claims are counted until a delivery: long enough for one on a busy machine.
const quickTick = 200 * time.Millisecond

// quickly checks that the median is no more than two claims: one that was under way at the commit, and the next. It
// does not look at the clock, which says how busy the machine is.
func quickly(t testing.TB, claims []int64) {
	t.Helper()
	if median := claims[len(claims)/2]; median > 2 {
		t.Errorf("deliveries began %d claims after their message was committed, want 2 at most; all: %v", median, claims)
	}
	t.Logf("claims until a delivery began: %v", claims)
}

// byTenant is a sink for each namespace.
type byTenant map[string]node.Sink

func (b byTenant) Deliver(ctx context.Context, m driver.Delivery) error {
	return b[m.Namespace].Deliver(ctx, m)
}

// A tenant whose deliveries hang, with payloads that would fill the budget many times,
// does not hold up a quick one: what it has waiting is parked, and its quota is the bound
// of that. Nothing is claimed and given back in a circle meanwhile, nothing is charged for
// it (INV-10), the budget holds (INV-13), and once the tenant works again all of it comes.
func TestHungTenantWithLargePayloads(t *testing.T) {
	t.Parallel()
	const payload, budget = 10_000, 200_000
	const tick = quickTick
	for name, option := range map[string]func(*node.Config){
		"one sink":   func(*node.Config) {},
		"two routes": func(c *node.Config) { c.Routes = map[string]node.Sink{"p": c.Sink} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pg.New(t)
			hang, quick := newHanging(), new(collector)
			g := newGauge(byTenant{"hung": hang, "quick": quick})
			s := newNode(t, db, g, func(c *node.Config) { c.Budget, c.Tick, c.MinPause = budget, tick, tick }, option)
			g.node = s
			fill(t, db.Pool, "hung", "q", 150, payload)
			run(t, db.Pool, "select outbox.enqueue('hung', 'p', 'p-' || i, convert_to(repeat('x', $1), 'UTF8')) from generate_series(1, 50) as i", payload)
			n := startNode(t, s)
			eventually(t, "deliveries hang", func() bool { return len(hang.begun) > 0 })
			quickly(t, trickle(t, db.Pool, g, "quick", "q", 10, 5000)) // while the quota fills
			eventually(t, "all of the hung tenant is claimed", func() bool { return n.Stats().InFlight == 200 })
			quickly(t, trickle(t, db.Pool, g, "quick", "p", 10, 5000))
			eventually(t, "the quick tenant's are settled", func() bool { return n.Stats().Done == 20 })
			before := n.Stats()
			if before.Pauses != 1 || before.Claimed != 220 || before.Released != 0 || before.Retried != 0 || before.Parked == 0 || before.Done != 20 {
				t.Errorf("stats are %+v, want 1 pause, 220 claimed, 20 done, some parked, and nothing released", before)
			}
			if begun := len(hang.begun); begun < 2 || begun > 5 {
				t.Errorf("%d deliveries hang, want as many as half of low holds, 5", begun)
			}
			close(hang.let)
			eventually(t, "all is settled", func() bool { return n.Stats().Done == 220 })
			after := n.drained(t)
			if after.Parked != 0 || after.Claimed != after.Done+after.Released || after.Failed+after.Lost != 0 {
				t.Errorf("stats are %+v", after)
			}
			for i := range 150 {
				g.came(t, fmt.Sprintf("hung-%d", i+1))
			}
			g.within(t, budget, payload)
			wantOutcomes(t, db.Pool, map[string]int{"done": 220})
		})
	}
}

// All but one of as many tenants as there are shares can hang, and the last one does not notice.
func TestThreeHungTenants(t *testing.T) {
	t.Parallel()
	const payload, budget = 10_000, 200_000
	const tick = quickTick
	db := pg.New(t)
	hang, quick := newHanging(), new(collector)
	g := newGauge(byTenant{"hung1": hang, "hung2": hang, "hung3": hang, "quick": quick})
	for namespace := range g.sink.(byTenant) {
		if namespace != "quick" {
			fill(t, db.Pool, namespace, "q", 50, payload)
		}
	}
	g.node = newNode(t, db, g, func(c *node.Config) {
		c.Budget, c.Tick, c.MinPause, c.Slots, c.Share = budget, tick, tick, 16, 0.25
	})
	n := startNode(t, g.node)
	eventually(t, "deliveries hang", func() bool { return len(hang.begun) > 0 })
	quickly(t, trickle(t, db.Pool, g, "quick", "q", 20, 5000))
	eventually(t, "all of the hung tenants is claimed", func() bool { return n.Stats().InFlight == 150 })
	close(hang.let)
	eventually(t, "all is settled", func() bool { return n.Stats().Done == 170 })
	n.drained(t)
	g.within(t, budget, payload)
}

// INV-13: rows from no byte to the cap of 1 MiB, in one batch, go through a budget that is
// smaller than a row, equal to one, or large.
func TestRowsOfEverySize(t *testing.T) {
	t.Parallel()
	for _, budget := range []int64{1, 1000, 1 << 20, 1<<20 + 1, 3 << 20, 64 << 20} {
		t.Run(fmt.Sprint(budget), func(t *testing.T) {
			t.Parallel()
			db := pg.New(t)
			all := 0
			for i, size := range []int{0, 1, 999, 1000, 1001, 100_000, 1<<20 - 1, 1 << 20} {
				for j := range 3 {
					run(t, db.Pool, "select outbox.enqueue($1, 'q', $2, convert_to(repeat('x', $3), 'UTF8'))",
						fmt.Sprint("ns", (i+j)%4), fmt.Sprintf("%d-%d", size, j), size)
					all++
				}
			}
			var sink collector
			g := newGauge(&sink)
			g.node = newNode(t, db, g, func(c *node.Config) {
				c.Budget, c.Tick, c.MinPause = budget, 5*time.Millisecond, time.Millisecond
			})
			n := startNode(t, g.node)
			eventually(t, "all is settled", func() bool { return n.Stats().Done == int64(all) })
			if s := n.drained(t); budget == 64<<20 && s.Pauses+s.Released != 0 {
				t.Errorf("stats are %+v, want no pause", s)
			}
			g.within(t, budget, 1<<20)
			for _, m := range sink.messages() {
				var size, j int
				if _, err := fmt.Sscanf(m.DispatchKey, "%d-%d", &size, &j); err != nil || len(m.Payload) != size {
					t.Errorf("the payload of %s has %d bytes (%v)", m.DispatchKey, len(m.Payload), err)
				}
				g.came(t, m.DispatchKey)
			}
		})
	}
}
