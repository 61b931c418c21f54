package driver

import (
	"context"
	"time"
)

// duties are the clock times at which the loop's regular work is due next; 0 is now.
type duties struct {
	extend, rescue, heartbeat, prune int64
}

func (d *duties) next() int64 { return min(d.extend, d.rescue, d.heartbeat, d.prune) }

// never is a clock time that does not come.
const never = int64(1) << 62

// attend does the regular work that is due, also while claiming is paused or draining.
func (l *loop) attend(ctx context.Context) {
	l.due(ctx, &l.duties.extend, l.lease/4, l.extend)
	l.due(ctx, &l.duties.rescue, l.config.RescueEvery, func(ctx context.Context) error {
		pending, failed, err := Rescue(ctx, l.db, 1000)
		if pending+failed > 0 {
			l.log.Warn("leases had run out", "pending_again", pending, "failed", failed)
		}
		return err
	})
	l.due(ctx, &l.duties.heartbeat, l.config.HeartbeatEvery, func(ctx context.Context) error {
		if !l.live {
			l.duties.heartbeat = never
			return nil
		}
		h := Heartbeat{Node: l.config.Node, Shards: l.shards, InFlightBytes: l.budget.Usage()}
		if l.control.Paused() {
			h.Paused = l.control.Reason().String()
		}
		return Beat(ctx, l.db, h)
	})
	l.due(ctx, &l.duties.prune, l.config.PruneEvery, func(ctx context.Context) error {
		if l.config.PruneEvery < 0 || l.draining {
			l.duties.prune = never
			return nil
		}
		n, err := Prune(ctx, l.db, pruneChunk)
		if n == pruneChunk { // there is more
			l.duties.prune = l.clock() + int64(l.config.Tick)
		}
		return err
	})
}

const pruneChunk = 1000

// due does a duty if it is time for it. Its next time is set before it is done, so that
// it can set another.
func (l *loop) due(ctx context.Context, at *int64, every time.Duration, do func(context.Context) error) {
	now := l.clock()
	if now < *at || now < l.retryAt {
		if *at < l.retryAt {
			*at = l.retryAt
		}
		return
	}
	*at = now + int64(jitter(max(every, time.Millisecond)))
	call, cancel := context.WithTimeout(ctx, l.config.CallTimeout)
	defer cancel()
	l.failed(ctx, do(call))
}

// extend lets the leases of what is in flight run on, but for deliveries that have
// outlived their time-out: their sink does not listen, and another node may try. What is
// no longer ours is not worth delivering.
func (l *loop) extend(ctx context.Context) error {
	now := l.clock()
	var refs []Ref
	for ref, it := range l.book {
		started := it.started.Load()
		if !it.lost.Load() && (started == 0 || now-started < int64(l.config.DeliveryTimeout)) {
			refs = append(refs, ref)
		}
	}
	ids, err := Extend(ctx, l.db, refs, 0)
	if err != nil {
		return err
	}
	ours := make(map[int64]bool, len(ids))
	for _, id := range ids {
		ours[id] = true
	}
	for _, ref := range refs {
		it := l.book[ref]
		if ours[ref.ID] {
			it.leased.Store(now + int64(l.lease))
		} else {
			it.lose()
		}
	}
	return nil
}
