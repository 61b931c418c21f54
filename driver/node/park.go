package node

import (
	"slices"
	"time"
)

// A namespace whose deliveries hang must not fill the budget either, and so pause claiming
// for everybody. Whether one does can be told by the pause: where claiming has been paused
// for min pause and the bytes have not drained, those who hold most are cut back. What
// they have waiting is parked: it stays claimed, but its payload is dropped and its bytes
// are given back.
//
// Parked messages count against their namespace's quota as all that is claimed does. So a
// claim brings at most a quota of them, and then no more. As room comes about, their
// payloads are read again. As long as a namespace has parked ones it is held to its
// share of what the low watermark leaves.

// holding is what the node has claimed of a namespace.
type holding struct {
	bytes  int64   // of the payloads that are held
	parked []*item // the oldest first
}

func (l *loop) heldBy(namespace string) *holding {
	h := l.held[namespace]
	if h == nil {
		h = &holding{}
		l.held[namespace] = h
	}
	return h
}

// hold counts a message's bytes as in flight.
func (l *loop) hold(it *item) {
	it.counted = true
	l.budget.Add(it.bytes)
	l.heldBy(it.Namespace).bytes += it.bytes
}

// letGo gives them back.
func (l *loop) letGo(it *item) {
	it.counted = false
	if !l.budget.Sub(it.bytes) {
		l.log.Error("more bytes given back than were in flight", "id", it.ID)
	}
	h := l.heldBy(it.Namespace)
	h.bytes -= it.bytes
	l.forget(it.Namespace, h)
}

// forget drops the account of a namespace that has nothing.
func (l *loop) forget(namespace string, h *holding) {
	if h.bytes == 0 && len(h.parked) == 0 {
		delete(l.held, namespace)
	}
}

// fits reports whether a namespace that is held to its share, and holds so many bytes of
// the usage, may have some more. One message always fits: its payload may be larger than
// any share.
func (l *loop) fits(bytes, held, usage int64) bool {
	return bytes == 0 || held == 0 ||
		held+bytes <= l.dispatch.shareBytes && usage+bytes <= l.control.Params().LowBytes
}

// crowded reports whether a message that was just claimed is to be parked.
func (l *loop) crowded(it *item) bool {
	h := l.held[it.Namespace]
	return h != nil && len(h.parked) > 0 && !l.fits(it.bytes, h.bytes, l.budget.Usage())
}

// park parks a message that is in no queue and whose bytes do not count.
func (l *loop) park(it *item) {
	it.parked = true
	it.Payload, it.Headers = nil, nil
	h := l.heldBy(it.Namespace)
	h.parked = append(h.parked, it)
	l.stats.parked.Add(1)
}

// relieve ends a pause that lasts because of bytes that wait: it parks as much as is
// between the usage and the low watermark, and nothing where that much does not wait.
func (l *loop) relieve() {
	over := l.budget.Usage() - l.control.Params().LowBytes
	paused := time.Duration(l.clock() - l.pausedAt)
	if !l.control.Paused() || paused < l.config.MinPause || over <= 0 || !l.drained() {
		return
	}
	held := map[string]int64{}
	for namespace, h := range l.held {
		held[namespace] = h.bytes
	}
	parked := map[string]int{}
	for _, it := range l.dispatch.takeBack(over, held) {
		l.letGo(it)
		l.park(it)
		parked[it.Namespace]++
	}
	for namespace, n := range parked {
		l.log.Warn("a namespace fills the budget: parked what it has waiting", "namespace", namespace,
			"messages", n, "left_bytes", held[namespace], "paused_for", paused.Round(time.Millisecond).String())
	}
}

// unpark has the payloads read again of what is parked and fits by now.
func (l *loop) unpark() {
	if l.stats.parked.Load() == 0 {
		return
	}
	for namespace, h := range l.held {
		// One after the other: each takes of the room that is left for the next.
		for i := 0; i < len(h.parked); i++ {
			it := h.parked[i]
			if !it.queue.accepts(it.Namespace) || !l.fits(it.bytes, h.bytes, l.budget.Usage()) {
				continue
			}
			h.parked = slices.Delete(h.parked, i, i+1)
			i--
			it.parked = false
			l.stats.parked.Add(-1)
			l.admit(it)
		}
		l.forget(namespace, h)
	}
}

// endWaiting releases what waits without its payload, parked, put away or suspect, and which
// says.
func (l *loop) endWaiting(why error, which func(*item) bool) {
	ended := l.suspects.remove(which)
	for _, q := range l.dispatch.queues {
		before := len(ended)
		q.stash = slices.DeleteFunc(q.stash, func(it *item) bool {
			if which(it) {
				ended = append(ended, it)
				return true
			}
			return false
		})
		l.stashed -= len(ended) - before
		l.stats.parked.Add(int64(before - len(ended)))
	}
	for namespace, h := range l.held {
		h.parked = slices.DeleteFunc(h.parked, func(it *item) bool {
			if which(it) {
				ended = append(ended, it)
				l.stats.parked.Add(-1)
				return true
			}
			return false
		})
		l.forget(namespace, h)
	}
	for _, it := range ended {
		it.outcome = judge(Undelivered(why))
		l.results = append(l.results, it)
	}
}
