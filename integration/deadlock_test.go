package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// crowd is sessions that do everything at once, on a database that looks for deadlocks
// after 50 ms.
type crowd struct {
	db      *pgtest.DB
	retries bool // a deadlock is tried again, as sweep does, instead of failing the test
	until   time.Time

	deadlocks, calls atomic.Int64
	mu               sync.Mutex
	written          map[int64]bool // ids that an enqueue_batch returned
	pruned           int
}

// newCrowd makes the database of a crowd.
func newCrowd(t *testing.T, retries bool) *crowd {
	t.Helper()
	db := pg.New(t)
	run(t, db.Admin(t), fmt.Sprintf("alter database %s set deadlock_timeout = '50 ms'", pgx.Identifier{db.Pool.Config().ConnConfig.Database}.Sanitize()))
	run(t, db.Pool, `select outbox.configure('{"max_attempts": 4}')`)
	return &crowd{db: db, retries: retries, until: time.Now().Add(hammerLength(t)), written: map[int64]bool{}}
}

// call makes one call in a transaction of its own; again after a deadlock, where the crowd
// puts up with them.
func (c *crowd) call(ctx context.Context, conn *pgx.Conn, sql string, args ...any) (n int, err error) {
	for try := 1; ; try++ {
		c.calls.Add(1)
		err = conn.QueryRow(ctx, sql, args...).Scan(&n)
		var failed *pgconn.PgError
		if !errors.As(err, &failed) {
			return n, err
		}
		if failed.Code != "40P01" {
			return n, fmt.Errorf("%w in %s: %s", err, sql, failed.Where)
		}
		c.deadlocks.Add(1)
		if !c.retries || try == 20 {
			return n, fmt.Errorf("%w in %s: %s %s", err, sql, failed.Detail, failed.Where)
		}
	}
}

// work claims, and settles the messages in a random order and in every way; of some the
// lease expires.
func (c *crowd) work(ctx context.Context, conn *pgx.Conn, rng *rand.Rand) error {
	rows, err := modelClaimRows(ctx, conn, fmt.Sprint("node", rng.IntN(6)), hammerSomeShards(0, rng), 30, 0)
	if failed := (*pgconn.PgError)(nil); c.retries && errors.As(err, &failed) && failed.Code == "40P01" {
		c.deadlocks.Add(1)
		return nil
	} else if err != nil {
		return fmt.Errorf("claim: %w", err)
	}
	rng.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
	for _, how := range []string{"extend", "complete", "retry", "release", "fail", "rest"} {
		part := rows
		if how != "extend" && how != "rest" {
			part = rows[:rng.IntN(len(rows)+1)]
			rows = rows[len(part):]
		}
		ids, tokens := []int64{}, []int64{}
		for _, r := range part {
			ids, tokens = append(ids, r.ID), append(tokens, r.Token)
		}
		more, function := "", how
		switch how {
		case "retry":
			more = ", null, array_fill('0'::interval, array[cardinality($1)])"
		case "rest":
			more, function = ", '1 ms'", "extend" // for the rescue
		}
		sql := fmt.Sprintf("select count(*) from outbox.%s($1::bigint[], $2::bigint[]%s) as x", function, more)
		if _, err := c.call(ctx, conn, sql, ids, tokens); err != nil {
			return err
		}
	}
	return nil
}

