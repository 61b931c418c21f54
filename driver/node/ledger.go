package node

import (
	"log/slog"
	"slices"

	"github.com/fairclaim/fairclaim/budget"
	"github.com/fairclaim/fairclaim/driver"
)

// ledger is the account of what the node has claimed and not settled (INV-13). It belongs to
// the loop's goroutine. Each message is in one place:
//
//	place    its bytes count  its payload   it waits for
//	suspect  no               is not held   its turn, in small company
//	stashed  no               is not held   room in its queue
//	parked   no               is not held   its namespace to hold less than its share
//	unread   yes              is held, if   its payload to be read, or to be handed on with it
//	                          it came with
//	                          the claim
//	out      yes              is held, until its delivery, and then its settle
//	                          delivered
//
// and goes from place to place so; "counts" says what happens to its bytes:
//
//	call        from                      to        counts
//	enter       -                         suspect   -       it may have killed a node
//	enter       -                         parked    -       its namespace has parked ones, and no room in its share
//	enter       -                         stashed   -       its queue is full
//	enter       -                         unread    added
//	admit       suspect                   unread    added   its turn has come, and the outbox has noted it
//	unpark      parked                    unread    added   it fits into its namespace's share again
//	unstash     stashed                   unread    added   its queue has room again
//	handOn      unread                    out       -       its payload was read, or will never be
//	stash       out                       stashed   off     its queue had no room after all
//	park        out                       parked    off     bytes that wait keep claiming paused
//	end         suspect, stashed, parked  as it is  -       it waits no more, and is to be settled
//	leave       any                       -         off     settled, lost, or abandoned
//
// So bytes are added once and taken off once: by count and uncount alone, which do nothing where
// that was done. The place of a message that is to be settled is the last one that it had.
//
// A namespace whose deliveries hang must not fill the budget, and so pause claiming for
// all. Where claiming has been paused for a while and the bytes have not drained, those who
// hold most are cut back: what they have waiting is parked. Parked messages count against their
// namespace's quota as all that is claimed does. So a claim brings at most a quota of
// them, and then no more. As long as a namespace has parked ones it is held to its share.
type ledger struct {
	ledgerLimits
	budget *budget.Inflight
	stats  *counters
	log    *slog.Logger

	// accepts reports whether a message's queue takes one more of its namespace, beside those
	// that are coming: whose payloads are being read for it.
	accepts func(it *item, coming int) bool

	items    map[driver.Ref]*item // in flight
	accounts map[string]*account  // by namespace
	suspects suspects
	stashes  []*stash       // by queue
	stashed  int            // messages in them
	unread   []*item        // in the order of their claim
	coming   map[*queue]int // messages unread, by queue
}

// ledgerLimits are payload bytes, but for the stash.
type ledgerLimits struct {
	shareBytes int64 // of a namespace that has parked messages
	low        int64 // a namespace with parked messages adds nothing above this usage
	high       int64 // nothing leaves the stash, and no suspect begins, above this usage
	maxStash   int   // messages stashed; more are too many
}

// account is what the node holds of a namespace.
type account struct {
	bytes  int64   // that count
	parked []*item // the oldest first
}

// stash is what was claimed for a queue while it was full, the oldest first.
type stash struct {
	queue *queue
	items []*item
}

func newLedger(limits ledgerLimits, budget *budget.Inflight, stats *counters, log *slog.Logger, accepts func(*item, int) bool) *ledger {
	return &ledger{
		ledgerLimits: limits, budget: budget, stats: stats, log: log, accepts: accepts,
		items: map[driver.Ref]*item{}, accounts: map[string]*account{}, coming: map[*queue]int{},
	}
}

// inFlight is how many messages are claimed and not settled.
func (l *ledger) inFlight() int { return len(l.items) }

// usage is the payload bytes that count.
func (l *ledger) usage() int64 { return l.budget.Usage() }

