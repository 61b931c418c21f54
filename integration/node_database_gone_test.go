package integration

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
	"github.com/fairclaim/fairclaim/integration/pgtest"
	"github.com/fairclaim/fairclaim/sql/migrations"
)

// ownServer is a PostgreSQL that a test may kill.
func ownServer(t *testing.T) (*pgtest.Cluster, *pgtest.DB) {
	t.Helper()
	c, err := pgtest.Open(t.Context(), pgtest.Options{Durable: true, Log: t.Output()}, func(ctx context.Context, dsn string) error {
		_, err := migrations.Up(ctx, dsn, migrations.Options{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c, c.New(t)
}

// INV-2: PostgreSQL is killed and comes back in the middle of a run: the node goes on by
// itself, and every message is delivered and settled once.
func TestDatabaseRestarts(t *testing.T) {
	t.Parallel()
	server, db := ownServer(t)
	run(t, db.Pool, `select outbox.configure('{"lease": "10 s"}')`)
	fill(t, db.Pool, "ns", "q", 2000, 100)
	var sink collector
	slow := node.SinkFunc(func(ctx context.Context, m driver.Delivery) error {
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
		}
		return sink.Deliver(ctx, m)
	})
	n := startNode(t, newNode(t, db, slow, func(c *node.Config) { c.Slots, c.Batch = 4, 50 }))
	for _, done := range []int64{300, 900} {
		eventually(t, "work is under way", func() bool { return n.Stats().Done > done })
		if err := server.Server().Kill(t.Context()); err != nil {
			if errors.Is(err, errors.ErrUnsupported) {
				t.Skip("this kind of server cannot be killed")
			}
			t.Fatal(err)
		}
		if err := server.Server().Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// What a claim had committed when its answer was cut off comes back with its lease.
	eventually(t, "all is settled", func() bool { return one[int](t, db.Pool, "select count(*) from outbox.settled") == 2000 })
	s := n.drained(t)
	wantOutcomes(t, db.Pool, map[string]int{"done": 2000})
	keys := sink.keys()
	if delivered := len(keys); delivered != 2000 || len(slices.Compact(keys)) != 2000 {
		t.Errorf("%d deliveries of %d messages, want 2000, each once; stats %+v", delivered, len(slices.Compact(keys)), s)
	}
}

// Once ends with the error of a database that has gone, and keeps nothing in flight
// (INV-13); so does Run at its own end.
func TestDatabaseGoesAway(t *testing.T) {
	t.Parallel()
	server, db := ownServer(t)
	fill(t, db.Pool, "ns", "q", 20, 100)
	hang := newHanging()
	quick := func(c *node.Config) { c.Slots, c.Batch, c.DrainTimeout = 2, 10, 300*time.Millisecond }
	n := startNode(t, newNode(t, db, hang, quick, func(c *node.Config) { c.Shards = []int32{0, 1, 2, 3, 4, 5, 6, 7} }))
	s := newNode(t, db, hang, quick, func(c *node.Config) {
		c.Node, c.Shards = "once", []int32{8, 9, 10, 11, 12, 13, 14, 15}
	})
	once := make(chan error, 1)
	go func() { once <- s.Once(context.Background(), 0) }()
	eventually(t, "both have some", func() bool { return len(hang.begun) == 2 })
	if err := server.Server().Kill(t.Context()); err != nil {
		t.Skipf("the server cannot be killed: %v", err)
	}
	if err := <-once; err == nil {
		t.Error("Once returns nil without a database")
	}
	if got := s.Stats(); got.UsedBytes != 0 || got.InFlight != 0 || got.Released+got.Done != 0 {
		t.Errorf("INV-13: stats of Once are %+v", got)
	}
	stop := errors.New("stop")
	n.cancel(stop)
	if err := n.ended(t); err != stop {
		t.Errorf("Run returns %v, want the cause", err)
	}
	if err := server.Server().Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the database answers", func() bool { return db.Pool.Ping(t.Context()) == nil })
	if got := one[int](t, db.Pool, "select count(*) from outbox.messages where status in ('pending', 'claimed')"); got != 20 {
		t.Errorf("%d messages are left, want 20 (INV-2)", got)
	}
}

// A drain that can neither settle nor give back what it has is no success: what was delivered comes again.
func TestDrainWithoutDatabase(t *testing.T) {
	t.Parallel()
	server, db := ownServer(t)
	fill(t, db.Pool, "ns", "q", 5, 100)
	hang := newHanging()
	n := startNode(t, newNode(t, db, hang, func(c *node.Config) { c.Share, c.DrainTimeout = 1, 300*time.Millisecond }))
	eventually(t, "it has them all", func() bool { return len(hang.begun) == 5 })
	if err := server.Server().Kill(t.Context()); err != nil {
		t.Skipf("the server cannot be killed: %v", err)
	}
	n.Drain()
	if err := n.ended(t); err == nil || !strings.Contains(err.Error(), "5 messages were neither settled nor given back") {
		t.Errorf("Run returns %v", err)
	}
	if err := server.Server().Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the database answers", func() bool { return db.Pool.Ping(t.Context()) == nil })
}

// A settle that was cut off is made again.
func TestSettleSurvivesTermination(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	fill(t, db.Pool, "ns", "q", 40, 10)
	sink := newHanging()
	n := startNode(t, newNode(t, db, sink, func(c *node.Config) { c.Share = 1 }))
	eventually(t, "all deliveries are under way", func() bool { return len(sink.begun) == 40 })
	admin := db.Admin(t)
	// A lock on the rows keeps the settle under way until its session is terminated.
	tx := begin(t, db.Connect(t))
	run(t, tx, "select from outbox.claimed for update")
	close(sink.let)
	eventually(t, "the settle was terminated", func() bool {
		return one[int](t, admin, `select count(pg_terminate_backend(pid)) from pg_stat_activity
where datname = current_database() and state = 'active' and query like '%outbox.complete%' and pid <> pg_backend_pid()`) > 0
	})
	commit(t, tx)
	eventually(t, "all is settled", func() bool { return n.Stats().Done == 40 })
	if s := n.drained(t); s.Lost != 0 || s.Claimed != 40 {
		t.Errorf("stats are %+v", s)
	}
	wantOutcomes(t, db.Pool, map[string]int{"done": 40})
}

// A database that is away when a node starts is an error, soon, without the password.
func TestNoDatabaseAtStart(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://u:secret@127.0.0.1:1/db?connect_timeout=2")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	s, err := node.New(pool, node.Config{Node: "n", Sink: newHanging()})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("Run returns %v", err)
	}
}