// enqueue writes a batch with its keys in descending order, many of which others write too.
func (c *crowd) enqueue(ctx context.Context, conn *pgx.Conn, rng *rand.Rand) error {
	first := rng.IntN(2000)
	const batch = `select b.id from (
		  select array_agg('n' || i / 100 % 4 order by i desc) as n, array_agg('q'::text) as q, array_agg('k' || 1000000 + i order by i desc) as k,
		         array_agg('x'::bytea) as p from generate_series($1::int, $1::int + 59) as i) as x
		cross join lateral outbox.enqueue_batch(x.n, x.q, x.k, x.p) as b where b.id is not null`
	for {
		rows, err := conn.Query(ctx, batch, first)
		if err != nil {
			return err
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if failed := (*pgconn.PgError)(nil); c.retries && errors.As(err, &failed) && failed.Code == "40P01" {
			c.deadlocks.Add(1)
			continue
		} else if err != nil {
			return fmt.Errorf("enqueue_batch: %w", err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, id := range ids {
			c.written[id] = true
		}
		return nil
	}
}

func (c *crowd) rescue(ctx context.Context, conn *pgx.Conn, rng *rand.Rand) error {
	_, err := c.call(ctx, conn, "select count(*) from outbox.rescue($1)", 1+rng.IntN(50))
	return err
}

func (c *crowd) prune(ctx context.Context, conn *pgx.Conn, rng *rand.Rand) error {
	n, err := c.call(ctx, conn, "select outbox.prune('0', $1, true)", 1+rng.IntN(100))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pruned += n
	return err
}

// purge deletes all there is of a namespace, while producers go on.
func (c *crowd) purge(ctx context.Context, conn *pgx.Conn, rng *rand.Rand) error {
	after, namespace := int64(0), fmt.Sprint("n", rng.IntN(4))
	for {
		var next int64
		n, err := c.call(ctx, conn, "select p.purged from outbox.purge($1, 30, $2) as p", namespace, after)
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.pruned += n
		c.mu.Unlock()
		if err := conn.QueryRow(ctx, "select coalesce(max(m.id), 0) from (select m.id from outbox.message as m where m.id > $1 order by m.id limit 200) as m", after).Scan(&next); err != nil {
			return err
		}
		if next == 0 {
			_, err := c.call(ctx, conn, "select p.purged from outbox.purge($1, 30, 9223372036854775807) as p", namespace)
			return err
		}
		after = next
	}
}

// operate is an operator: it cancels, brings back, and changes quotas.
func (c *crowd) operate(ctx context.Context, conn *pgx.Conn, rng *rand.Rand) error {
	keys := make([]string, 200)
	for i := range keys {
		keys[i] = fmt.Sprint("k", 1_000_000+rng.IntN(2000))
	}
	for _, call := range []string{
		"select outbox.cancel_namespace('n' || $1::int % 4, 50) where $2::text[] is not null",
		"select count(*) from outbox.cancel($2::text[]) as x where $1::int >= 0",
		"select count(*) from outbox.redrive(array(select s.id from outbox.settled as s where s.outcome <> 'done' order by random() limit 40)) as x where $1::int >= 0 and $2::text[] is not null",
		"select outbox.redrive('n' || $1::int % 4, 20) where $2::text[] is not null",
		"select count(outbox.set_quota('n' || $1::int % 4, 20 + $1::int % 10, $1::int % 3 = 0)::text) where $2::text[] is not null",
		"select count(*) from outbox.retry_now($2::text[]) as x where $1::int >= 0",
		"select outbox.retry_now('n' || $1::int % 4, 20) where $2::text[] is not null",
		"select count(*) from outbox.failed('n' || $1::int % 4) where $2::text[] is not null",
		"select outbox.pause('n' || $1::int % 4)::int where $2::text[] is not null",
		"select outbox.resume('n' || $1::int % 4)::int where $2::text[] is not null",
	} {
		if _, err := c.call(ctx, conn, call, rng.IntN(1000), keys); err != nil {
			return err
		}
	}
	return nil
}

// play runs the sessions to the deadline, and then accounts for every message (INV-2).
func (c *crowd) play(t *testing.T, sessions ...func(context.Context, *pgx.Conn, *rand.Rand) error) {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	for i, session := range sessions {
		group.Go(func() error {
			rng := rand.New(rand.NewPCG(rand.Uint64(), uint64(i)))
			return hammerLoop(ctx, c.db.DSN, c.until, "", func(conn *pgx.Conn) error { return session(ctx, conn, rng) })
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	t.Logf("%d calls, %d deadlocks, %d messages, %d of them pruned", c.calls.Load(), c.deadlocks.Load(), len(c.written), c.pruned)
	if c.pruned == 0 || len(c.written) < 100 {
		t.Error("too little has happened to show anything")
	}
	left := list[int64](t, c.db.Pool, "select m.id from outbox.message as m")
	if len(left) != len(c.written)-c.pruned {
		t.Errorf("INV-2: %d messages are left, want %d", len(left), len(c.written)-c.pruned)
	}
	if i := slices.IndexFunc(left, func(id int64) bool { return !c.written[id] }); i >= 0 {
		t.Errorf("message %d is none that was enqueued", left[i])
	}
	wantSound(t, c.db.Pool)
}

// TestNoDeadlock: claims, settles in any order, rescues, prunes and batches with the same
// keys never deadlock among themselves, however impatient the database is.
func TestNoDeadlock(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, false)
	c.play(t, c.enqueue, c.enqueue, c.enqueue, c.work, c.work, c.work, c.work, c.rescue, c.rescue, c.prune, c.prune)
	if n := c.deadlocks.Load(); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

// TestOperatorBesideTraffic: beside an operator who cancels, brings back and sets quotas, a
// deadlock is at worst tried again, and nothing is lost (INV-2).
func TestOperatorBesideTraffic(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, true)
	c.play(t, c.enqueue, c.enqueue, c.work, c.work, c.work, c.rescue, c.prune, c.prune, c.operate, c.operate, c.purge)
}