// enter takes a message in that was just claimed. It reports false where too many are
// stashed.
func (l *ledger) enter(it *item) bool {
	l.items[it.Ref()] = it
	l.stats.inFlight.Add(1)
	a := l.accounts[it.Namespace]
	switch {
	case it.Suspect > 0:
		it.place = suspect
		it.Payload, it.Headers = nil, nil
		l.suspects.add(it)
	case it.Probe: // never put away: all wait for what it finds out
		l.admit(it)
	case a != nil && len(a.parked) > 0 && !l.fits(it, a):
		l.addParked(it)
	case !l.takes(it):
		return l.addStashed(it)
	default:
		l.admit(it)
	}
	return true
}

// takes reports whether the message's queue has room for it.
func (l *ledger) takes(it *item) bool { return it.Probe || l.accepts(it, l.coming[it.queue]) }

// fits reports whether a namespace with parked messages may have one more that counts. One
// message always fits: its payload may be larger than any share.
func (l *ledger) fits(it *item, a *account) bool {
	return it.bytes == 0 || a.bytes == 0 || a.bytes+it.bytes <= l.shareBytes && l.usage()+it.bytes <= l.low
}

// admit counts a message's bytes and has its payload read.
func (l *ledger) admit(it *item) {
	l.count(it)
	it.place = unread
	l.coming[it.queue]++
	l.unread = append(l.unread, it)
}

// count adds a message's bytes.
func (l *ledger) count(it *item) {
	if it.counted {
		return
	}
	it.counted = true
	l.budget.Add(it.bytes)
	l.account(it.Namespace).bytes += it.bytes
}

// uncount takes a message's bytes off, where they count.
func (l *ledger) uncount(it *item) {
	if !it.counted {
		return
	}
	it.counted = false
	if !l.budget.Sub(it.bytes) {
		l.log.Error("more bytes given back than were in flight", "id", it.ID)
	}
	a := l.account(it.Namespace)
	a.bytes -= it.bytes
	l.closeAccount(it.Namespace, a)
}

func (l *ledger) account(namespace string) *account {
	a := l.accounts[namespace]
	if a == nil {
		a = &account{}
		l.accounts[namespace] = a
	}
	return a
}

// closeAccount drops the account of a namespace that has nothing.
func (l *ledger) closeAccount(namespace string, a *account) {
	if a.bytes == 0 && len(a.parked) == 0 {
		delete(l.accounts, namespace)
	}
}

// portion takes out those of the unread messages whose payloads are read together: up to
// so many bytes, or one that has more. A message whose payload has failed to be read is read alone.
func (l *ledger) portion(maxBytes int64) []*item {
	n, bytes := 0, int64(0)
	for i, it := range l.unread {
		bytes += it.bytes
		if i > 0 && (bytes > maxBytes || it.misread > 0 || l.unread[0].misread > 0) {
			break
		}
		n++
	}
	items := l.unread[:n:n]
	if l.unread = l.unread[n:]; len(l.unread) == 0 {
		l.unread = nil
	}
	return items
}

// takeRead takes out those of the unread messages that have their payloads: the claim brought them.
func (l *ledger) takeRead() []*item {
	var read []*item
	l.unread = slices.DeleteFunc(l.unread, func(it *item) bool {
		if it.Payload != nil {
			read = append(read, it)
		}
		return it.Payload != nil
	})
	if len(l.unread) == 0 {
		l.unread = nil
	}
	return read
}

// unreadAgain puts a message back whose payload could not be read.
func (l *ledger) unreadAgain(it *item) {
	it.Payload, it.Headers = nil, nil
	l.unread = append(l.unread, it)
}

// handOn notes that a message has its payload, or will never have it.
func (l *ledger) handOn(it *item) {
	it.place = out
	l.coming[it.queue]--
}

// stash puts a message away that its queue has not taken, without its payload. So a queue that
// is full, of a sink that hangs perhaps, holds up what belongs into it and nothing else. It
// reports false where too many are stashed.
func (l *ledger) stash(it *item) bool {
	l.uncount(it)
	return l.addStashed(it)
}

