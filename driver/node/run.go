package node

import (
	"context"
	"time"
)

// run is the loop: the order of its steps, again and again until it ends. No step waits for a
// sink (INV-11), and each that asks the database gives up after l.patience.
//
//	take     what has been delivered, from the dispatcher, and what was settled and pruned
//	attend   the regular duties that are due: leases are extended also while settles fail, and
//	         a claim finds what was just rescued
//	settle   what has been delivered, beside the steps that follow
//	read     payloads of what is claimed and has room by now, and hand them on
//	claim    if it is time for it and nothing speaks against it
//	wait     until there is something to do
func (l *loop) run(ctx context.Context) error {
	l.say("sweeping", "shards", len(l.shards), "lease", l.outbox.Lease.String())
	for ctx.Err() == nil {
		select {
		case <-l.drain:
			l.beginDrain()
		default:
		}
		l.takeDelivered()
		l.takeSettled(ctx)
		l.takePruned(ctx)
		l.attend(ctx)
		l.settle(ctx)
		l.readOn(ctx)
		if l.draining {
			if l.ledger.inFlight() == 0 || l.clock() >= l.drainUntil {
				break
			}
		} else if l.mayClaim() {
			l.claim(ctx)
		}
		if !l.draining && l.over() {
			l.beginDrain()
			continue
		}
		l.wait(ctx)
	}
	return l.end(ctx)
}

// over reports whether the loop is to end: for an error, or because a Once has done its work.
func (l *loop) over() bool {
	done, err := l.pace.over(l.ledger.inFlight())
	if done && l.ending == nil {
		l.ending = err
	}
	return done || l.ending != nil
}

// wait sleeps until there is something to do.
func (l *loop) wait(ctx context.Context) {
	l.turned(false)
	if l.dispatch.doubtful() {
		l.duties.observe.soon()
	}
	now := l.clock()
	until := l.duties.next()
	drain := l.drain
	if l.draining {
		until = min(until, l.drainUntil)
		drain = nil
	} else if !l.mustSettle() {
		until = min(until, max(l.pace.nextAt, l.backoff.callsAt))
		if l.backoff.mayCall(now) && !l.control.Paused() && l.pace.early(l.room(), l.ledger.inFlight()) {
			return
		}
	}
	if len(l.results) > 0 && l.settling == nil || len(l.ledger.unread) > 0 { // the database failed a call for them
		until = min(until, l.backoff.callsAt)
	}
	if until <= now {
		return
	}
	timer := time.NewTimer(time.Duration(until - now))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-drain:
	case <-l.dispatch.wake:
	case answers := <-l.answers:
		l.settled(ctx, answers)
	case p := <-l.prunes:
		l.pruned(ctx, p)
	case <-timer.C:
	}
}
