package integration

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// claimsUntil is a sink that notes for each message how many claims its node had made when the
// delivery began.
type claimsUntil struct {
	node *node.Node // set before it runs

	mu    sync.Mutex
	begun map[string]int64 // by dispatch key
}

func (c *claimsUntil) Deliver(_ context.Context, m driver.Delivery) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun[m.DispatchKey] = c.node.Stats().Sweeps
	return nil
}

// trickle enqueues n messages of a namespace, each once the one before has come, and checks how many
// claims were made meanwhile. A claim that was under way when a message was committed may not see it; the
// next one must bring it, and its delivery must begin at once. So it is 2 claims at most, in the median:
// a machine that is busy may make more of them before it lets a delivery begin.
func (c *claimsUntil) trickle(t testing.TB, q querier, namespace string, n int) {
	t.Helper()
	var claims []int64
	for i := range n {
		key := fmt.Sprintf("%s/%d", namespace, i)
		put(t, q, namespace, "q", key)
		before, began := c.node.Stats().Sweeps, int64(0)
		eventually(t, key+" is delivered", func() (yet bool) {
			c.mu.Lock()
			defer c.mu.Unlock()
			began, yet = c.begun[key]
			return yet
		})
		claims = append(claims, began-before)
	}
	slices.Sort(claims)
	t.Logf("claims until a delivery began: %v", claims)
	if median := claims[len(claims)/2]; median > 2 {
		t.Errorf("deliveries began %d claims after their message was committed, want 2 at most; all: %v", median, claims)
	}
}

// work starts a node, as Run or as Once.
type work func(t testing.TB, n *node.Node) *sweepNode

// startOnce calls Once in a goroutine, which has ended when the test is over.
func startOnce(t testing.TB, s *node.Node) *sweepNode {
	ctx, cancel := context.WithCancelCause(context.Background())
	n := &sweepNode{Node: s, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(n.done)
		n.err = s.Once(ctx, 0)
	}()
	t.Cleanup(func() {
		cancel(nil)
		<-n.done
	})
	return n
}

// Tenants whose deliveries hang, few or many, do not fill the slots: with the default slots, a quiet tenant's
// messages go out with the claim that brings them, while all that hang still do. None of it
// pauses claiming (INV-12), and at the end nothing is left in flight (INV-13).
func TestQuietTenantBesideHangingOnes(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]work{"run": startNode, "once": startOnce} {
		for _, hanging := range []int{2, 3, 10, 50} {
			t.Run(fmt.Sprint(name, " ", hanging), func(t *testing.T) {
				t.Parallel()
				db := pg.New(t)
				each := max(100, 1500/hanging) // more than the slots, and more than the queue holds
				for i := range hanging {
					fill(t, db.Pool, fmt.Sprint("hung", i), "q", each, 10)
				}
				hang, quiet := newHanging(), &claimsUntil{begun: map[string]int64{}}
				s := newNode(t, db, node.SinkFunc(func(ctx context.Context, m driver.Delivery) error {
					if m.Namespace == "quiet" {
						return quiet.Deliver(ctx, m)
					}
					return hang.Deliver(ctx, m)
				}), func(c *node.Config) { c.Tick, c.DeliveryTimeout = 50*time.Millisecond, time.Hour })
				quiet.node = s
				n := start(t, s)
				eventually(t, "deliveries that hang hold all slots", func() bool { return len(hang.begun) >= 64 })
				const messages = 20
				quiet.trickle(t, db.Pool, "quiet", messages)
				if s := n.Stats(); s.Pauses != 0 || s.Done > messages || s.Retried+s.Released != 0 {
					t.Errorf("stats are %+v, want no pause, and all that hang still in flight", s)
				}
				if got := len(hang.begun); got > 128 {
					t.Errorf("%d deliveries hang in 64 slots and 64 spare ones", got)
				}
				close(hang.let)
				eventually(t, "all is settled", func() bool { return n.Stats().Done == int64(hanging*each+messages) })
				n.drained(t)
			})
		}
	}
}

// hangers is a sink that hangs for all namespaces but one, and notes how many deliveries of it hang.
type hangers struct {
	quiet node.Sink

	mu   sync.Mutex
	now  int
	most int            // since reset
	seen map[string]int // deliveries by namespace
}

func (h *hangers) Deliver(ctx context.Context, m driver.Delivery) error {
	if m.Namespace == "quiet" {
		return h.quiet.Deliver(ctx, m)
	}
	h.mu.Lock()
	h.now++
	h.most = max(h.most, h.now)
	h.seen[m.Namespace]++
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		h.now--
		h.mu.Unlock()
	}()
	<-ctx.Done()
	return context.Cause(ctx)
}

// reset begins to count anew how many hang at a time.
func (h *hangers) reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.most = h.now
}

func (h *hangers) count() (most, namespaces int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.most, len(h.seen)
}

