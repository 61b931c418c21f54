package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// TestUpgradeDestinationsUnderTraffic: while the schema goes to the version before holds and back, a node of this tree, whose
// destination is down at times, and a consumer that calls what the version before has, work on; what is held and what is
// not is delivered in the end, and nothing is charged twice over (INV-2, INV-16).
func TestUpgradeDestinationsUnderTraffic(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, `select outbox.configure('{"hold_base": "100 ms", "hold_cap": "100 ms", "hold_after": 1, "max_attempts": 1000, "retry_base": "100 ms", "retry_cap": "200 ms"}')`)
	var down atomic.Bool
	sink := node.SinkFunc(func(_ context.Context, d driver.Delivery) error {
		if down.Load() && d.TaskQueue == "down" {
			return node.DestinationFailed(errors.New("connection refused"))
		}
		return nil
	})
	var log lockedBuffer
	n := startNode(t, newNode(t, db, sink, func(c *node.Config) {
		c.Tick, c.Batch, c.Logger = 20*time.Millisecond, 20, slog.New(slog.NewTextHandler(&log, nil))
	}))
	ctx, stop := context.WithCancel(t.Context())
	var consumer sync.WaitGroup
	consumer.Go(func() {
		for ctx.Err() == nil { // a call that meets the change itself fails, and is made again
			_, _ = db.Pool.Exec(ctx, `with c as materialized (select * from outbox.claim_fair('before', outbox.all_shards(), 5)),
				d as (select array_agg(c.id) as ids, array_agg(c.claim_token) as tokens, c.task_queue = 'down' as down from c group by 3)
				select case when d.down and $1 then (select count(*) from outbox.retry(d.ids, d.tokens)) else (select count(*) from outbox.complete(d.ids, d.tokens)) end from d`, down.Load())
		}
	})
	defer consumer.Wait()
	defer stop()
	sent := 0
	send := func() {
		run(t, db.Pool, `select outbox.enqueue('n' || n % 5, case n % 2 when 0 then 'down' else 'up' end, $1::text || '/' || n, '') from generate_series(1, 40) as n`, fmt.Sprint(sent))
		sent += 40
	}
	const up = `select count(*) = $1 from outbox.settled as s where s.outcome = 'done' and s.task_queue = 'up'`
	for _, versions := range [][2]uint{{latestVersion(t), beforeHolds}, {beforeHolds, latestVersion(t)}} {
		down.Store(true)
		send()
		await(t, db.Pool, up, sent/2)
		if versions[0] != beforeHolds {
			await(t, db.Pool, `select exists (select from outbox.destination as d where d.state = 'held')`)
		}
		send()
		migrateTo(t, db, versions[0], versions[1])
		send()
		await(t, db.Pool, up, sent/2)
		down.Store(false)
		await(t, db.Pool, `select count(*) = $1 from outbox.settled as s where s.outcome = 'done'`, sent)
	}
	stop()
	consumer.Wait()
	if s := n.drained(t); s.Lost != 0 {
		t.Errorf("the node lost %d claims:\n%s", s.Lost, &log)
	}
	wantOutcomes(t, db.Pool, map[string]int{"done": sent})
}
