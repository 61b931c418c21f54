package node

import (
	"context"
	"log/slog"
	"time"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/internal/grace"
	"github.com/fairclaim/fairclaim/watermark"
)

// loop is one run of a node. All of it belongs to the goroutine that runs it; only the
// dispatcher and the counters are shared with deliveries, and calls that settle and prune are made beside it. What it knows of the messages in
// flight stands in ledger, when it claims in pace, what it does while the database fails in
// backoff; the steps that work on them are in files of their own, and their order in run.
type loop struct {
	db     driver.DB
	config Config
	stats  *counters
	drain  <-chan struct{} // closed: come to an orderly end
	log    *slog.Logger
	clock  func() int64 // monotonic nanoseconds, from 1

	live        bool                  // a live node, that goes on: Run, not Once
	outbox      driver.OutboxSettings // read again now and then
	process     string                // unlike that of others, of the same name too
	nameShared  bool                  // another process uses the node's name, and the log says so
	shards      []int32
	shardsGiven bool  // the outbox gives the node its shards, and may take them
	seenToken   int64 // the largest claim token so far

	ledger  *ledger
	pace    pace
	backoff backoff
	duties  duties

	control      *watermark.Controller
	pausedAt     int64 // clock time of the last pause
	dispatch     *dispatcher
	defaultQueue *queue            // of Config.Sink
	taskQueues   map[string]*queue // of Config.Routes
	results      []*item           // delivered, and to be settled

	sideBySide  bool                // calls can be made side by side
	settling    settling            // the round of settles that is under way; nil: none is
	cutSettling context.CancelFunc  // breaks its call off
	answers     chan []settleAnswer // of that round, once it is over
	settlesFail bool                // the last settle failed

	holds          holds
	surveyor       *surveyor // nil: this node does not survey the outbox
	notices        notices
	unowned        unowned
	auditTold      time.Time // when the last audit ended that the log has been told of
	surveyLoggedAt int64     // clock time when the log was last told that surveys fail; 0: never
	holdsLoggedAt  int64     // and that events of holds cannot be read

	seen      seen // what the observer is told of the database
	failures  failureReport
	crowdedAt int64 // clock time when the log was last told of a crowd; 0: never

	pruneBeside bool               // it can be made beside the other calls
	cutPruning  context.CancelFunc // breaks off the prune that is under way; nil: none is
	prunes      chan prune         // that prune, once it is over
	prunedSoFar int64              // messages
	madeUp      int64              // of those settled so far: as many were pruned since, or none were left
	pruneMore   bool               // the last prune left some that can go

	draining   bool
	drainUntil int64 // clock time when deliveries are cut short
	ending     error // why it ends, if not by Drain
}

// patient is a context for a call that changes who owns messages: where ctx ends under
// way, the call has a little time left to return and say what it did. Cut off, a claim would
// leave messages to their leases that nobody works on.
func patient(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	late, stop := grace.Context(ctx, graceTime)
	call, cancel := context.WithTimeout(late, timeout)
	return call, func() {
		cancel()
		stop()
	}
}

// patience is how long a call may take: if one call hangs, and then another, there must still
// be time to extend leases.
func (l *loop) patience() time.Duration {
	return min(l.config.CallTimeout, max(l.outbox.Lease/4, time.Second))
}

// worked notes how a call of the database ended, and reports whether it worked. A Once ends
// by an error. What fails because ctx has ended says nothing of the database.
func (l *loop) worked(ctx context.Context, err error) bool {
	if err == nil {
		if l.backoff.worked() {
			l.log.Info("the database answers again")
		}
		return true
	}
	if ctx.Err() == nil {
		wait := l.backoff.failed(l.clock(), l.outbox.Lease, err)
		l.log.Warn("the database failed a call", "error", err, "retry_in", wait.Round(time.Millisecond))
	}
	if !l.live && l.ending == nil && endsOnce(err) {
		l.ending = err
	}
	return false
}

// mayCall reports whether claims, settles and reads need not wait for the database.
func (l *loop) mayCall() bool { return l.backoff.mayCall(l.clock()) }

// toSettle has a message settled that was not delivered, for the reason that err says.
func (l *loop) toSettle(it *item, err error) {
	it.outcome = judge(err)
	l.results = append(l.results, it)
}

// beginDrain ends claiming, and gives back what waits without its payload.
func (l *loop) beginDrain() {
	if l.draining {
		return
	}
	l.draining = true
	finish, _ := drainTimes(l.config.DrainTimeout)
	l.drainUntil = l.clock() + int64(finish)
	l.duties.heartbeat.soon()
	l.say("draining", "in_flight", l.ledger.inFlight())
	l.endWaiting(errStopping, func(*item) bool { return true })
}

// endWaiting releases what waits without its payload and matches.
func (l *loop) endWaiting(why error, match func(*item) bool) {
	for _, it := range l.ledger.endWaiting(match) {
		l.toSettle(it, Undelivered(why))
	}
}

// say logs the course of things: of a live node as information, of one that cron starts
// each minute only where it is asked for.
func (l *loop) say(text string, args ...any) {
	level := slog.LevelInfo
	if !l.live {
		level = slog.LevelDebug
	}
	l.log.Log(context.Background(), level, text, args...)
}