func (l *ledger) addStashed(it *item) bool {
	it.place = stashed
	it.Payload, it.Headers = nil, nil
	i := slices.IndexFunc(l.stashes, func(s *stash) bool { return s.queue == it.queue })
	if i < 0 {
		i = len(l.stashes)
		l.stashes = append(l.stashes, &stash{queue: it.queue})
	}
	l.stashes[i].items = append(l.stashes[i].items, it)
	l.stats.parked.Add(1)
	l.stashed++
	return l.stashed <= l.maxStash
}

// unstash admits what was stashed and its queue takes by now, the oldest first, as far as the
// high watermark allows.
func (l *ledger) unstash() {
	for _, s := range l.stashes {
		for len(s.items) > 0 && l.takes(s.items[0]) {
			it, usage := s.items[0], l.usage()
			if usage > 0 && usage+it.bytes > l.high {
				break
			}
			s.items = s.items[1:]
			l.stashed--
			l.stats.parked.Add(-1)
			l.admit(it)
		}
	}
}

// park puts a message away that waited for its delivery, without its payload.
func (l *ledger) park(it *item) {
	l.uncount(it)
	l.addParked(it)
}

func (l *ledger) addParked(it *item) {
	it.place = parked
	it.Payload, it.Headers = nil, nil
	a := l.account(it.Namespace)
	a.parked = append(a.parked, it)
	l.stats.parked.Add(1)
}

// unpark admits what is parked and fits into its namespace's share by now, and its queue takes.
func (l *ledger) unpark() {
	if l.stats.parked.Load() == 0 {
		return
	}
	for namespace, a := range l.accounts {
		// One after the other: each takes of the room that is left for the next.
		for i := 0; i < len(a.parked); i++ {
			it := a.parked[i]
			if !l.takes(it) || !l.fits(it, a) {
				continue
			}
			a.parked = slices.Delete(a.parked, i, i+1)
			i--
			l.stats.parked.Add(-1)
			l.admit(it)
		}
		l.closeAccount(namespace, a)
	}
}

// pickSuspects takes out the suspects whose turn it is, and says how many at most will be under
// way together. They go on by admit or putBack.
func (l *ledger) pickSuspects() (items []*item, together int) {
	if l.suspects.waiting == 0 {
		return nil, 0
	}
	usage := l.usage()
	return l.suspects.pick(func(it *item) bool {
		if !l.takes(it) || usage > 0 && usage+it.bytes > l.high {
			return false
		}
		usage += it.bytes
		return true
	})
}

// putBack puts a suspect back that must not begin now.
func (l *ledger) putBack(it *item) {
	l.suspects.leave(it)
	l.suspects.add(it)
}

// bytesByNamespace returns the bytes that count, for each namespace.
func (l *ledger) bytesByNamespace() map[string]int64 {
	bytes := make(map[string]int64, len(l.accounts))
	for namespace, a := range l.accounts {
		bytes[namespace] = a.bytes
	}
	return bytes
}

// endWaiting takes out what waits without its payload, suspect, stashed or parked, and matches.
func (l *ledger) endWaiting(match func(*item) bool) []*item {
	ended := l.suspects.remove(match)
	suspects := len(ended)
	ends := func(it *item) bool {
		if match(it) {
			ended = append(ended, it)
			return true
		}
		return false
	}
	for _, s := range l.stashes {
		s.items = slices.DeleteFunc(s.items, ends)
	}
	l.stashed -= len(ended) - suspects
	for namespace, a := range l.accounts {
		a.parked = slices.DeleteFunc(a.parked, ends)
		l.closeAccount(namespace, a)
	}
	l.stats.parked.Add(int64(suspects - len(ended)))
	return ended
}

// endUnread takes out what is unread.
func (l *ledger) endUnread() []*item {
	ended := l.unread
	l.unread = nil
	clear(l.coming)
	return ended
}

// leave takes a message out: settled, lost, or abandoned. For a message that has left already it
// does nothing.
func (l *ledger) leave(ref driver.Ref) {
	it, ok := l.items[ref]
	if !ok {
		return
	}
	delete(l.items, ref)
	l.stats.inFlight.Add(-1)
	l.suspects.leave(it)
	l.uncount(it)
}
