package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairclaim/fairclaim/budget"
	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/watermark"
)

// Node is one node of an outbox: it claims, hands on to sinks, and settles. Make one with
// [New], and call [Node.Run] or [Node.Once], once.
type Node struct {
	db     driver.DB
	config Config
	stats  counters
	budget budget.Inflight

	drain     chan struct{}
	drainOnce sync.Once
	used      atomic.Bool
}

// New makes a node. db is best a pool of two connections or more; it stays the
// caller's to close.
func New(db driver.DB, config Config) (*Node, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	return &Node{db: db, config: config, drain: make(chan struct{})}, nil
}

// Drain makes Run or Once come to an orderly end: no new claims; what is in flight is
// finished, until Config.DrainTimeout; the rest is released. It returns at once and may
// be called from anywhere, more than once.
func (n *Node) Drain() { n.drainOnce.Do(func() { close(n.drain) }) }

// Run sweeps until it is told to end: by [Node.Drain], in good order, and it returns
// nil; or by ctx, at once: deliveries are cancelled, all is released, and it returns the
// cause of ctx's end. It also ends when a sink says [ErrSinkClosed], with that error.
// Errors of the database end it only before the first claim; later ones are logged and
// tried again, with growing pauses.
//
// No goroutine outlives Run, unless a sink ignores the end of its context for more than
// five seconds; then Run returns an error that says so. No transaction is open while a
// sink works.
func (n *Node) Run(ctx context.Context) error { return n.sweep(ctx, true, 0) }

// Once sweeps until a claim that was made with nothing in flight comes back empty, or,
// with maxSweeps above 0, for that many claims; then it finishes what is in flight. (A claim
// that comes past config.max_visits namespaces, all paused or at their ceiling, is empty
// too; the next Once goes on behind them.) It is no live node: it sends no heartbeats.
// Otherwise as [Node.Run], but an error of the database ends it, and so does a sink that
// hands back all that a claim brought as [Undelivered]: the next claim would bring it again.
func (n *Node) Once(ctx context.Context, maxSweeps int) error {
	n.config.HeartbeatEvery = -1
	return n.sweep(ctx, false, maxSweeps)
}

// Stats are counts since the start.
type Stats struct {
	Sweeps    int64 // claims made
	Claimed   int64 // messages claimed
	Done      int64 // delivered and settled
	Retried   int64 // failed attempts given back, to be retried
	Failed    int64 // failed for good, also because their attempts were used up
	Released  int64 // given back untried
	Lost      int64 // claims that were no longer ours
	Pauses    int64 // times that claiming paused
	InFlight  int64 // messages claimed and not settled, now
	Parked    int64 // those of them whose payload is not held, now
	UsedBytes int64 // payload bytes of the others, now
	Overdue   int64 // deliveries whose sink had not returned 5 s after their time-out
	Stuck     int64 // of those, sinks that have not returned until now
}

type counters struct {
	sweeps, claimed, done, retried, failed, released, lost, pauses, inFlight, parked, overdue, stuck atomic.Int64
}

// Stats returns the counts so far. It may be called at any time, from any goroutine.
func (n *Node) Stats() Stats {
	c := &n.stats
	return Stats{
		Sweeps: c.sweeps.Load(), Claimed: c.claimed.Load(), Done: c.done.Load(), Retried: c.retried.Load(),
		Failed: c.failed.Load(), Released: c.released.Load(), Lost: c.lost.Load(), Pauses: c.pauses.Load(),
		InFlight: c.inFlight.Load(), Parked: c.parked.Load(), UsedBytes: n.budget.Usage(),
		Overdue: c.overdue.Load(), Stuck: c.stuck.Load(),
	}
}

// loop is one run of a Node. Everything in it belongs to the goroutine that runs it;
// only the dispatcher is shared with deliveries.
type loop struct {
	*Node
	log       *slog.Logger
	live      bool // a live node, that goes on: Run, not Once
	most      int  // claims, 0: any number
	auto      bool // the outbox gives it its shards, and may take them
	shards    []int32
	seenToken int64                 // the largest claim token so far
	process   string                // unlike that of others, of the same name too
	twin      bool                  // another process uses the name, and the log says so
	outbox    driver.OutboxSettings // read again now and then
	clock     func() int64
	control   *watermark.Controller
	dispatch  *dispatcher
	sink      *queue
	routes    map[string]*queue

	book     map[driver.Ref]*item // what is claimed and not settled
	held     map[string]*holding
	suspects suspects
	stashed  int     // messages in the queues' stashes
	unread   []*item // claimed, counted in the budget, their payloads still to be read
	results  []*item // delivered, and to be settled

	sweepAt  int64 // clock time of the next sweep
	pausedAt int64 // clock time of the last pause
	again    bool  // the last claim came back full: sweep as soon as there is room
	some     bool  // it brought some: sweep as soon as they are settled, a ceiling may have held more back
	trouble  trouble
	emptied  bool  // the last claim was empty, and nothing was in flight
	progress bool  // since the last claim with nothing in flight, a message has been tried
	refused  error // since then, a sink has handed a message back
	retryAt  int64 // the database failed: no claim or settle before this
	awayAt   int64 // it could not be reached: no call at all before this
	backoff  time.Duration
	duties   duties
	pruned   int64            // messages deleted so far
	more     bool             // the last prune left some that can go
	refusals map[*int64]int64 // when the log was told last that the database refuses a duty
	draining bool
	drainAt  int64 // clock time when draining ends
	ending   error // why it ends, if not by Drain
}

