package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// outboxQueue is fairclaim.
type outboxQueue struct {
	config node.Config // of each node; Node, Shards, Sink and Logger are filled in
	quota  string      // default_quota, empty: as installed
	about  string
	db     *database
}

func (q *outboxQueue) name() string    { return "fairclaim" }
func (q *outboxQueue) base() *database { return q.db }
func (q *outboxQueue) setup() string   { return q.about }

func (q *outboxQueue) setUp(ctx context.Context, l *lab) (err error) {
	q.db, err = l.outbox(ctx, "queue_fairclaim")
	if err != nil {
		return err
	}
	quota := q.quota
	if quota == "" {
		quota = "256"
	}
	return q.db.exec(ctx, fmt.Sprintf(`select outbox.configure('{"default_quota": %s}')`, quota))
}

func (q *outboxQueue) enqueue(ctx context.Context, jobs []job) error {
	messages := make([]driver.Message, len(jobs))
	for i, j := range jobs {
		messages[i] = driver.Message{
			Namespace: j.Tenant, TaskQueue: "bench", DispatchKey: fmt.Sprintf("%s/%d", j.Tenant, j.N), Payload: j.json(),
		}
	}
	results, err := driver.EnqueueBatch(ctx, q.db.pool, messages)
	if err != nil {
		return err
	}
	if len(results) != len(jobs) {
		return fmt.Errorf("enqueued %d of %d messages", len(results), len(jobs))
	}
	return nil
}

func (q *outboxQueue) flood(ctx context.Context, n int) error {
	_, err := q.db.write(ctx, backlog{group: flood, rows: n, payload: floodBytes})
	return err
}

func (q *outboxQueue) done(ctx context.Context) (int, error) {
	return ask[int](ctx, q.db.pool, `select count(*) from outbox.settled where outcome = 'done'`)
}

// tokenStep is how much larger a claim's token is than that of the claim before, random bits aside.
const tokenStep = 1 << 22

// lastClaim is the token of the last claim that has taken one, without its random bits.
func (q *outboxQueue) lastClaim(ctx context.Context) (int64, error) {
	return ask[int64](ctx, q.db.pool, `select last_value from outbox.claim_token`)
}

func (q *outboxQueue) work(ctx context.Context, nodes int, deliver deliverFunc) (crew, error) {
	shards, err := ask[[]int32](ctx, q.db.pool, `select outbox.all_shards()`)
	if err != nil {
		return nil, err
	}
	c := &sweepers{ended: make(chan error, nodes)}
	for i := range nodes {
		pool, err := nodePool(ctx, q.db.DSN)
		if err != nil {
			return nil, errors.Join(err, c.stop(ctx))
		}
		c.pools = append(c.pools, pool)
		config := q.config
		config.Node = fmt.Sprintf("node-%d", i)
		config.Shards = shards[i*len(shards)/nodes : (i+1)*len(shards)/nodes]
		config.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
		config.Sink = node.SinkFunc(func(_ context.Context, m driver.Delivery) error {
			deliver(m.Payload, m.ClaimToken)
			return nil
		})
		s, err := node.New(pool, config)
		if err != nil {
			return nil, errors.Join(err, c.stop(ctx))
		}
		c.nodes = append(c.nodes, s)
		go func() { c.ended <- s.Run(ctx) }()
	}
	return c, nil
}

type sweepers struct {
	nodes []*node.Node
	pools []*pgxpool.Pool
	ended chan error
}

func (c *sweepers) settled() int64 {
	var n int64
	for _, s := range c.nodes {
		n += s.Stats().Done
	}
	return n
}

func (c *sweepers) stop(ctx context.Context) error {
	var all error
	for _, s := range c.nodes {
		s.Drain()
	}
	timeout := time.NewTimer(time.Minute)
	defer timeout.Stop()
	for range c.nodes {
		select {
		case err := <-c.ended:
			all = errors.Join(all, err)
		case <-timeout.C:
			return errors.Join(all, errors.New("a node did not end"))
		}
	}
	for _, s := range c.nodes {
		if stats := s.Stats(); stats.Lost+stats.Failed+stats.Retried > 0 {
			all = errors.Join(all, fmt.Errorf("lost, failed or retried: %+v", stats))
		}
	}
	for _, pool := range c.pools {
		pool.Close()
	}
	return all
}

// throughputOutbox is fairclaim set up for speed.
func throughputOutbox() *outboxQueue {
	return &outboxQueue{
		quota:  "1000000000",
		config: node.Config{Batch: 1000, Tick: 20 * time.Millisecond},
		about: "sweepers with a batch of 1,000 and a tick of 20 ms, disjoint shards, quotas that cap nothing; 32 tenants; " +
			"enqueued by EnqueueBatch; settled messages stay; dispatch keys are unique",
	}
}
