package node

import (
	"context"
	"slices"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

// An Observer is told what a node does: for metrics. All calls come from the goroutine of
// [Node.Run] or [Node.Once], one after the other, and the loop waits for them: so an observer
// notes what it is told and returns. A message that it is given is the node's own: it
// reads the message before it returns, and changes nothing.
type Observer interface {
	// Message says what has become of a message. What was claimed becomes Done, Retried, Failed,
	// Released or Lost, once, unless the process ends before.
	Message(m *driver.Delivery, became Event)

	// Delivered says that a sink has returned, or was given up. The message is settled later.
	Delivered(m *driver.Delivery, d Delivered)

	// Called says that a call of the database has ended.
	Called(c Call)

	// Turned says that the loop has come round, and how the node is.
	Turned(s State)

	// Surveyed says how the outbox as a whole is, after each survey; nil: this node does not survey any
	// more. Whoever is told keeps s, and changes nothing in it.
	Surveyed(s *Survey)
}

// Event is something that becomes of a message. Stats count the same events.
type Event int

const (
	Claimed  Event = iota // a claim has brought it
	Parked                // it waits without its payload, since its namespace holds too many bytes; may happen more than once
	Done                  // delivered and settled
	Retried               // a failed attempt was given back, to be retried
	Failed                // failed for good, also because its attempts were used up
	Released              // given back untried
	Lost                  // the claim was no longer the node's
)

// Events are all events.
func Events() []Event { return []Event{Claimed, Parked, Done, Retried, Failed, Released, Lost} }

// String is the event in one word.
func (e Event) String() string {
	return [...]string{"claimed", "parked", "done", "retried", "failed", "released", "lost"}[e]
}

// Delivered is a delivery that has ended.
type Delivered struct {
	Waited time.Duration // from the end of the claim to the begin of the delivery
	Took   time.Duration // until the sink returned, or was given up
	Said   Event         // what the sink said: Done, Retried, Failed or Released; a retry may be the last attempt, and the message then has failed
}

// Call is a call of the database that has ended. Calls that were broken off because the node was
// told to end are not told.
type Call struct {
	Name    string // the function of the outbox, one of Calls
	Took    time.Duration
	Outcome driver.Outcome // of a claim that worked
	Err     error          // nil: it worked
}

// Calls are the names of all calls that an [Observer] may be told of, but for [Duties].
func Calls() []string {
	return []string{"claim", "payloads", "begin_delivery", "complete", "retry", "fail", "fail_destination", "release"}
}

// Duties are the names of the calls that are the regular work of a node.
func Duties() []string {
	return append(regular(), "survey", "check", "hold_events")
}

// regular are the duties of the loop itself; the others have a goroutine of their own.
func regular() []string {
	return []string{"settings", "extend", "rescue", "heartbeat", "prune", "claim_obstacles", "observe", "enqueue_batch"}
}

// Why a node does not claim, beside the watermarks' reasons ([watermark.Reason]).
const (
	PausedDraining   = "draining"    // it was told to end, and finishes what it has in flight
	PausedQueuesFull = "queues full" // every queue is full
)

// State is how a node is when its loop has come round.
type State struct {
	Stats // counts since the start; InFlight, Parked, UsedBytes and Stuck are as of now

	Suspects int // of those in flight, messages that wait as suspects
	Stashed  int // of those in flight, messages that wait for room in a queue; Parked counts these too
	Unread   int // of those in flight, messages whose payload is to be read

	Budget, High, Low int64 // payload bytes: Config.Budget, and the watermarks

	Paused     string        // why it does not claim, as the outbox is told; empty: it claims
	Shards     int           // that it claims from; 0: it is on standby, or draining
	Heartbeat  time.Time     // when the last one worked; zero: none has
	Failing    string        // the call of the database that failed last, and has not worked since; empty: none
	Ended      bool          // the loop has ended: this is the last State
	StuckAfter time.Duration // where no Called and no Turned comes for so long, the loop is stuck
}

// nobody is the Observer of a node that has none.
type nobody struct{}

func (nobody) Message(*driver.Delivery, Event)       {}
func (nobody) Delivered(*driver.Delivery, Delivered) {}
func (nobody) Called(Call)                           {}
func (nobody) Turned(State)                          {}
func (nobody) Surveyed(*Survey)                      {}

// seen is what the loop keeps for its observer of how the database answers.
type seen struct {
	beatAt     time.Time // when the last heartbeat worked
	beatFailed bool      // the last heartbeat failed
	failed     string    // the call that failed last, and none has worked since; empty: none
}

// entered tells the observer of a message that was claimed, by a call that returned at this clock
// time, and is in the ledger.
func (l *loop) entered(it *item, at int64) {
	it.claimedAt = at
	l.config.Observer.Message(&it.Delivery, Claimed)
	if it.place == parked {
		l.config.Observer.Message(&it.Delivery, Parked)
	}
}

// delivered tells the observer of a delivery that has ended, if it had begun.
func (l *loop) delivered(it *item) {
	if started := it.started.Load(); started > 0 {
		l.config.Observer.Delivered(&it.Delivery, Delivered{
			Waited: time.Duration(started - it.claimedAt), Took: time.Duration(it.ended - started), Said: it.verdict.event(),
		})
	}
}

// event is what a delivery with this verdict has come to.
func (v verdict) event() Event {
	switch v {
	case toRetry, toFailDestination:
		return Retried
	case toFail:
		return Failed
	case toRelease:
		return Released
	default:
		return Done
	}
}

// call is the name of the call that settles messages with this verdict.
func (v verdict) call() string {
	return [...]string{toComplete: "complete", toRetry: "retry", toFail: "fail", toRelease: "release", toFailDestination: "fail_destination"}[v]
}

// called tells the observer of a call. What fails because ctx has ended says nothing of the database.
func (l *loop) called(ctx context.Context, c Call) {
	if c.Err != nil && ctx.Err() != nil {
		return
	}
	l.seen.failed = ""
	if c.Err != nil {
		l.seen.failed = c.Name
	}
	l.config.Observer.Called(c)
}

// since is how long ago a clock time was.
func (l *loop) since(before int64) time.Duration { return time.Duration(l.clock() - before) }

// observeDuty tells the observer of a duty that was done, or failed. That a duty works says little: it
// may have had nothing to ask for. A heartbeat always asks; where the node makes no claims, a
// heartbeat that works makes up for a call that failed before.
func (l *loop) observeDuty(ctx context.Context, d *duty, took time.Duration, err error) {
	if err != nil && ctx.Err() != nil {
		return
	}
	if d == &l.duties.heartbeat {
		l.seen.beatFailed = err != nil
		if err == nil && (len(l.shards) == 0 || l.whyNotClaiming() != "") {
			l.seen.failed = ""
		}
	}
	l.config.Observer.Called(Call{Name: l.duties.name(d), Took: took, Err: err})
}

// name is the name of one of the duties.
func (d *duties) name(one *duty) string { return regular()[slices.Index(d.all(), one)] }

// turned tells the observer how the node is.
func (l *loop) turned(ended bool) {
	if _, ok := l.config.Observer.(nobody); ok {
		return
	}
	params := l.control.Params()
	s := State{
		Stats:    l.stats.read(l.ledger.usage()),
		Suspects: l.ledger.suspects.waiting, Stashed: l.ledger.stashed, Unread: len(l.ledger.unread),
		Budget: l.config.Budget, High: params.HighBytes, Low: params.LowBytes,
		Paused: l.whyNotClaiming(), Shards: len(l.shards), Heartbeat: l.seen.beatAt,
		Failing: l.seen.failed, Ended: ended, StuckAfter: l.stuckAfter(),
	}
	if l.seen.beatFailed {
		s.Failing = "heartbeat"
	}
	if l.draining {
		s.Shards = 0
	}
	l.config.Observer.Turned(s)
}

// stuckAfter is twice the longest step of a loop that works: one call of the database, or a wait. A
// wait ends with the next heartbeat, or with the pause after a failed call (see backoff).
func (l *loop) stuckAfter() time.Duration {
	return 2 * max(l.patience()+graceTime, jitterMost(l.config.HeartbeatEvery), jitterMost(min(l.outbox.Lease/4, maxPause)))
}

// jitterMost is the most that jitter makes of a duration.
func jitterMost(d time.Duration) time.Duration { return d + d/5 }
