package integration

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// shortLease is how long a lease lasts after shortLeases. A node extends its leases four
// times as often, so that a busy machine may stop it for three quarters of this.
func shortLease() time.Duration { return scaled(3 * time.Second) }

// shortLeases makes leases so short that a test can wait for several of them.
func shortLeases(t testing.TB, q querier) {
	t.Helper()
	configureLease(t, q, shortLease())
}

// configureLease sets how long a lease lasts.
func configureLease(t testing.TB, q querier, lease time.Duration) {
	t.Helper()
	run(t, q, "select outbox.configure(jsonb_build_object('lease', $1::interval))", lease)
}

// onceNode makes one claim with a new node, in a goroutine.
func onceNode(t testing.TB, s *node.Node) <-chan error {
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		done <- s.Once(ctx, 1)
	}()
	t.Cleanup(func() {
		cancel()
		<-finished
	})
	return done
}

// steal takes the message with this key from whoever has claimed it, as a rescue and
// another node's claim do, and returns the new claim.
func steal(t testing.TB, db *pgxpool.Pool, key string) (stolen claimRow) {
	t.Helper()
	// In one transaction, so that no other claim gets it; and again while another claim has its shard.
	eventually(t, "the claim is stolen", func() bool {
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		run(t, tx, `update outbox.claimed as c set lease_until = clock_timestamp() - interval '1 s'
from outbox.message as m where m.id = c.id and m.dispatch_key = $1`, key)
		run(t, tx, "select outbox.rescue()")
		got := claim(t, tx, "thief", 100)
		if len(got) != 1 {
			return false
		}
		stolen = got[0]
		run(t, tx, "update outbox.claimed set lease_until = clock_timestamp() + interval '1 h' where id = $1", stolen.ID) // nobody rescues it
		commit(t, tx)
		return true
	})
	return stolen
}

// A delivery may last longer than a lease: it is extended (INV-11).
func TestLeaseIsExtended(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	shortLeases(t, db.Pool)
	fill(t, db.Pool, "ns", "q", 3, 10)
	sink := newHanging()
	n := startNode(t, newNode(t, db, sink, func(c *node.Config) { c.Slots = 1 })) // two wait
	rescuer := startNode(t, newNode(t, db, sink, func(c *node.Config) { c.Node = "n2"; c.Shards = []int32{} }))
	eventually(t, "all is claimed", func() bool { return n.Stats().InFlight == 3 })
	await(t, db.Pool, "select clock_timestamp() > min(claimed_at) + 2.5 * $1::interval from outbox.claimed", shortLease())
	if got := one[int](t, db.Pool, "select count(*) from outbox.claimed where claimed_by = 'n1' and attempt = 1"); got != 3 {
		t.Errorf("after 2.5 leases %d messages are still the node's, want 3", got)
	}
	close(sink.let)
	eventually(t, "all is settled", func() bool { return n.Stats().Done == 3 })
	if s := n.drained(t); s.Lost != 0 || s.Claimed != 3 {
		t.Errorf("stats are %+v", s)
	}
	rescuer.drained(t)
}

// A lease is not extended for a delivery that has outlived its time-out: where its sink
// does not listen, the message goes on, and what the sink says in the end is lost (INV-9).
func TestLeaseEndsWithTheDelivery(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	// Over long before the sink is given up, 5 s after the time-out, whatever the patience.
	configureLease(t, db.Pool, 2*time.Second)
	put(t, db.Pool, "ns", "q", "k")
	let, begun := make(chan struct{}), make(chan struct{})
	s := newNode(t, db, node.SinkFunc(func(context.Context, driver.Delivery) error {
		close(begun)
		<-let
		return nil
	}), func(c *node.Config) { c.DeliveryTimeout = 200 * time.Millisecond })
	done := onceNode(t, s)
	<-begun
	var other collector
	n := startNode(t, newNode(t, db, &other, func(c *node.Config) { c.Node, c.RescueEvery = "n2", 20*time.Millisecond }))
	eventually(t, "the other node delivers it", func() bool { return len(other.keys()) == 1 })
	close(let)
	if err := <-done; err != nil {
		t.Error(err)
	}
	n.drained(t)
	if got := s.Stats(); got.Lost != 1 || got.Done != 0 {
		t.Errorf("stats of the node with the deaf sink are %+v, want 1 lost", got)
	}
	if got := other.messages()[0]; got.Attempt != 1 || got.Suspect != 1 {
		t.Errorf("the other node got attempt %d, suspect %d times; want 1 and 1: nobody had said that it began alone (INV-10)", got.Attempt, got.Suspect)
	}
	wantOutcomes(t, db.Pool, map[string]int{"done": 1})
}

