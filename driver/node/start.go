package node

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fairclaim/fairclaim/budget"
	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/watermark"
)

// start asks the database for what the loop must know, so that what is wrong with the
// connection, the rights or the schema is found at the start. usage is where the payload
// bytes in flight are counted.
func (l *loop) start(ctx context.Context, usage *budget.Inflight, maxClaims int) error {
	c := l.config
	start := time.Now()
	l.clock = func() int64 { return int64(time.Since(start)) + 1 }
	params, err := watermark.ParamsFromBudget(c.Budget, c.High, c.Low, c.MinPause)
	if err != nil {
		return err
	}
	l.control, err = watermark.New(params, time.Now)
	if err != nil {
		return err
	}
	ask, cancel := context.WithTimeout(ctx, c.CallTimeout)
	defer cancel()
	if err := driver.CheckSession(ask, l.db); err != nil {
		return err
	}
	l.outbox, err = driver.Settings(ask, l.db)
	if err != nil {
		return err
	}
	if c.Batch > l.outbox.MaxBatch {
		return fmt.Errorf("%w: %w", driver.ErrBadArgument, badField("Batch", "is %d: the outbox gives up to %d (max_batch)", c.Batch, l.outbox.MaxBatch))
	}
	for _, shard := range c.Shards {
		if shard < 0 || int(shard) >= l.outbox.ShardCount {
			return fmt.Errorf("%w: shard %d: the outbox has shards 0 to %d", driver.ErrBadArgument, shard, l.outbox.ShardCount-1)
		}
	}
	pool, ok := l.db.(*pgxpool.Pool)
	if ok {
		// Prunes are made beside the other calls only where all of those have a connection nevertheless.
		others := int32(2) // claims and settles
		if c.Survey.Every > 0 {
			others++
		}
		l.sideBySide, l.pruneBeside = pool.Config().MaxConns > 1, pool.Config().MaxConns > others
	}
	l.answers, l.prunes = make(chan []settleAnswer, 1), make(chan prune, 1)
	l.shards, l.shardsGiven = c.Shards, c.Shards == nil && l.live
	if c.Shards == nil && !l.live {
		for shard := range l.outbox.ShardCount {
			l.shards = append(l.shards, int32(shard))
		}
	}
	self := thisProcess()
	l.process = self.String()
	l.log = c.Logger.With("node", c.Node)
	l.dispatch = newDispatcher(limits{
		slots: c.Slots, spare: c.Spare, shareSlots: max(int(float64(c.Slots)*c.Share), 1),
		shareBytes: max(int64(float64(params.LowBytes)*c.Share), 1),
		capacity:   c.Queue, timeout: c.DeliveryTimeout, slow: min(c.Tick, c.DeliveryTimeout/2),
	}, l.clock)
	l.dispatch.overdue, l.dispatch.leftBehind = &l.stats.overdue, &l.stats.stuck
	l.ledger = newLedger(
		ledgerLimits{shareBytes: l.dispatch.shareBytes, low: params.LowBytes, high: params.HighBytes, maxStash: c.Stash},
		usage, l.stats, l.log, func(it *item, coming int) bool { return l.dispatch.accepts(it.queue, it.Namespace, coming) })
	l.pace = pace{
		tick: c.Tick, fullRoom: (min(c.Batch, c.Queue) + 1) / 2, once: !l.live, maxClaims: int64(maxClaims),
		shutOutLimit: 2 * l.outbox.ClaimIdleTimeout,
	}
	l.defaultQueue, l.taskQueues = l.dispatch.newQueue(c.Sink), map[string]*queue{}
	for taskQueue, sink := range c.Routes {
		l.taskQueues[taskQueue] = l.dispatch.newQueue(sink)
	}
	l.duties.settings.at = l.clock() + int64(jitter(c.HeartbeatEvery))
	l.duties.heartbeat.off = !l.live
	l.duties.prune.off = c.PruneEvery < 0
	l.duties.obstacles.off = !l.live
	l.duties.events.off = true
	if l.live {
		l.leaveForTheGone(ask, self)
	}
	if l.shardsGiven {
		if err := l.beat(ask); err != nil {
			return err
		}
	}
	return nil
}

// leaveForTheGone gives up the shards of nodes of this machine whose process is gone, killed
// perhaps: they would wait until its heartbeat lapses. This is best effort: what fails
// here is left to the lapse.
func (l *loop) leaveForTheGone(ctx context.Context, self process) {
	processes, err := driver.NodeProcesses(ctx, l.db)
	if err != nil {
		l.log.Debug("cannot look for nodes that are gone", "error", err)
		return
	}
	for node, process := range processes {
		if !self.gone(process) {
			continue
		}
		if err := driver.Leave(ctx, l.db, node, process); err != nil {
			l.log.Debug("cannot leave for nodes that are gone", "error", err)
			return
		}
		l.log.Info("left for a node whose process is gone", "gone", node, "process", process)
	}
}
