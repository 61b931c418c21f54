package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pgmqQueue is pgmq, installed from its SQL.
type pgmqQueue struct {
	db *database
}

// pgmqBatch is how many messages one read brings: ten times what its authors' benchmark
// reads, and as many as fairclaim claims.
const pgmqBatch = 1000

func (q *pgmqQueue) name() string    { return "pgmq" }
func (q *pgmqQueue) base() *database { return q.db }

func (q *pgmqQueue) setup() string {
	return fmt.Sprintf("its SQL-only installation; a logged queue; send_batch, read of %s, archive of them all in one call "+
		"(messages stay, as settled ones do with fairclaim); no deduplication", count(pgmqBatch))
}

func (q *pgmqQueue) setUp(ctx context.Context, l *lab) (err error) {
	if l.pgmq == "" {
		return absence("absent: no SQL was given; PGMQ_SQL=FILE names it (pgmq-extension/sql/pgmq.sql in its repository)")
	}
	sql, err := os.ReadFile(l.pgmq)
	if err != nil {
		return absence("absent: " + err.Error())
	}
	q.db, err = l.create(ctx, "queue_pgmq")
	if err != nil {
		return err
	}
	// Its installation grants to pg_monitor: a superuser's affair.
	q.db.pool.Close()
	q.db.DSN = q.db.AdminDSN
	if q.db.pool, err = pgxpool.New(ctx, q.db.DSN); err != nil {
		return err
	}
	return q.db.exec(ctx, string(sql), `select pgmq.create('bench')`)
}

func (q *pgmqQueue) enqueue(ctx context.Context, jobs []job) error {
	texts := make([]string, len(jobs))
	for i, j := range jobs {
		texts[i] = string(j.json())
	}
	n, err := ask[int](ctx, q.db.pool, `select count(*) from pgmq.send_batch('bench', $1::text[]::jsonb[])`, texts)
	if err == nil && n != len(jobs) {
		err = fmt.Errorf("enqueued %d of %d messages", n, len(jobs))
	}
	return err
}

func (q *pgmqQueue) flood(ctx context.Context, n int) error {
	const chunk = 20_000
	text := string(newJob(flood, 0, floodBytes).json())
	for from := 0; from < n; from += chunk {
		_, err := ask[int](ctx, q.db.pool, `select count(*) from pgmq.send_batch('bench', (select array_agg($1::jsonb) from generate_series(1, $2::int)))`,
			text, min(chunk, n-from))
		if err != nil {
			return err
		}
	}
	return nil
}

func (q *pgmqQueue) done(ctx context.Context) (int, error) {
	return ask[int](ctx, q.db.pool, `select count(*) from pgmq.a_bench`)
}

func (q *pgmqQueue) work(ctx context.Context, nodes int, deliver deliverFunc) (crew, error) {
	ctx, cancel := context.WithCancel(ctx)
	c := &pgmqCrew{finish: make(chan struct{}), cancel: cancel}
	for range nodes {
		pool, err := nodePool(ctx, q.db.DSN)
		if err != nil {
			return nil, errors.Join(err, c.stop(ctx))
		}
		c.pools = append(c.pools, pool)
		c.running.Go(func() {
			if err := c.consume(ctx, pool, deliver); err != nil {
				c.mu.Lock()
				c.err = errors.Join(c.err, err)
				c.mu.Unlock()
			}
		})
	}
	return c, nil
}

type pgmqCrew struct {
	pools    []*pgxpool.Pool
	archived atomic.Int64
	finish   chan struct{}
	cancel   context.CancelFunc
	running  sync.WaitGroup

	mu  sync.Mutex
	err error
}

// consume is one node: it reads, delivers and archives. Where there is nothing to read it
// asks again soon, as often as River does.
func (c *pgmqCrew) consume(ctx context.Context, pool *pgxpool.Pool, deliver deliverFunc) error {
	idle := time.NewTicker(20 * time.Millisecond)
	defer idle.Stop()
	for {
		select {
		case <-c.finish:
			return nil
		default:
		}
		rows, err := pool.Query(ctx, `select r.msg_id, r.message from pgmq.read('bench', 60, $1::int) as r`, pgmqBatch)
		if err != nil {
			return err
		}
		var ids []int64
		var id int64
		var message []byte
		_, err = pgx.ForEachRow(rows, []any{&id, &message}, func() error {
			ids = append(ids, id)
			deliver(message, 0)
			return nil
		})
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			select {
			case <-c.finish:
			case <-idle.C:
			}
			continue
		}
		n, err := ask[int](ctx, pool, `select count(*) from pgmq.archive('bench', $1::bigint[])`, ids)
		if err != nil {
			return err
		}
		if n != len(ids) {
			return fmt.Errorf("read %d messages and archived %d of them", len(ids), n)
		}
		c.archived.Add(int64(n))
	}
}

func (c *pgmqCrew) settled() int64 { return c.archived.Load() }

func (c *pgmqCrew) stop(context.Context) error {
	close(c.finish)
	c.running.Wait()
	c.cancel()
	for _, pool := range c.pools {
		pool.Close()
	}
	return c.err
}
