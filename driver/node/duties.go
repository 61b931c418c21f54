package node

import (
	"cmp"
	"context"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

// attend does the regular work that is due, also while claiming is paused or draining.
func (l *loop) attend(ctx context.Context) {
	l.attendTo(ctx, &l.duties.settings, l.config.HeartbeatEvery, l.readSettings)
	if !l.attendTo(ctx, &l.duties.extend, l.outbox.Lease/4, l.extend) {
		// Soon again, once the settles have had their turn.
		l.duties.extend.at = max(l.clock(), l.backoff.dutiesAt) + int64(min(l.outbox.Lease/16, time.Second))
	}
	rescueEvery := cmp.Or(l.config.RescueEvery, min(5*time.Second, max(l.outbox.Lease/4, 250*time.Millisecond)))
	l.attendTo(ctx, &l.duties.rescue, rescueEvery, l.rescue)
	l.failures.write(l.log, l.clock(), l.draining)
	l.logCrowds()
	l.attendTo(ctx, &l.duties.heartbeat, l.config.HeartbeatEvery, l.beat)
	l.prune(ctx)
	l.attendTo(ctx, &l.duties.obstacles, obstaclesEvery, l.logObstacles)
	l.attendTo(ctx, &l.duties.observe, l.config.HeartbeatEvery, l.observe)
	l.survey(ctx)
	l.closeNotices()
	l.attendTo(ctx, &l.duties.events, l.config.Tick, l.enqueueNotices)
}

// attendTo does a duty if it is time for it. The duty's next time is set before it is done, so
// that do can set another. It reports false where the duty failed.
func (l *loop) attendTo(ctx context.Context, d *duty, every time.Duration, do func(context.Context) error) bool {
	if !l.isTimeFor(d) {
		return true
	}
	before := l.clock()
	d.at = before + int64(jitter(every))
	call, cancel := context.WithTimeout(ctx, l.patience())
	defer cancel()
	err := do(call)
	l.attended(ctx, d, l.since(before), err)
	return err == nil
}

// isTimeFor reports whether a duty is due; none is while the database is away.
func (l *loop) isTimeFor(d *duty) bool {
	d.at = max(d.at, l.backoff.dutiesAt)
	return !d.off && l.clock() >= d.at
}

// attended draws the conclusions from how a duty has ended.
func (l *loop) attended(ctx context.Context, d *duty, took time.Duration, err error) {
	l.observeDuty(ctx, d, took, err)
	now := l.clock()
	switch {
	case err == nil:
	case away(err):
		l.worked(ctx, err)
	case d.loggedAt == 0 || now-d.loggedAt >= int64(reportEvery):
		// The database is there and refuses this duty: no reason to stop the others.
		d.loggedAt = now
		l.log.Warn("a regular duty failed", "error", err)
	}
}

// readSettings reads the outbox's settings again: operators change them while nodes run.
func (l *loop) readSettings(ctx context.Context) error {
	outbox, err := driver.Settings(ctx, l.db)
	if err != nil {
		return err
	}
	if outbox.Lease != l.outbox.Lease {
		l.log.Info("the lease has changed", "lease", outbox.Lease.String())
		l.duties.extend.soon()
	}
	l.outbox = outbox
	return nil
}

// rescue takes messages back whose leases have expired, of whatever node.
func (l *loop) rescue(ctx context.Context) error {
	pending, failed, err := driver.Rescue(ctx, l.db, maxRows)
	if pending+failed > 0 {
		l.log.Warn("leases had expired", "pending_again", pending, "failed", failed)
	}
	if failed > 0 {
		l.notify(rescuedNotice(failed))
	}
	if pending+failed == maxRows { // there are more
		l.duties.rescue.at = l.clock() + int64(l.config.Tick)
	}
	return err
}

// extend lets the leases of what is in flight run on, but for deliveries that have
// outlived their time-out: their sink does not listen, and another node may try. What has
// been delivered stays ours until it can be settled. What is no longer ours is not worth
// delivering.
func (l *loop) extend(ctx context.Context) error {
	now := l.clock()
	delivered := make(map[*item]bool, len(l.results))
	for _, it := range l.results {
		delivered[it] = true
	}
	for _, c := range l.settling {
		for _, it := range c.items {
			delivered[it] = true
		}
	}
	var refs []driver.Ref
	for ref, it := range l.ledger.items {
		started := it.started.Load()
		if !it.lost.Load() && (started == 0 || now-started < int64(l.config.DeliveryTimeout) || delivered[it]) {
			refs = append(refs, ref)
		}
	}
	lost, err := driver.Extend(ctx, l.db, refs, 0)
	if err != nil {
		return err
	}
	for _, ref := range lost {
		l.ledger.items[ref].lose()
	}
	for _, ref := range refs {
		if it := l.ledger.items[ref]; !it.lost.Load() {
			it.leased.Store(now + int64(l.outbox.Lease))
		}
	}
	l.endWaiting(errLost, func(it *item) bool { return it.lost.Load() })
	return nil
}
