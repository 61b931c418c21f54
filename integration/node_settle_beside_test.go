package integration

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fairclaim/fairclaim/driver/node"
	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// hangingSettle has a node deliver one message and hang in its settle, at a row that the transaction has
// locked. The node's calls have more time than the test has patience.
func hangingSettle(t *testing.T, options ...func(*node.Config)) (db *pgtest.DB, lock pgx.Tx, sink *hanging, n *sweepNode) {
	t.Helper()
	db = setUp(t, `select outbox.configure('{"lease": "10 hours"}')`)
	sink = newHanging()
	n = startNode(t, newNode(t, db, sink, append(options, func(c *node.Config) { c.CallTimeout = time.Hour })...))
	fill(t, db.Pool, "ns", "q", 1, 0)
	eventually(t, "the delivery is under way", func() bool { return len(sink.begun) == 1 })
	lock = begin(t, db.Connect(t))
	run(t, lock, "select from outbox.claimed for update")
	close(sink.let)
	await(t, db.Pool, "select count(*) = 1 from pg_stat_activity where wait_event_type = 'Lock' and query ~ 'outbox.complete' and datname = current_database()")
	return db, lock, sink, n
}

// While a settle hangs, the node claims and delivers (INV-11); what is delivered meanwhile is settled together.
func TestClaimsBesideSettles(t *testing.T) {
	t.Parallel()
	db, lock, sink, n := hangingSettle(t)
	put(t, db.Pool, "other", "q", "other/1")
	eventually(t, "another is delivered meanwhile", func() bool { return len(sink.begun) == 2 })
	put(t, db.Pool, "other", "q", "other/2")
	eventually(t, "and another", func() bool { return len(sink.begun) == 3 })
	if s := n.Stats(); s.Done != 0 || s.InFlight != 3 {
		t.Errorf("stats are %+v while the settle hangs", s)
	}
	commit(t, lock)
	await(t, db.Pool, "select count(*) = 3 from outbox.settled")
	if s := n.drained(t); s.Done != 3 || s.Lost != 0 {
		t.Errorf("stats are %+v", s)
	}
}

// A drain, and an end at once, wait for a settle that is under way: nothing is counted as abandoned that is settled.
func TestEndWaitsForSettles(t *testing.T) {
	t.Parallel()
	t.Run("drain", func(t *testing.T) {
		t.Parallel()
		_, lock, _, n := hangingSettle(t)
		n.Drain()
		commit(t, lock)
		if s := n.drained(t); s.Done != 1 {
			t.Errorf("stats are %+v", s)
		}
	})
	t.Run("at once", func(t *testing.T) {
		t.Parallel()
		db, lock, _, n := hangingSettle(t)
		n.cancel(errors.New("at once"))
		commit(t, lock)
		if err := n.ended(t); err == nil || err.Error() != "at once" {
			t.Errorf("it ended with %v", err)
		}
		settled := one[int64](t, db.Pool, "select count(*) from outbox.settled")
		if s := n.Stats(); s.Done != settled {
			t.Errorf("%d are settled, and stats are %+v", settled, s)
		}
	})
}

// A drain waits for a settle that hangs no longer than the drain may take, or a second where that is little: then
// it breaks the call off, and makes it once more.
func TestDrainBreaksASettleOff(t *testing.T) {
	t.Parallel()
	db, lock, _, n := hangingSettle(t, func(c *node.Config) { c.DrainTimeout = 50 * time.Millisecond })
	began := one[time.Time](t, db.Pool, "select clock_timestamp()")
	n.Drain()
	await(t, db.Pool, `select count(*) = 1 from pg_stat_activity
where wait_event_type = 'Lock' and query ~ 'outbox.complete' and datname = current_database() and query_start > $1`, began)
	commit(t, lock)
	if err := n.ended(t); err != nil {
		t.Errorf("Run: %v", err)
	}
	if s := n.Stats(); s.Done+s.Lost != 1 { // lost where the call that was broken off has come through
		t.Errorf("stats are %+v", s)
	}
	if settled := one[int](t, db.Pool, "select count(*) from outbox.settled"); settled != 1 {
		t.Errorf("%d are settled, want 1", settled)
	}
}

// cutOff lets rows of payloads through up to so many, and then breaks the connection, once.
type cutOff struct {
	*pgxpool.Pool
	after int
	cuts  int
}

func (c *cutOff) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, err := c.Pool.Query(ctx, sql, args...)
	if err == nil && c.cuts == 0 && strings.Contains(sql, "outbox.payloads") {
		c.cuts++
		return &cutRows{Rows: rows, left: c.after}, nil
	}
	return rows, err
}

type cutRows struct {
	pgx.Rows
	left int
	err  error
}

func (r *cutRows) Next() bool {
	if r.left == 0 {
		r.err = errors.New("the connection broke")
		r.Close()
		return false
	}
	r.left--
	return r.Rows.Next()
}

func (r *cutRows) Err() error { return errors.Join(r.err, r.Rows.Err()) }

// What has come before a connection breaks is delivered; the rest is read again, and each message comes once.
func TestPayloadsCutOff(t *testing.T) {
	t.Parallel()
	db := setUp(t, "")
	fill(t, db.Pool, "ns", "q", 10, 200_000) // more than come along with the claim
	var sink collector
	cut := &cutOff{Pool: db.Pool, after: 4}
	s, err := node.New(cut, node.Config{Node: "n1", Sink: &sink, Tick: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	n := startNode(t, s)
	await(t, db.Pool, "select count(*) = 10 from outbox.settled")
	if s := n.drained(t); s.Done != 10 || len(sink.keys()) != 10 || cut.cuts != 1 {
		t.Errorf("stats are %+v, %d were delivered, the connection broke %d times", s, len(sink.keys()), cut.cuts)
	}
	for _, m := range sink.messages() {
		if len(m.Payload) != 200_000 {
			t.Errorf("%s came with %d bytes", m.DispatchKey, len(m.Payload))
		}
	}
}