func (n *Node) sweep(ctx context.Context, live bool, maxSweeps int) error {
	if n.used.Swap(true) {
		return errors.New("node: it has run already, make another")
	}
	l, err := n.newLoop(ctx, live, maxSweeps)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	l.say("sweeping", "shards", len(l.shards), "lease", l.outbox.Lease.String())
	for ctx.Err() == nil {
		select {
		case <-l.drain:
			l.beginDrain()
		default:
		}
		l.collect()
		l.attend(ctx) // before all else: leases run on also while settles fail, and a claim finds what was rescued
		l.flush(ctx)
		l.readOn(ctx)
		if l.draining {
			if len(l.book) == 0 || l.clock() >= l.drainAt {
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

// newLoop asks the database for what the loop must know, so that what is wrong with the
// connection, the rights or the schema is found at the start.
func (n *Node) newLoop(ctx context.Context, live bool, maxSweeps int) (*loop, error) {
	c := n.config
	start := time.Now()
	clock := func() int64 { return int64(time.Since(start)) + 1 }
	params, err := watermark.ParamsFromBudget(c.Budget, c.High, c.Low, c.MinPause)
	if err != nil {
		return nil, err
	}
	control, err := watermark.New(params, time.Now)
	if err != nil {
		return nil, err
	}
	ask, cancel := context.WithTimeout(ctx, c.CallTimeout)
	defer cancel()
	if err := driver.CheckSession(ask, n.db); err != nil {
		return nil, err
	}
	outbox, err := driver.Settings(ask, n.db)
	if err != nil {
		return nil, err
	}
	if c.Batch > outbox.MaxBatch {
		return nil, fmt.Errorf("%w: %w", driver.ErrBadArgument, badField("Batch", "is %d: the outbox gives up to %d (max_batch)", c.Batch, outbox.MaxBatch))
	}
	shards := make([]int32, outbox.ShardCount)
	for i := range shards {
		shards[i] = int32(i)
	}
	for _, shard := range c.Shards {
		if shard < 0 || int(shard) >= len(shards) {
			return nil, fmt.Errorf("%w: shard %d: the outbox has shards 0 to %d", driver.ErrBadArgument, shard, len(shards)-1)
		}
	}
	if c.Shards != nil {
		shards = c.Shards
	}
	self := thisProcess()
	l := &loop{
		Node: n, log: c.Logger.With("node", c.Node), live: live, most: maxSweeps,
		auto: live && c.Shards == nil, shards: shards, process: self.String(),
		outbox: outbox, clock: clock, control: control,
		dispatch: newDispatcher(limits{
			slots: c.Slots, share: max(int(float64(c.Slots)*c.Share), 1),
			shareBytes: max(int64(float64(params.LowBytes)*c.Share), 1),
			capacity:   c.Queue, timeout: c.DeliveryTimeout,
		}, clock),
		routes: map[string]*queue{}, book: map[driver.Ref]*item{}, held: map[string]*holding{}, refusals: map[*int64]int64{},
	}
	l.dispatch.overdue, l.dispatch.leftBehind = &n.stats.overdue, &n.stats.stuck
	l.sink = l.dispatch.newQueue(c.Sink)
	for name, sink := range c.Routes {
		l.routes[name] = l.dispatch.newQueue(sink)
	}
	if live {
		l.leaveForTheGone(ask, self)
	}
	if l.auto {
		l.shards = nil
		if err := l.beat(ask); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// mayClaim reports whether it is time for a sweep and nothing speaks against one. It is
// where the watermarks tick.
func (l *loop) mayClaim() bool {
	now := l.clock()
	if now < l.retryAt || now < l.sweepAt && !l.early() {
		return false
	}
	l.sweepAt = now + int64(jitter(l.config.Tick))
	l.relieve()
	switch l.control.Tick(l.budget.Usage(), l.drained()) {
	case watermark.Pause:
		l.pausedAt = now
		l.stats.pauses.Add(1)
		l.log.Info("claiming paused", "reason", l.control.Reason(), "in_flight_bytes", l.budget.Usage())
		l.duties.heartbeat = 0 // tell the others at once
	case watermark.Resume:
		l.log.Info("claiming resumed", "in_flight_bytes", l.budget.Usage())
		l.duties.heartbeat = 0
	}
	return !l.control.Paused() && l.room() > 0 && (len(l.shards) > 0 || !l.live)
}

// early reports whether the next sweep need not wait for its time.
func (l *loop) early() bool {
	return l.again && l.room() >= (min(l.config.Batch, l.config.Queue)+1)/2 || l.some && len(l.book) == 0
}

// room is how many rows a claim may bring: what the emptiest queue takes. Where they
// belong into a fuller one they are refused, and pause claiming.
func (l *loop) room() int {
	room := l.sink.room()
	for _, q := range l.routes {
		room = max(room, q.room())
	}
	return min(room, l.config.Batch, l.outbox.MaxBatch)
}

// drained reports whether what a claim brings has somewhere to go: a queue is at most half
// full, and so is the stash. A queue that stays full holds up what belongs into it alone.
func (l *loop) drained() bool {
	low := (l.config.Queue + 1) / 2
	room := l.sink.room()
	for _, q := range l.routes {
		room = max(room, q.room())
	}
	return room >= low && l.stashed <= l.config.Stash/2
}

func (l *loop) claim(ctx context.Context) {
	left := l.config.Budget - l.budget.Usage()
	if left <= 0 || l.clock() < l.retryAt {
		return
	}
	before := l.clock()
	want := l.room()
	if want <= 0 { // since mayClaim looked, a namespace has come back below its share
		return
	}
	idle := len(l.book) == 0
	call, cancel := patient(ctx, l.patience())
	defer cancel()
	messages, err := driver.Claim(call, l.db, driver.ClaimRequest{Node: l.config.Node, Shards: l.shards, Batch: want, MaxBytes: left, WithoutPayloads: true})
	if l.failed(ctx, err) {
		l.endOnce(err)
		return
	}
	l.stats.sweeps.Add(1)
	l.stats.claimed.Add(int64(len(messages)))
	l.again, l.some = len(messages) == want, len(messages) > 0 || l.some && !idle
	if idle {
		l.emptied, l.progress, l.refused = len(messages) == 0, false, nil
	}
	for i := range messages {
		it := &item{Delivery: messages[i], bytes: messages[i].PayloadBytes, queue: l.sink}
		if q, ok := l.routes[it.TaskQueue]; ok {
			it.queue = q
		}
		it.leased.Store(before + int64(l.outbox.Lease))
		l.book[it.Ref()] = it
		l.seenToken = max(l.seenToken, it.ClaimToken)
		l.stats.inFlight.Add(1)
		switch {
		case it.Suspect > 0:
			l.suspects.add(it)
		case l.crowded(it):
			l.park(it)
		case !it.queue.accepts(it.Namespace):
			l.putAway(it)
		default:
			l.admit(it)
		}
	}
	l.beginSuspects(ctx)
	l.read(ctx)
}

// collect takes over what has been delivered.
func (l *loop) collect() {
	for _, it := range l.dispatch.collect() {
		it.Payload, it.Headers = nil, nil // it was handed on; do not keep them until it is settled
		if it.overdue {
			l.log.Error("a sink does not return: gave its delivery up", "timeout", l.config.DeliveryTimeout.String(),
				"namespace", it.Namespace, "task_queue", it.TaskQueue, "dispatch_key", it.DispatchKey, "attempt", it.Attempt,
				"not_returned", l.stats.stuck.Load())
		}
		if it.closed && l.ending == nil {
			l.ending = it.err
			l.log.Error("a sink is closed: ending", "error", it.err)
		}
		l.results = append(l.results, it)
	}
	if l.ending != nil && !l.draining {
		l.beginDrain()
	}
}

// over reports whether the loop has done what it was asked to do.
func (l *loop) over() bool {
	if l.live {
		return l.ending != nil
	}
	if l.ending == nil && len(l.book) == 0 && !l.progress {
		l.ending = l.refused
	}
	return l.ending != nil || l.emptied || l.most > 0 && l.stats.sweeps.Load() >= int64(l.most)
}

// wait sleeps until there is something to do.
func (l *loop) wait(ctx context.Context) {
	now := l.clock()
	until := l.duties.next()
	if !l.draining {
		until = min(until, max(l.sweepAt, l.retryAt))
		if now >= l.retryAt && !l.control.Paused() && l.early() {
			return
		}
	} else {
		until = min(until, l.drainAt)
	}
	if len(l.results) > 0 || len(l.unread) > 0 { // the database failed them
		until = min(until, l.retryAt)
	}
	if until <= now {
		return
	}
	timer := time.NewTimer(time.Duration(until - now))
	defer timer.Stop()
	drain := l.drain
	if l.draining {
		drain = nil
	}
	select {
	case <-ctx.Done():
	case <-drain:
	case <-l.dispatch.wake:
	case <-timer.C:
	}
}
