package node

import (
	"context"
	"slices"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

// beat sends the node's heartbeat and takes over what comes back about shards.
func (l *loop) beat(ctx context.Context) error {
	h := driver.HeartbeatRequest{
		Node: l.config.Node, Process: l.process, Shards: l.shards, Paused: l.whyNotClaiming(), InFlightBytes: l.ledger.usage(),
		SeenToken: l.seenToken,
	}
	switch {
	case l.draining: // it claims no more: another node may
		h.Shards = []int32{}
	case l.shardsGiven:
		h.Shards = nil
	}
	o, err := driver.Heartbeat(ctx, l.db, h)
	if err != nil {
		return err
	}
	l.seen.beatAt = time.Now()
	if o.SharedName && !l.nameShared {
		l.log.Warn("another process uses this node's name: they get the same shards and hinder each other; give each a name of its own",
			"process", l.process)
	}
	l.nameShared = o.SharedName
	if o.WentBack {
		l.log.Error("the database has gone back in time, by a fail-over or a restore: what it had committed last is lost, and what was settled then comes again; sweep check tells more",
			"seen_token", l.seenToken)
	}
	if l.shardsGiven && !l.draining && !slices.Equal(l.shards, o.Shards) {
		if l.shards != nil { // not at the start
			l.log.Info("shards have moved", "now", len(o.Shards), "gained", beyond(o.Shards, l.shards), "lost", beyond(l.shards, o.Shards))
		}
		l.shards = o.Shards
		l.pace.now()
	}
	// A node that has lapsed is noticed within a part of a sweep, and not by all at once.
	pause := l.config.Tick / 4
	next := min(jitter(min(l.config.HeartbeatEvery, l.outbox.NodeLapse/4)), max(o.AgainIn, pause)+jitter(pause/4))
	l.duties.heartbeat.at = l.clock() + int64(next)
	return nil
}

// whyNotClaiming is what the outbox is told; empty while the node claims.
func (l *loop) whyNotClaiming() string {
	switch {
	case l.draining:
		return PausedDraining
	case l.control.Paused():
		return l.control.Reason().String()
	case l.room() <= 0:
		return PausedQueuesFull
	default:
		return ""
	}
}

// beyond counts the shards that are not among others; both are sorted.
func beyond(shards, others []int32) (n int) {
	for _, shard := range shards {
		if _, found := slices.BinarySearch(others, shard); !found {
			n++
		}
	}
	return n
}