// INV-9: a node can claim anew what it still delivers under a claim that it has lost; of
// the two answers one counts, however close together they come.
func TestClaimedAnewByTheSameNode(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	put(t, db.Pool, "ns", "q", "k")
	let, begun := make(chan struct{}), make(chan struct{}, 10)
	n := startNode(t, newNode(t, db, node.SinkFunc(func(context.Context, driver.Delivery) error {
		begun <- struct{}{}
		<-let
		return nil
	}), func(c *node.Config) { c.DeliveryTimeout = patience() }))
	eventually(t, "it is delivered", func() bool { return len(begun) == 1 })
	tx := begin(t, db.Connect(t))
	run(t, tx, "update outbox.claimed set lease_until = clock_timestamp() - interval '1 s'")
	run(t, tx, "select outbox.rescue()")
	commit(t, tx)
	eventually(t, "it is delivered a second time", func() bool { return len(begun) == 2 })
	close(let)
	if s := n.drained(t); s.Claimed != 2 || s.Done != 1 || s.Lost != 1 {
		t.Errorf("stats are %+v, want 1 done and 1 lost", s)
	}
	wantOutcomes(t, db.Pool, map[string]int{"done": 1})
}

// INV-2, INV-9: a claim that was lost during the delivery is noticed at the next
// extension: the delivery is told, its settle changes nothing, and it is counted.
func TestClaimLostDuringDelivery(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]struct {
		with  func(t testing.TB, db *pgxpool.Pool)
		after string
	}{
		"stolen":    {func(t testing.TB, db *pgxpool.Pool) { steal(t, db, "k") }, "claimed"},
		"cancelled": {func(t testing.TB, db *pgxpool.Pool) { run(t, db, "select outbox.cancel('{k}')") }, "cancelled"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pg.New(t)
			shortLeases(t, db.Pool)
			put(t, db.Pool, "ns", "q", "k")
			begun, cause := make(chan struct{}), make(chan error, 1)
			s := newNode(t, db, node.SinkFunc(func(ctx context.Context, _ driver.Delivery) error {
				close(begun)
				<-ctx.Done()
				cause <- context.Cause(ctx)
				return nil // it came too late, and says it is done
			}))
			done := onceNode(t, s)
			<-begun
			lose.with(t, db.Pool)
			if err := <-cause; err == nil || !strings.Contains(err.Error(), "the claim was lost") {
				t.Errorf("the delivery ended for the reason %v", err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			if got := s.Stats(); got.Lost != 1 || got.Done != 0 || got.UsedBytes != 0 || got.InFlight != 0 {
				t.Errorf("stats are %+v, want 1 lost", got)
			}
			wantOutcomes(t, db.Pool, map[string]int{lose.after: 1})
		})
	}
}

// INV-9: a claim that was lost while its message waited for a slot is not delivered.
func TestClaimLostWhileWaiting(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	shortLeases(t, db.Pool)
	fill(t, db.Pool, "ns", "q", 2, 10)
	sink := newHanging()
	s := newNode(t, db, sink, func(c *node.Config) { c.Slots = 1 })
	done := onceNode(t, s)
	first := <-sink.begun
	other := map[string]string{"ns-1": "ns-2", "ns-2": "ns-1"}[first.DispatchKey]
	stolen := steal(t, db.Pool, other)
	// At the extension after the theft the node has learnt of it.
	lease := "select lease_until from outbox.claimed where claimed_by = 'n1'"
	for range 2 {
		await(t, db.Pool, "select lease_until > $1 from outbox.claimed where claimed_by = 'n1'", one[time.Time](t, db.Pool, lease))
	}
	close(sink.let)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := s.Stats(); got.Lost != 1 || got.Done != 1 || len(sink.begun) != 0 {
		t.Errorf("stats are %+v after %d more deliveries, want 1 done, 1 lost, 0", got, len(sink.begun))
	}
	if !settle(t, db.Pool, "complete", stolen.ID, stolen.Token) {
		t.Error("the thief's claim is gone")
	}
}

