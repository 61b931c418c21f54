package node

import (
	"context"
	"fmt"

	"github.com/fairclaim/fairclaim/driver"
)

// A claim brings messages without their payloads: those are read once it is committed, in
// portions, and handed on as they come. So the shards are free before the network is
// read, and a node never holds more than it has counted.

const (
	// portionBytes is how many bytes of payloads are read at a time; a larger payload is
	// read alone.
	portionBytes = 4 << 20

	// mostMisreads is how often a payload may fail to be read before that counts as a failed
	// attempt: one that no call has time for must not be tried for ever.
	mostMisreads = 5
)

// readOn goes on with what is claimed and waits for room in memory or in its queue, or for its
// turn as a suspect, or could not be read before.
func (l *loop) readOn(ctx context.Context) {
	if l.clock() < l.retryAt {
		return
	}
	if !l.draining {
		l.handOn()
		l.unpark()
		l.beginSuspects(ctx)
	}
	l.read(ctx)
}

// read reads the payloads of what is unread and hands it on.
func (l *loop) read(ctx context.Context) {
	for len(l.unread) > 0 && l.clock() >= l.retryAt && ctx.Err() == nil {
		items := portion(l.unread)
		l.unread = l.unread[len(items):]
		l.readPortion(ctx, items)
	}
	if len(l.unread) == 0 {
		l.unread = nil
	}
}

// portion is the first of the items whose payloads are read together: what has failed to be
// read is read alone.
func portion(items []*item) []*item {
	bytes := int64(0)
	for i, it := range items {
		bytes += it.bytes
		if i > 0 && (bytes > portionBytes || it.misread > 0 || items[0].misread > 0) {
			return items[:i]
		}
	}
	return items
}

func (l *loop) readPortion(ctx context.Context, items []*item) {
	call, cancel := context.WithTimeout(ctx, l.patience())
	defer cancel()
	messages := make([]*driver.Delivery, len(items))
	for i, it := range items {
		messages[i] = &it.Delivery
	}
	lost, err := driver.Payloads(call, l.db, messages)
	if l.failed(ctx, err) {
		l.endOnce(err)
		l.misread(items, err)
		return
	}
	for _, ref := range lost {
		l.book[ref].lose()
	}
	for _, it := range items {
		l.offer(it)
	}
}

// misread keeps what could not be read for another try, or ends the attempt.
func (l *loop) misread(items []*item, err error) {
	for _, it := range items {
		it.Payload, it.Headers = nil, nil
		if it.misread++; it.misread < mostMisreads {
			l.unread = append(l.unread, it)
			continue
		}
		it.queue.coming--
		it.outcome = judge(fmt.Errorf("its payload of %d bytes could not be read: %w", it.bytes, err))
		l.results = append(l.results, it)
	}
}

// admit counts a message's bytes and has its payload read.
func (l *loop) admit(it *item) {
	l.hold(it)
	it.queue.coming++
	l.unread = append(l.unread, it)
}

// offer hands a message on that has its payload, or puts it away where its queue is full.
func (l *loop) offer(it *item) {
	it.queue.coming--
	switch {
	case it.lost.Load():
		it.outcome = judge(Undelivered(errLost))
		l.results = append(l.results, it)
	case !it.queue.offer(it):
		l.letGo(it)
		l.putAway(it)
	}
}

// putAway keeps a message that its queue does not take: claimed, its payload not in memory.
// So a queue that is full, of a sink that hangs perhaps, holds up what belongs into it
// and nothing else, until there are too many such messages: then claiming pauses.
func (l *loop) putAway(it *item) {
	it.Payload, it.Headers = nil, nil
	it.queue.stash = append(it.queue.stash, it)
	l.stats.parked.Add(1)
	if l.stashed++; l.stashed > l.config.Stash {
		l.control.OnSendRejected()
	}
}

// handOn takes what was put away and its queue takes by now, the oldest first, as far as the
// watermarks allow.
func (l *loop) handOn() {
	if l.stashed == 0 {
		return
	}
	for _, q := range l.dispatch.queues {
		for len(q.stash) > 0 && q.accepts(q.stash[0].Namespace) {
			it, usage := q.stash[0], l.budget.Usage()
			if usage > 0 && usage+it.bytes > l.control.Params().HighBytes {
				break
			}
			q.stash = q.stash[1:]
			l.stashed--
			l.stats.parked.Add(-1)
			l.admit(it)
		}
	}
}
