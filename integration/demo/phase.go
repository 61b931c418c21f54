package main

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
	"github.com/fairclaim/fairclaim/sql/migrations"
)

//go:embed first_come.sql
var firstCome string

const (
	quietTenants = 20
	trickle      = 250 * time.Millisecond // between two messages of a quiet tenant
	delivery     = 5 * time.Millisecond   // what the sink, a pretended web hook, takes
	slots        = 8                      // deliveries at a time, a node
	payloadBytes = 500
	bursty       = "bursty"
	dying        = "dying"
)

// phase is one run of the same load: the same tenants, nodes and sinks.
type phase struct {
	title    string
	database string
	replace  string // SQL that puts another claim in place of claim_fair
	length   time.Duration
	burst    int
	outage   bool // one more tenant, whose endpoint is down for a while
}

// result is what a phase came to.
type result struct {
	rows   []row // the bursty tenant, then the quiet ones
	length time.Duration
	outage outage
}

func (p phase) run(ctx context.Context, dsn string, screen *screen) (result, error) {
	if _, err := migrations.Up(ctx, dsn, migrations.Options{}); err != nil {
		return result{}, err
	}
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return result{}, err
	}
	defer pool.Close()
	if p.replace != "" {
		if _, err := pool.Exec(ctx, p.replace); err != nil {
			return result{}, fmt.Errorf("replace the claim: %w", err)
		}
	}

	if p.outage {
		// Short holds for a short demo.
		if _, err := pool.Exec(ctx, `select outbox.configure('{"hold_base": "250 ms", "hold_cap": "1 s"}')`); err != nil {
			return result{}, err
		}
	}

	t := newTally()
	nodes := make([]*node.Node, 2)
	for i, shards := range [][]int32{{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10, 11, 12, 13, 14, 15}} {
		nodes[i], err = node.New(pool, node.Config{
			Node: fmt.Sprintf("node-%d", i+1), Shards: shards, Sink: t.sink(), Batch: 50, Tick: 50 * time.Millisecond,
			Slots: slots, Share: 1, Queue: 1000, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		})
		if err != nil {
			return result{}, err
		}
	}

	working, finish := context.WithTimeout(ctx, p.length)
	defer finish()
	var r result
	g, inner := errgroup.WithContext(working)
	if p.outage {
		t.outage.from, t.outage.to = time.Now().Add(p.length/4), time.Now().Add(p.length*2/3)
		g.Go(func() error { return atEnd(inner, enqueueDying(inner, pool, t)) })
	}
	for _, node := range nodes {
		g.Go(func() error { return atEnd(inner, node.Run(inner)) })
	}
	g.Go(func() error { return atEnd(inner, p.enqueueBurst(inner, pool, t)) })
	g.Go(func() error { return atEnd(inner, enqueueTrickle(inner, pool, t)) })
	g.Go(func() error { return atEnd(inner, p.watch(inner, pool, t, screen)) })
	if err := g.Wait(); err != nil {
		return r, err
	}
	if err := ctx.Err(); err != nil {
		return r, err
	}
	rows, err := t.rows(ctx, pool)
	return result{rows: rows, length: p.length, outage: t.outage}, err
}

// atEnd turns what the end of a phase makes calls fail with into nil.
func atEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(err, driver.ErrBadArgument) {
		return nil
	}
	return err
}

func (p phase) enqueueBurst(ctx context.Context, pool *pgxpool.Pool, t *tally) error {
	const chunk = 2500
	for from := 0; from < p.burst; from += chunk {
		batch := make([]driver.Message, min(chunk, p.burst-from))
		for i := range batch {
			batch[i] = message(bursty, from+i)
		}
		if _, err := driver.EnqueueBatch(ctx, pool, batch); err != nil {
			return err
		}
		t.enqueued(bursty, len(batch))
	}
	return nil
}

func enqueueTrickle(ctx context.Context, pool *pgxpool.Pool, t *tally) error {
	ticker := time.NewTicker(trickle)
	defer ticker.Stop()
	for n := 0; ; n++ {
		batch := make([]driver.Message, quietTenants)
		for i := range batch {
			batch[i] = message(quietName(i), n)
		}
		if _, err := driver.EnqueueBatch(ctx, pool, batch); err != nil {
			return err
		}
		for i := range batch {
			t.waiting(batch[i].DispatchKey, quietName(i), sentAt(batch[i].Payload))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// enqueueDying enqueues for the tenant whose endpoint goes down.
func enqueueDying(ctx context.Context, pool *pgxpool.Pool, t *tally) error {
	ticker := time.NewTicker(trickle)
	defer ticker.Stop()
	for n := 0; ; n += 5 {
		batch := make([]driver.Message, 5)
		for i := range batch {
			batch[i] = message(dying, n+i)
		}
		if _, err := driver.EnqueueBatch(ctx, pool, batch); err != nil {
			return err
		}
		t.enqueued(dying, len(batch))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// watch draws until the phase ends.
func (p phase) watch(ctx context.Context, pool *pgxpool.Pool, t *tally, screen *screen) error {
	start := time.Now()
	ticker := time.NewTicker(screen.every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		rows, err := t.rows(ctx, pool)
		if err != nil {
			return err
		}
		screen.draw(p.title, time.Since(start), p.length, rows)
	}
}

func quietName(i int) string { return fmt.Sprintf("quiet-%02d", i+1) }

// message makes one whose payload begins with the time at which it was sent.
func message(namespace string, n int) driver.Message {
	payload := make([]byte, payloadBytes)
	binary.BigEndian.PutUint64(payload, uint64(time.Now().UnixNano()))
	return driver.Message{
		Namespace: namespace, TaskQueue: "webhook", DispatchKey: fmt.Sprintf("%s/%06d", namespace, n),
		Payload: payload, ContentType: "application/octet-stream",
	}
}

func sentAt(payload []byte) time.Time {
	return time.Unix(0, int64(binary.BigEndian.Uint64(payload)))
}
