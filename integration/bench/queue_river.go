package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"golang.org/x/sync/errgroup"
)

// riverQueue is River, in the set-up of its own benchmark.
type riverQueue struct {
	db       *database
	producer *river.Client[pgx.Tx]
}

func (j job) Kind() string { return "bench" }

func (q *riverQueue) name() string    { return "River" }
func (q *riverQueue) base() *database { return q.db }

func (q *riverQueue) setup() string {
	return "its Go module v0.51.2; as its own benchmark sets it up: fetch cooldown 2 ms, poll interval 20 ms, 2,000 workers a node, " +
		"the batch completer; enqueued by InsertManyFast (COPY); completed jobs stay; jobs are not unique"
}

func riverConfig() *river.Config {
	return &river.Config{
		FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	}
}

func (q *riverQueue) setUp(ctx context.Context, l *lab) (err error) {
	q.db, err = l.create(ctx, "queue_river")
	if err != nil {
		return err
	}
	migrator, err := rivermigrate.New(riverpgxv5.New(q.db.pool), nil)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	q.producer, err = river.NewClient(riverpgxv5.New(q.db.pool), riverConfig())
	return err
}

func (q *riverQueue) enqueue(ctx context.Context, jobs []job) error {
	params := make([]river.InsertManyParams, len(jobs))
	for i, j := range jobs {
		params[i].Args = j
	}
	n, err := q.producer.InsertManyFast(ctx, params)
	if err == nil && n != len(jobs) {
		err = fmt.Errorf("enqueued %d of %d jobs", n, len(jobs))
	}
	return err
}

func (q *riverQueue) flood(ctx context.Context, n int) error {
	const chunk = 5000
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(2)
	for from := 0; from < n; from += chunk {
		g.Go(func() error {
			jobs := make([]job, min(chunk, n-from))
			for i := range jobs {
				jobs[i] = newJob(flood, from+i, floodBytes)
			}
			return q.enqueue(inner, jobs)
		})
	}
	return g.Wait()
}

func (q *riverQueue) done(ctx context.Context) (int, error) {
	return ask[int](ctx, q.db.pool, `select count(*) from river_job where state = 'completed'`)
}

func (q *riverQueue) work(ctx context.Context, nodes int, deliver deliverFunc) (crew, error) {
	c := &riverCrew{}
	for range nodes {
		pool, err := nodePool(ctx, q.db.DSN)
		if err != nil {
			return nil, errors.Join(err, c.stop(ctx))
		}
		c.pools = append(c.pools, pool)
		workers := river.NewWorkers()
		river.AddWorker(workers, &riverWorker{deliver: deliver})
		config := riverConfig()
		config.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2000}}
		config.Workers = workers
		client, err := river.NewClient(riverpgxv5.New(pool), config)
		if err != nil {
			return nil, errors.Join(err, c.stop(ctx))
		}
		// What a worker returns is not settled yet; what is published here is.
		events, cancel := client.SubscribeConfig(&river.SubscribeConfig{
			ChanSize: 1 << 20, Kinds: []river.EventKind{river.EventKindJobCompleted, river.EventKindJobFailed},
		})
		c.cancels = append(c.cancels, cancel)
		go func() {
			for event := range events {
				if event.Kind == river.EventKindJobCompleted {
					c.completed.Add(1)
				} else {
					c.failed.Add(1)
				}
			}
		}()
		if err := client.Start(ctx); err != nil {
			return nil, errors.Join(err, c.stop(ctx))
		}
		c.clients = append(c.clients, client)
	}
	return c, nil
}

type riverWorker struct {
	river.WorkerDefaults[job]
	deliver deliverFunc
}

func (w *riverWorker) Work(_ context.Context, j *river.Job[job]) error {
	w.deliver(j.EncodedArgs, 0)
	return nil
}

type riverCrew struct {
	clients   []*river.Client[pgx.Tx]
	pools     []*pgxpool.Pool
	cancels   []func()
	completed atomic.Int64
	failed    atomic.Int64
}

func (c *riverCrew) settled() int64 { return c.completed.Load() }

func (c *riverCrew) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var all error
	for _, client := range c.clients {
		all = errors.Join(all, client.Stop(ctx))
	}
	for _, cancel := range c.cancels {
		cancel()
	}
	for _, pool := range c.pools {
		pool.Close()
	}
	if n := c.failed.Load(); n > 0 {
		all = errors.Join(all, fmt.Errorf("%d jobs failed", n))
	}
	return all
}
