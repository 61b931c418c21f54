package node

import (
	"context"
	"time"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/watermark"
)

// mayClaim reports whether it is time for a claim and nothing speaks against one. It is
// where the watermarks tick.
func (l *loop) mayClaim() bool {
	now := l.clock()
	if !l.backoff.mayCall(now) || l.mustSettle() || !l.pace.due(now, l.room(), l.ledger.inFlight()) {
		return false
	}
	l.relieve()
	switch l.control.Tick(l.ledger.usage(), l.hasRoom()) {
	case watermark.Pause:
		l.pausedAt = now
		l.stats.pauses.Add(1)
		l.log.Info("claiming paused", "reason", l.control.Reason(), "in_flight_bytes", l.ledger.usage())
		l.duties.heartbeat.soon() // tell the others at once
	case watermark.Resume:
		l.log.Info("claiming resumed", "in_flight_bytes", l.ledger.usage())
		l.duties.heartbeat.soon()
	}
	return !l.control.Paused() && l.room() > 0 && (len(l.shards) > 0 || !l.live)
}

// queueRoom is how many messages the emptiest queue takes.
func (l *loop) queueRoom() int {
	room := l.dispatch.room(l.defaultQueue)
	for _, q := range l.taskQueues {
		room = max(room, l.dispatch.room(q))
	}
	return room
}

// room is how many rows a claim may bring: what the emptiest queue takes. Messages that belong
// into a fuller queue are stashed.
func (l *loop) room() int { return min(l.queueRoom(), l.config.Batch, l.outbox.MaxBatch) }

// hasRoom reports whether what a claim brings has somewhere to go: a queue is at most half
// full, and so is the stash. A queue that stays full holds up what belongs into it alone.
func (l *loop) hasRoom() bool {
	return l.queueRoom() >= (l.config.Queue+1)/2 && l.ledger.stashed <= l.config.Stash/2
}

// relieve ends a pause that lasts because of bytes that wait for their delivery: it parks as
// much as is between the usage and the low watermark, and nothing where that much does not wait.
func (l *loop) relieve() {
	above := l.ledger.usage() - l.control.Params().LowBytes
	paused := time.Duration(l.clock() - l.pausedAt)
	if !l.control.Paused() || paused < l.config.MinPause || above <= 0 || !l.hasRoom() {
		return
	}
	left := l.ledger.bytesByNamespace()
	count := map[string]int{}
	most, messages := "", 0
	for _, it := range l.dispatch.takeBack(above, left) {
		l.ledger.park(it)
		l.config.Observer.Message(&it.Delivery, Parked)
		messages++
		if count[it.Namespace]++; most == "" || count[it.Namespace] > count[most] {
			most = it.Namespace
		}
	}
	if messages > 0 {
		l.log.Warn("namespaces fill the budget: parked what they have waiting", "namespaces", len(count), "messages", messages,
			"most_of", most, "its_messages", count[most], "its_left_bytes", left[most], "paused_for", paused.Round(time.Millisecond).String())
	}
}

// claim claims as much as there is room for, and enters it into the ledger.
func (l *loop) claim(ctx context.Context) {
	left := l.config.Budget - l.ledger.usage()
	asked := l.room() // since mayClaim looked, a namespace may have come back below its share
	if left <= 0 || asked <= 0 || !l.mayCall() {
		return
	}
	before, inFlight := l.clock(), l.ledger.inFlight()
	call, cancel := patient(ctx, l.patience())
	defer cancel()
	claimed, err := driver.Claim(call, l.db, driver.ClaimRequest{
		Node: l.config.Node, Shards: l.shards, Batch: asked, MaxBytes: left, WithoutPayloads: true,
	})
	took := l.since(before)
	l.called(ctx, Call{Name: "claim", Took: took, Outcome: claimed.Outcome, Err: err})
	if !l.worked(ctx, err) {
		return
	}
	l.stats.sweeps.Add(1)
	deliveries := claimed.Deliveries
	l.stats.claimed.Add(int64(len(deliveries)))
	l.pace.claimed(claim{at: before, took: int64(took), asked: asked, brought: len(deliveries), inFlight: inFlight, outcome: claimed.Outcome})
	if claimed.Outcome == driver.ShutOut && !l.live {
		l.shutOut(ctx)
	}
	for i := range deliveries {
		it := &item{Delivery: deliveries[i], bytes: deliveries[i].PayloadBytes, queue: l.defaultQueue}
		if q, ok := l.taskQueues[it.TaskQueue]; ok {
			it.queue = q
		}
		it.leased.Store(before + int64(l.outbox.Lease))
		l.seenToken = max(l.seenToken, it.ClaimToken)
		if !l.ledger.enter(it) {
			l.control.OnSendRejected()
		}
		l.entered(it, before+int64(took))
	}
	l.beginSuspects(ctx)
	l.readUnread(ctx)
}
