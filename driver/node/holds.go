package node

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fairclaim/fairclaim/driver"
)

// A node reports failures that are their destinations' doing, and asks the outbox how destinations are: soon after
// such failures (see gates), and now and then, of all that it has waiting, since other nodes report, too. What is held
// is given back uncharged.

// holds is what the loop keeps for that. An outbox of the version before cannot;
// and a role whose rights are of that time may not. Then what fails by its destination's doing
// is retried as anything else, and the node works on.
type holds struct {
	askAllAt int64 // clock time when the outbox is asked about all that waits
	offUntil int64 // clock time until when nothing of it is tried; 0: it works
	told     bool  // the log knows that it does not
}

// holdsAgainAfter is how long an outbox that does not hold destinations is not asked again.
const holdsAgainAfter = time.Minute

// cannotCall reports whether a call failed because the outbox does not have the function, or does not let this role
// call it.
func cannotCall(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && (refused.Code == noFunction || refused.Code == noRight)
}

// cannotHold reports whether a call failed for that reason, and then makes none of them for a while.
func (l *loop) cannotHold(err error) bool {
	if !cannotCall(err) {
		return false
	}
	l.holds.offUntil = l.clock() + int64(holdsAgainAfter)
	l.dispatch.gate(false)
	if !l.holds.told {
		l.holds.told = true
		l.log.Warn("cannot report destinations in trouble, nor learn which are held: what fails by them is retried as anything else; "+
			"migrate the outbox, and give this role its rights again with outbox.grant_worker", "error", err)
	}
	return true
}

// markReached notes, of attempts that failed by their destinations' doing, who got through there after them. A probe
// counts whoever did.
func markReached(results []*item) {
	latest := map[driver.Destination]int64{} // when the last delivery to it that succeeded ended
	for _, it := range results {
		if it.verdict == toComplete || it.verdict == settledBySink {
			for _, d := range []driver.Destination{it.Destination(), ofAll(it.Destination())} {
				latest[d] = max(latest[d], it.ended)
			}
		}
	}
	for _, it := range results {
		switch d := it.Destination(); {
		case it.verdict != toFailDestination || it.Probe:
		case latest[d] > it.ended:
			it.reached = driver.ReachedByNamespace
		case latest[ofAll(d)] > it.ended && it.reached == driver.ReachedByNone:
			it.reached = driver.ReachedByOthers
		}
	}
}

func destinationFailuresOf(items []*item) []driver.DestinationFailure {
	failures := make([]driver.DestinationFailure, len(items))
	for i, it := range items {
		failures[i] = driver.DestinationFailure{Ref: it.Ref(), Kind: it.trouble, Reason: it.reason, Hold: it.delay, Shared: it.shared, Reached: it.reached}
	}
	return failures
}

// maxAsked is how many destinations the outbox is asked about at a time; the rest comes next time.
const maxAsked = 1000

// errHeld is why a message is given back.
var errHeld = errors.New("its destination is held")

// queueOf is where the messages of a task queue are delivered.
func (l *loop) queueOf(taskQueue string) *queue {
	if q, ok := l.taskQueues[taskQueue]; ok {
		return q
	}
	return l.defaultQueue
}

// observe asks the outbox how destinations are, and gives back what is held.
func (l *loop) observe(ctx context.Context) error {
	now := l.clock()
	if now < l.holds.offUntil {
		return nil
	}
	if l.holds.offUntil > 0 {
		l.holds.offUntil = 0
		l.dispatch.gate(true)
	}
	asked := l.dispatch.doubts(maxAsked)
	if now >= l.holds.askAllAt {
		l.holds.askAllAt = now + int64(l.config.HeartbeatEvery)
		asked = l.waitingFor(asked)
	}
	if len(asked) == 0 {
		return nil
	}
	asked = withRoutesOfAll(asked)
	answers, err := driver.Observe(ctx, l.db, asked)
	if l.cannotHold(err) {
		return nil
	}
	if err != nil {
		return err
	}
	of, health := map[driver.Destination]*queue{}, map[driver.Destination]driver.Health{}
	held := map[driver.Destination]driver.DestinationHealth{}
	for i, d := range asked {
		of[d], health[d] = l.queueOf(d.TaskQueue), answers[i].Health
		switch answers[i].Health {
		case driver.Held:
			held[d] = answers[i]
		case driver.Unknown: // another session reads the reports at this moment
			l.duties.observe.at = min(l.duties.observe.at, now+int64(jitter(min(l.config.Tick, 50*time.Millisecond))))
		}
	}
	waiting, news := l.dispatch.learn(of, health)
	l.giveBack(waiting, held, news)
	return nil
}

// withRoutesOfAll adds the routes of all that destinations are part of: what the outbox says of a destination may be
// what it says of that.
func withRoutesOfAll(asked []driver.Destination) []driver.Destination {
	known := map[driver.Destination]bool{}
	for _, d := range asked {
		known[d] = true
	}
	for _, d := range asked {
		if d = ofAll(d); !known[d] {
			known[d] = true
			asked = append(asked, d)
		}
	}
	return asked
}

// waitingFor adds the destinations of what has not begun, up to maxAsked.
func (l *loop) waitingFor(asked []driver.Destination) []driver.Destination {
	known := make(map[driver.Destination]bool, len(asked))
	for _, d := range asked {
		known[d] = true
	}
	for _, it := range l.ledger.items {
		if len(asked) >= maxAsked {
			break
		}
		if d := it.Destination(); it.started.Load() == 0 && !known[d] {
			known[d] = true
			asked = append(asked, d)
		}
	}
	return asked
}

// giveBack releases what waits for destinations that are held: what their queues gave back, and what waits without its
// payload. The log is told once, whatever number of destinations it is.
func (l *loop) giveBack(waiting []*item, held map[driver.Destination]driver.DestinationHealth, news int) {
	if len(held) == 0 {
		return
	}
	for _, it := range waiting {
		l.toSettle(it, Undelivered(errHeld))
	}
	isHeld := func(d driver.Destination) bool { _, is := held[d]; return is }
	unread := l.ledger.endWaiting(func(it *item) bool {
		return !it.Probe && (isHeld(it.Destination()) || isHeld(ofAll(it.Destination())))
	})
	for _, it := range unread {
		l.toSettle(it, Undelivered(errHeld))
	}
	if news+len(waiting)+len(unread) == 0 {
		return
	}
	d := oneOf(held)
	h, gaveBack := held[d], []any{"destinations", len(held), "of_them_new", news, "messages", len(waiting) + len(unread)}
	until := h.Until.UTC().Format(time.RFC3339)
	if h.Until.Year() == 9999 {
		until = "lifted"
	}
	if d.Namespace == "" {
		l.log.Warn("THE ROUTE OF ALL NAMESPACES IS HELD: nothing of this task queue is delivered, for no tenant; gave back what waited for it",
			append(gaveBack, "task_queue", d.TaskQueue, "until", until, "reason", h.Reason)...)
		return
	}
	l.log.Info("destinations are held: gave back what waited for them",
		append(gaveBack, "one_of_them", d.TaskQueue, "of_namespace", d.Namespace, "until", until, "reason", h.Reason)...)
}

// oneOf is the destination to name: a route of all where one is held. Then the outbox gives the same reason for the
// routes of namespaces that are part of it, and they may be well.
func oneOf(held map[driver.Destination]driver.DestinationHealth) (one driver.Destination) {
	for d := range held {
		if one = d; d.Namespace == "" {
			break
		}
	}
	return one
}