// INV-9: a claim that is lost when its delivery has ended, before anybody noticed, is
// counted as lost, and its new claim stands.
func TestClaimLostBeforeSettle(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	put(t, db.Pool, "ns", "q", "done")
	put(t, db.Pool, "ns", "q", "failed")
	var stolen []claimRow
	s := newNode(t, db, node.SinkFunc(func(_ context.Context, m driver.Delivery) error {
		stolen = append(stolen, steal(t, db.Pool, m.DispatchKey))
		if m.DispatchKey == "failed" {
			return node.Permanent(errors.New("boom"))
		}
		return nil
	}), func(c *node.Config) { c.Slots = 1 })
	if err := <-onceNode(t, s); err != nil {
		t.Error(err)
	}
	if got := s.Stats(); got.Lost != 2 || got.Done+got.Failed != 0 {
		t.Errorf("stats are %+v, want 2 lost", got)
	}
	for _, c := range stolen {
		if c.Attempt != 1 || !settle(t, db.Pool, "complete", c.ID, c.Token) {
			t.Errorf("the new claim is gone, attempt %d", c.Attempt)
		}
	}
}

// A consumer that shares the database settles in its own transaction: its effects happen
// exactly once, also where an attempt fails after them, or the claim was lost (INV-9).
func TestCompleteInTheConsumersTransaction(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, "create table effect (key text)")
	run(t, db.Pool, `select outbox.configure('{"retry_base": "1 ms", "retry_cap": "1 ms"}')`)
	fill(t, db.Pool, "ns", "q", 60, 10)
	work := db.Connect(t)
	s := newNode(t, db, node.SinkFunc(func(ctx context.Context, m driver.Delivery) error {
		tx, err := work.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
		if _, err := tx.Exec(ctx, "insert into effect values ($1)", m.DispatchKey); err != nil {
			return err
		}
		if m.Attempt == 1 && m.ID%3 == 0 {
			return errors.New("crash after the effect")
		}
		if m.Attempt == 1 && m.ID%3 == 1 {
			run(t, db.Pool, "update outbox.claimed set lease_until = '-infinity' where id = $1", m.ID)
			run(t, db.Pool, "select outbox.rescue()")
		}
		switch lost, err := driver.Complete(ctx, tx, []driver.Ref{m.Ref()}); {
		case err != nil:
			return err
		case len(lost) > 0:
			return errors.New("somebody else has it")
		}
		if err := tx.Commit(ctx); err != nil {
			return err
		}
		return node.ErrSettled
	}), func(c *node.Config) { c.Slots = 1 })
	n := startNode(t, s)
	await(t, db.Pool, "select count(*) = 60 from outbox.settled where outcome = 'done'")
	n.drained(t)
	if stats := s.Stats(); stats.Done != 60 || stats.UsedBytes != 0 {
		t.Errorf("%+v, want 60 done", stats)
	}
	if got := one[string](t, db.Pool, "select count(*) || ' of ' || count(distinct key) from effect"); got != "60 of 60" {
		t.Errorf("effects happened %s keys, want 60 of 60", got)
	}
}

// A node follows the lease as it is changed, in Run and in Once: claims made under the old one keep
// being ours.
func TestLeaseIsReadAgain(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB, *node.Node) (end func() error){
		"run": func(t testing.TB, n *node.Node) func() error {
			running := startNode(t, n)
			return func() error { running.drained(t); return nil }
		},
		"once": func(t testing.TB, n *node.Node) func() error {
			done := onceNode(t, n)
			return func() error { return <-done }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pg.New(t)
			put(t, db.Pool, "ns", "q", "k")
			sink := newHanging()
			n := newNode(t, db, sink, func(c *node.Config) { c.HeartbeatEvery = 20 * time.Millisecond })
			end := start(t, n)
			eventually(t, "the delivery has begun", func() bool { return len(sink.begun) == 1 })
			run(t, db.Pool, `select outbox.configure('{"lease": "20 s"}')`)
			await(t, db.Pool, "select lease_until < clock_timestamp() + interval '21 s' from outbox.claimed")
			close(sink.let)
			if err := end(); err != nil {
				t.Error(err)
			}
			if s := n.Stats(); s.Done != 1 || s.Lost != 0 {
				t.Errorf("%+v, want 1 done", s)
			}
		})
	}
}
