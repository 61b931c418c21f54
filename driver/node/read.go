package node

import (
	"context"
	"fmt"

	"github.com/fairclaim/fairclaim/driver"
)

// A claim brings messages without their payloads, but for small ones: the others are read once it
// is committed, in portions, and handed on as they come. So the shards are free before much of the
// network is read, and a node never holds more than it has counted and what one claim may bring along.

const (
	// portionBytes is how many bytes of payloads are read at a time; a larger payload is
	// read alone.
	portionBytes = 4 << 20

	// maxMisreads is how often a payload may fail to be read before that counts as a failed
	// attempt: one that no call has time for must not be tried for ever.
	maxMisreads = 5
)

// readOn goes on with what is claimed and waited for room in memory or in its queue, or for its
// turn as a suspect, or could not be read before.
func (l *loop) readOn(ctx context.Context) {
	if !l.mayCall() {
		return
	}
	if !l.draining {
		l.ledger.unstash()
		l.ledger.unpark()
		l.beginSuspects(ctx)
	}
	l.readUnread(ctx)
}

// readUnread hands on what is unread: first what has come with its payload, then the others, as their payloads are
// read.
func (l *loop) readUnread(ctx context.Context) {
	l.handOn(l.ledger.takeRead()...)
	for len(l.ledger.unread) > 0 && l.mayCall() && ctx.Err() == nil {
		l.readPortion(ctx, l.ledger.portion(portionBytes))
	}
}

func (l *loop) readPortion(ctx context.Context, items []*item) {
	call, cancel := context.WithTimeout(ctx, l.patience())
	defer cancel()
	deliveries := make([]*driver.Delivery, len(items))
	for i, it := range items {
		deliveries[i] = &it.Delivery
	}
	handedOn := make([]bool, len(items))
	before := l.clock()
	lost, err := driver.PayloadsEach(call, l.db, deliveries, func(i int) {
		handedOn[i] = true
		l.handOn(items[i])
	})
	l.called(ctx, Call{Name: "payloads", Took: l.since(before), Err: err})
	var rest []*item
	for i, it := range items {
		if !handedOn[i] {
			rest = append(rest, it)
		}
	}
	if !l.worked(ctx, err) {
		l.misread(rest, err)
		return
	}
	for _, ref := range lost {
		l.ledger.items[ref].lose()
	}
	for _, it := range rest {
		l.handOn(it)
	}
}

// misread keeps what could not be read for another try, or ends the attempt.
func (l *loop) misread(items []*item, err error) {
	for _, it := range items {
		if it.misread++; it.misread < maxMisreads {
			l.ledger.unreadAgain(it)
			continue
		}
		l.ledger.handOn(it)
		it.Payload, it.Headers = nil, nil
		l.toSettle(it, fmt.Errorf("its payload of %d bytes could not be read: %w", it.bytes, err))
	}
}

// handOn hands messages on that have their payloads, or stashes those whose queue is full. Too
// many that are stashed pause claiming.
func (l *loop) handOn(items ...*item) {
	ours := items[:0:0]
	for _, it := range items {
		l.ledger.handOn(it)
		if it.lost.Load() {
			l.toSettle(it, Undelivered(errLost))
			continue
		}
		ours = append(ours, it)
	}
	for _, it := range l.dispatch.offer(ours...) {
		if !l.ledger.stash(it) {
			l.control.OnSendRejected()
		}
	}
}

// beginSuspects begins the suspects whose turn it is, once the outbox has noted it.
func (l *loop) beginSuspects(ctx context.Context) {
	if !l.mayCall() {
		return
	}
	items, together := l.ledger.pickSuspects()
	if len(items) == 0 {
		return
	}
	call, cancel := context.WithTimeout(ctx, l.patience())
	defer cancel()
	before := l.clock()
	refs, err := driver.BeginDelivery(call, l.db, refsOf(items), together)
	l.called(ctx, Call{Name: "begin_delivery", Took: l.since(before), Err: err})
	l.worked(ctx, err)
	noted := make(map[driver.Ref]bool, len(refs))
	for _, ref := range refs {
		noted[ref] = true
	}
	for _, it := range items {
		if noted[it.Ref()] {
			l.ledger.admit(it)
		} else { // the call failed, the claim was lost, or the row is locked by somebody: not now
			l.ledger.putBack(it)
		}
	}
}
