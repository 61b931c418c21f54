package integration

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// rolePool opens a pool of so many connections for a worker with these settings.
func rolePool(t *testing.T, db *pgtest.DB, size int, settings ...string) *pgxpool.Pool {
	t.Helper()
	role := db.Role(t, settings...)
	run(t, db.Pool, "select outbox.grant_worker($1)", role.Name)
	config, err := pgxpool.ParseConfig(role.DSN)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = int32(size)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() {
			pool.Close()
			close(closed)
		}()
		select {
		case <-closed:
		case <-time.After(patience()):
			t.Error("a connection of the pool is never given back")
		}
	})
	return pool
}

// TestSweepStrictTimeouts: a role whose idle transactions end after half a second and whose
// statements after two is no obstacle to sinks that take five: no session waits for them.
func TestSweepStrictTimeouts(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	configureLease(t, db.Pool, scaled(4*time.Second)) // extended meanwhile
	pool := rolePool(t, db, 4, "set idle_in_transaction_session_timeout = '500 ms'", "set statement_timeout = '2 s'")
	fill(t, db.Pool, "ns", "q", 60, 100)
	var sink collector
	slow := node.SinkFunc(func(ctx context.Context, m driver.Delivery) error {
		select {
		case <-time.After(5 * time.Second):
			return sink.Deliver(ctx, m)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	s, err := node.New(pool, node.Config{
		Node: "n1", Sink: slow, Slots: 30, Share: 1, Tick: 50 * time.Millisecond, RescueEvery: 100 * time.Millisecond,
		HeartbeatEvery: 100 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	n := startNode(t, s)
	eventually(t, "all is settled", func() bool { return n.Stats().Done >= 60 })
	n.drained(t)
	wantOutcomes(t, db.Pool, map[string]int{"done": 60})
	// Each was charged once, if no call of the database took too long on this machine.
	if again := one[int](t, db.Pool, "select count(*) from outbox.settled where attempts > 1"); again > 0 {
		t.Errorf("%d messages were delivered more than once, of %d deliveries", again, len(sink.messages()))
	}
	wantSound(t, db.Pool)
}

// TestPoolCancelled: callers share a pool of four connections and give up at random moments.
// No connection is lost, no session stays in a transaction or with a lock, and no message
// (INV-2).
func TestPoolCancelled(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, `select outbox.configure('{"max_attempts": 1000000}')`)
	pool := rolePool(t, db, 4, "set application_name = 'crowd'")
	until := time.Now().Add(hammerLength(t))
	var callers sync.WaitGroup
	var mu sync.Mutex
	sure := map[string]bool{} // keys whose enqueue has returned
	ended, cut := 0, 0
	for i := range 12 {
		callers.Go(func() {
			rng := rand.New(rand.NewPCG(rand.Uint64(), uint64(i)))
			for k := 0; time.Now().Before(until) && t.Context().Err() == nil; k++ {
				keys, calls, failed := poolCalls(t.Context(), pool, rng, fmt.Sprintf("%d-%d", i, k))
				mu.Lock()
				for _, key := range keys {
					sure[key] = true
				}
				ended, cut = ended+calls-failed, cut+failed
				mu.Unlock()
			}
		})
	}
	callers.Wait()
	t.Logf("%d calls ended, %d were cut off, %d keys", ended, cut, len(sure))
	if cut == 0 || len(sure) == 0 {
		t.Error("nothing was cut off, or everything: this shows nothing")
	}

	eventually(t, "all connections are given back", func() bool { return pool.Stat().AcquiredConns() == 0 })
	var all []*pgxpool.Conn
	for range 4 {
		ctx, cancel := context.WithTimeout(t.Context(), patience())
		conn, err := pool.Acquire(ctx)
		cancel()
		if err != nil {
			t.Fatalf("connection %d of 4: %v", len(all)+1, err)
		}
		all = append(all, conn)
	}
	if stat := pool.Stat(); stat.TotalConns() > 4 {
		t.Errorf("%d connections, the pool has 4", stat.TotalConns())
	}
	for _, conn := range all {
		conn.Release()
	}
	admin := db.Admin(t)
	await(t, admin, `select not exists (select from pg_stat_activity as a
		where a.application_name = 'crowd' and a.datname = current_database() and a.state <> 'idle')`)
	await(t, admin, `select not exists (select from pg_locks as l where l.locktype = 'advisory'
		and l.database = (select d.oid from pg_database as d where d.datname = current_database()))`)

	run(t, db.Pool, "update outbox.claimed set lease_until = clock_timestamp()")
	run(t, db.Pool, "update outbox.pending set visible_after = clock_timestamp()")
	if err := newNode(t, db, &collector{}).Once(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	stored := map[string]bool{}
	for _, key := range list[string](t, db.Pool, "select m.dispatch_key from outbox.messages as m where m.status in ('done', 'failed')") {
		stored[key] = true
	}
	for key := range sure {
		if !stored[key] {
			t.Errorf("INV-2: %s was enqueued and is lost", key)
		}
	}
	if n := one[int](t, db.Pool, "select count(*) from outbox.messages as m where m.status not in ('done', 'failed')"); n != 0 {
		t.Errorf("%d messages are not settled", n)
	}
	wantSound(t, db.Pool)
}

// poolCalls makes calls of the driver one after the other, a third of them with a context
// that ends at a random moment. The keys are those of messages that are enqueued for sure.
func poolCalls(ctx context.Context, pool *pgxpool.Pool, rng *rand.Rand, name string) (keys []string, calls, failed int) {
	messages := make([]driver.Message, 3)
	for i := range messages {
		messages[i] = driver.Message{Namespace: fmt.Sprint("ns", i), TaskQueue: "q", DispatchKey: fmt.Sprint(name, "-", i), Payload: []byte("x")}
	}
	shards := make([]int32, 16)
	for i := range shards {
		shards[i] = int32(i)
	}
	refs := make([][]driver.Ref, 4) // by what becomes of them; the last are left alone
	failures := func() (f []driver.Failure) {
		for _, ref := range refs[2] {
			f = append(f, driver.Failure{Ref: ref, Reason: "no"})
		}
		return f
	}
	for _, call := range []func(context.Context) error{
		func(ctx context.Context) error {
			_, err := driver.EnqueueBatch(ctx, pool, messages)
			for _, m := range messages {
				if err == nil {
					keys = append(keys, m.DispatchKey)
				}
			}
			return err
		},
		func(ctx context.Context) error {
			claimed, err := driver.Claim(ctx, pool, driver.ClaimRequest{Node: fmt.Sprint("n", rng.IntN(6)), Shards: shards[rng.IntN(12):], Batch: 12})
			for _, m := range claimed.Deliveries {
				how := rng.IntN(len(refs))
				refs[how] = append(refs[how], m.Ref())
			}
			return err
		},
		func(ctx context.Context) error { _, err := driver.Extend(ctx, pool, refs[0], time.Second); return err },
		func(ctx context.Context) error { _, err := driver.Complete(ctx, pool, refs[0]); return err },
		func(ctx context.Context) error { _, err := driver.Release(ctx, pool, refs[1]); return err },
		func(ctx context.Context) error { _, err := driver.Retry(ctx, pool, failures()); return err },
		func(ctx context.Context) error { _, _, err := driver.Rescue(ctx, pool, 10); return err },
		func(ctx context.Context) error {
			_, err := driver.Heartbeat(ctx, pool, driver.HeartbeatRequest{Node: "n1"})
			return err
		},
		func(ctx context.Context) error { _, err := driver.Prune(ctx, pool, 10); return err },
	} {
		calls++
		cut, cancel := context.WithCancel(ctx)
		if rng.IntN(3) == 0 {
			cancel()
			cut, cancel = context.WithTimeout(ctx, time.Duration(rng.Int64N(int64(20*time.Millisecond))))
		}
		if call(cut) != nil {
			failed++
		}
		cancel()
	}
	return keys, calls, failed
}