// More tenants hang than there are slots and spare ones. The others wait, and the log says so; but
// no longer than until each that hangs has timed out once: from then on all that hang share the part of
// one tenant, and a quiet tenant is quick. An abort in the middle of it leaves nothing in flight (INV-13).
func TestMoreTenantsHangThanThereAreSlots(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	const hanging = 40
	for i := range hanging {
		fill(t, db.Pool, fmt.Sprint("hung", i), "q", 50, 10)
	}
	quiet := &claimsUntil{begun: map[string]int64{}}
	h, log := &hangers{quiet: quiet, seen: map[string]int{}}, new(lockedBuffer)
	s := newNode(t, db, h, func(c *node.Config) {
		c.Slots, c.Tick, c.DeliveryTimeout = 8, 50*time.Millisecond, 500*time.Millisecond
		c.Logger = slog.New(slog.NewTextHandler(log, nil))
	})
	quiet.node = s
	n := startNode(t, s)
	eventually(t, "the log tells of the crowd", func() bool {
		return strings.Contains(log.String(), `slow deliveries hold all slots of a sink, the spare ones too: namespaces wait" node=n1 task_queue="all others" slots=8 spare=8`)
	})
	eventually(t, "each that hangs has had its turn", func() bool { _, n := h.count(); return n == hanging })
	put(t, db.Pool, "quiet", "q", "first") // it waits for the last of them to time out
	eventually(t, "the first is delivered", func() bool { return n.Stats().Done == 1 })
	eventually(t, "those that hang hold their part, and no more", func() bool {
		h.reset()
		most, _ := h.count()
		return most <= 4
	})
	h.reset()
	quiet.trickle(t, db.Pool, "quiet", 20)
	if most, _ := h.count(); most > 4 {
		t.Errorf("%d deliveries hang at a time, want the share of one tenant, 4", most)
	}
	if s := n.Stats(); s.Pauses != 0 {
		t.Errorf("stats are %+v, want no pause", s)
	}
	n.cancel(nil)
	_ = n.ended(t)
	if got := one[int](t, db.Pool, "select count(*) from outbox.claimed"); got != 0 {
		t.Errorf("%d messages are still claimed after an abort", got)
	}
}

// A tenant that hung gets back what it had with its first delivery that succeeds.
func TestHungTenantRecovers(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	for _, namespace := range []string{"a", "b"} {
		fill(t, db.Pool, namespace, "q", 100, 10)
	}
	var well sync.Map
	at := make(chan string, 1000)
	n := startNode(t, newNode(t, db, node.SinkFunc(func(ctx context.Context, m driver.Delivery) error {
		if _, ok := well.Load(m.Namespace); ok {
			at <- m.Namespace
			return nil
		}
		<-ctx.Done()
		return context.Cause(ctx)
	}), func(c *node.Config) { c.Slots, c.DeliveryTimeout = 4, 200*time.Millisecond }))
	eventually(t, "both have timed out", func() bool { return n.Stats().Retried >= 8 })
	well.Store("a", true)
	eventually(t, "all of the one is delivered while the other hangs", func() bool { return len(at) == 100 })
	n.cancel(nil)
	_ = n.ended(t)
}

// The spare slots are processes where the sink is a command: as many as --spare says, above --slots.
func TestCLISpareProcesses(t *testing.T) {
	t.Parallel()
	for spare, want := range map[string]int{"": 4, "0": 2, "3": 5} {
		t.Run("spare "+spare, func(t *testing.T) {
			t.Parallel()
			db := pg.New(t)
			for i := range 10 {
				fill(t, db.Pool, fmt.Sprint("ns", i), "q", 1, 10)
			}
			begun := t.TempDir()
			args := []string{"run", "--node", "n1", "--tick", "20ms", "--slots", "2", "--sink", `exec:sh -c 'touch "$1/$FAIRCLAIM_NAMESPACE"; exec sleep 600' sh ` + begun}
			if spare != "" {
				args = append(args, "--spare", spare)
			}
			cmd := sweepCall{dsn: db.DSN, args: args}.start(t)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}()
			count := func() int {
				entries, err := os.ReadDir(begun)
				if err != nil {
					t.Fatal(err)
				}
				return len(entries)
			}
			eventually(t, fmt.Sprintf("%d commands run, in %s", want, filepath.Base(begun)), func() bool { return count() >= want })
			await(t, db.Pool, "select count(*) = 10 from outbox.claimed")
			for range 2 { // heartbeats, of 2 s
				await(t, db.Pool, "select heartbeat_at > $1 from outbox.node", one[time.Time](t, db.Pool, "select heartbeat_at from outbox.node"))
			}
			if got := count(); got != want {
				t.Errorf("%d commands run, want %d", got, want)
			}
		})
	}
	sweepFails(t, "", 2, []string{"run", "--sink", "stdout", "--spare=-1"}, "--spare", "-1")
}
