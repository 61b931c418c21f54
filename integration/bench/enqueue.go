package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/driver"
)

// enqueueCost times enqueue and enqueue_batch, as the driver calls them, beside the inserts into
// the same two tables that somebody would write who needs no answer for duplicates. A call is timed as
// a client sees it within an open transaction: what the commit costs is the same for all.
func enqueueCost(ctx context.Context, l *lab) error {
	db, err := l.outbox(ctx, "enqueue")
	if err != nil {
		return err
	}
	for _, n := range []int{1, 10, 100, 1000} {
		sums, err := l.timeEnqueue(ctx, db, n)
		if err != nil {
			return err
		}
		what := "enqueue_batch of " + count(n)
		if n == 1 {
			what = "enqueue"
		}
		for i, w := range enqueueWays() {
			if !w.takes(n) {
				continue
			}
			f := figure{Experiment: "enqueue", Case: fmt.Sprintf("%s, %d bytes each", count(n), jobBytes), Contender: w.name, Unit: "ms", summary: sums[i]}
			if i > 0 {
				f = f.against(enqueueWays()[0].name, sums[0])
			}
			l.report.add(f)
			if w.goal && w.single == (n == 1) && (n == 1 || n == 1000) {
				l.report.atMost("enqueue", what+", against the plain inserts", f.Ratio, 1.25)
			}
		}
	}
	if err := db.verify(ctx); err != nil {
		return err
	}
	return l.drop(ctx, db)
}

// enqueueWay is a way to write messages.
type enqueueWay struct {
	name   string
	single bool // for one message only
	many   bool // for more than one
	goal   bool
	write  func(ctx context.Context, tx pgx.Tx, ms []driver.Message) error
}

func (w enqueueWay) takes(n int) bool { return (n == 1 || !w.single) && (n > 1 || !w.many) }

func enqueueWays() []enqueueWay {
	return []enqueueWay{
		{name: "plain inserts", write: insertPlain},
		{name: "enqueue_batch", goal: true, write: func(ctx context.Context, tx pgx.Tx, ms []driver.Message) error {
			_, err := driver.EnqueueBatch(ctx, tx, ms)
			return err
		}},
		{name: "enqueue", single: true, goal: true, write: func(ctx context.Context, tx pgx.Tx, ms []driver.Message) error {
			_, err := driver.Enqueue(ctx, tx, ms[0])
			return err
		}},
		{name: "COPY, then enqueue_batch", many: true, write: enqueueByCopy},
	}
}

// enqueueByCopy brings the messages into a temporary table, which the session keeps, and has enqueue_batch take them from there.
func enqueueByCopy(ctx context.Context, tx pgx.Tx, ms []driver.Message) error {
	const table = "incoming"
	if _, err := tx.Exec(ctx, `create temporary table if not exists incoming (namespace text, task_queue text, dispatch_key text, payload bytea) on commit delete rows`); err != nil {
		return err
	}
	_, err := tx.CopyFrom(ctx, pgx.Identifier{table}, []string{"namespace", "task_queue", "dispatch_key", "payload"}, pgx.CopyFromSlice(len(ms), func(i int) ([]any, error) {
		return []any{ms[i].Namespace, ms[i].TaskQueue, ms[i].DispatchKey, ms[i].Payload}, nil
	}))
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `select b.ord, b.id
		from (select array_agg(i.namespace) as n, array_agg(i.task_queue) as q, array_agg(i.dispatch_key) as k, array_agg(i.payload) as p from incoming as i) as i
		cross join lateral outbox.enqueue_batch(i.n, i.q, i.k, i.p) as b`)
	return err
}

// insertPlain is the two inserts, in one statement: the second needs the ids of the first.
func insertPlain(ctx context.Context, tx pgx.Tx, ms []driver.Message) error {
	if len(ms) == 1 {
		m := ms[0]
		_, err := tx.Exec(ctx, `with m as (
			insert into outbox.message (namespace, task_queue, dispatch_key, content_type, headers, payload)
			values ($1, $2, $3, 'application/json', '{}', $4) returning id, namespace, task_queue, dispatch_key, octet_length(payload) as bytes)
			insert into outbox.pending (id, namespace, task_queue, shard, visible_after, payload_bytes)
			select m.id, m.namespace, m.task_queue, outbox.shard_of(m.dispatch_key, 16), clock_timestamp(), m.bytes from m`,
			m.Namespace, m.TaskQueue, m.DispatchKey, m.Payload)
		return err
	}
	namespaces, queues, keys, payloads := make([]string, len(ms)), make([]string, len(ms)), make([]string, len(ms)), make([][]byte, len(ms))
	for i, m := range ms {
		namespaces[i], queues[i], keys[i], payloads[i] = m.Namespace, m.TaskQueue, m.DispatchKey, m.Payload
	}
	_, err := tx.Exec(ctx, `with m as (
		insert into outbox.message (namespace, task_queue, dispatch_key, content_type, headers, payload)
		select u.namespace, u.task_queue, u.dispatch_key, 'application/json', '{}', u.payload
		from unnest($1::text[], $2::text[], $3::text[], $4::bytea[]) as u(namespace, task_queue, dispatch_key, payload)
		returning id, namespace, task_queue, dispatch_key, octet_length(payload) as bytes)
		insert into outbox.pending (id, namespace, task_queue, shard, visible_after, payload_bytes)
		select m.id, m.namespace, m.task_queue, outbox.shard_of(m.dispatch_key, 16), clock_timestamp(), m.bytes from m`,
		namespaces, queues, keys, payloads)
	return err
}

// timeEnqueue lets the ways take turns, each with messages of its own, in one outbox.
func (l *lab) timeEnqueue(ctx context.Context, db *database, n int) ([]summary, error) {
	if err := l.settleDown(ctx, db); err != nil {
		return nil, err
	}
	ways := enqueueWays()
	took := make([][]float64, len(ways))
	var steps []func(context.Context) error
	next := 0
	for i, w := range ways {
		client, err := db.single(ctx)
		if err != nil {
			return nil, err
		}
		defer client.Close()
		steps = append(steps, func(ctx context.Context) error {
			if !w.takes(n) {
				return nil
			}
			tx, err := client.Begin(ctx)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
			ms := make([]driver.Message, n)
			for j := range ms {
				next++
				key := fmt.Sprintf("%d/%s/%d", n, w.name, next)
				ms[j] = driver.Message{Namespace: fmt.Sprintf("tenant-%02d", j%jobTenants), TaskQueue: "bench", DispatchKey: key, Payload: make([]byte, jobBytes)}
			}
			start := time.Now()
			if err := w.write(ctx, tx, ms); err != nil {
				return err
			}
			took[i] = append(took[i], milliseconds(time.Since(start)))
			return tx.Commit(ctx)
		})
	}
	if err := interleave(ctx, l.size.warmUp, steps...); err != nil {
		return nil, err
	}
	clear(took)
	if err := interleave(ctx, l.size.rounds, steps...); err != nil {
		return nil, err
	}
	sums := make([]summary, len(ways))
	for i := range ways {
		sums[i] = summarize(took[i])
	}
	return sums, nil
}
