package node

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fairclaim/fairclaim/driver"
)

// duties are the clock times at which the loop's regular work is due next; 0 is now.
type duties struct {
	settings, extend, rescue, heartbeat, prune int64
}

func (d *duties) next() int64 { return min(d.settings, d.extend, d.rescue, d.heartbeat, d.prune) }

// never is a clock time that does not come.
const never = int64(1) << 62

// attend does the regular work that is due, also while claiming is paused or draining.
func (l *loop) attend(ctx context.Context) {
	l.due(ctx, &l.duties.settings, l.config.HeartbeatEvery, func(ctx context.Context) error {
		outbox, err := driver.Settings(ctx, l.db)
		if err != nil {
			return err
		}
		if outbox.Lease != l.outbox.Lease {
			l.log.Info("the lease has changed", "lease", outbox.Lease.String())
			l.duties.extend = 0
		}
		l.outbox = outbox
		return nil
	})
	if !l.due(ctx, &l.duties.extend, l.outbox.Lease/4, l.extend) {
		// Soon again, once the settles have had their turn.
		l.duties.extend = max(l.clock(), l.awayAt) + int64(min(l.outbox.Lease/16, time.Second))
	}
	l.due(ctx, &l.duties.rescue, l.rescueEvery(), func(ctx context.Context) error {
		pending, failed, err := driver.Rescue(ctx, l.db, chunk)
		if pending+failed > 0 {
			l.log.Warn("leases had run out", "pending_again", pending, "failed", failed)
		}
		if pending+failed == chunk { // there are more
			l.duties.rescue = l.clock() + int64(l.config.Tick)
		}
		return err
	})
	l.report()
	l.due(ctx, &l.duties.heartbeat, l.config.HeartbeatEvery, l.beat)
	l.due(ctx, &l.duties.prune, l.config.PruneEvery, l.prune)
}

// chunk is how many rows one call of a duty works on at most.
const chunk = 1000

// holding says why the node does not claim; empty while it does.
func (l *loop) holding() string {
	switch {
	case l.draining:
		return "draining"
	case l.control.Paused():
		return l.control.Reason().String()
	case l.room() <= 0:
		return "queues full"
	default:
		return ""
	}
}

// due does a duty if it is time for it; with a negative every, never. Its next time is set
// before it is done, so that it can set another. A duty that could be done does not end the
// growth of the pauses: it may have had nothing to ask the database for. It reports false
// where the duty failed.
func (l *loop) due(ctx context.Context, at *int64, every time.Duration, do func(context.Context) error) bool {
	if every < 0 {
		*at = never
		return true
	}
	now := l.clock()
	if now < *at || now < l.awayAt {
		*at = max(*at, l.awayAt)
		return true
	}
	*at = now + int64(jitter(every))
	call, cancel := context.WithTimeout(ctx, l.patience())
	defer cancel()
	err := do(call)
	switch {
	case err == nil:
	case !away(err):
		// The database is there and refuses this one: no reason to stop the others.
		if told, ok := l.refusals[at]; !ok || now-told >= int64(reportEvery) {
			l.refusals[at] = now
			l.log.Warn("a regular duty failed", "error", err)
		}
	default:
		l.failed(ctx, err)
		l.endOnce(err)
	}
	return err == nil
}

// patience is how long a call may take: where one hangs, and the next, there must be time
// left to extend leases.
func (l *loop) patience() time.Duration {
	return min(l.config.CallTimeout, max(l.outbox.Lease/4, time.Second))
}

func (l *loop) rescueEvery() time.Duration {
	return cmp.Or(l.config.RescueEvery, min(5*time.Second, max(l.outbox.Lease/4, 250*time.Millisecond)))
}

// extend lets the leases of what is in flight run on, but for deliveries that have
// outlived their time-out: their sink does not listen, and another node may try. What has
// been delivered stays ours until it can be settled. What is no longer ours is not worth
// delivering.
func (l *loop) extend(ctx context.Context) error {
	now := l.clock()
	delivered := make(map[*item]bool, len(l.results))
	for _, it := range l.results {
		delivered[it] = true
	}
	var refs []driver.Ref
	for ref, it := range l.book {
		started := it.started.Load()
		if !it.lost.Load() && (started == 0 || now-started < int64(l.config.DeliveryTimeout) || delivered[it]) {
			refs = append(refs, ref)
		}
	}
	lost, err := driver.Extend(ctx, l.db, refs, 0)
	if err != nil {
		return err
	}
	for _, ref := range lost {
		l.book[ref].lose()
	}
	for _, ref := range refs {
		if it := l.book[ref]; !it.lost.Load() {
			it.leased.Store(now + int64(l.outbox.Lease))
		}
	}
	l.endWaiting(errLost, func(it *item) bool { return it.lost.Load() })
	return nil
}

// failed notes an error of the database, if there is one: the next call waits, longer
// each time, but not so long that leases run out meanwhile.
func (l *loop) failed(ctx context.Context, err error) bool {
	if err == nil {
		if l.backoff > 0 {
			l.log.Info("the database answers again")
		}
		l.backoff = 0
		return false
	}
	if ctx.Err() != nil {
		return true
	}
	l.backoff = min(max(2*l.backoff, 100*time.Millisecond), l.outbox.Lease/4, 10*time.Second)
	pause := jitter(l.backoff)
	l.retryAt = l.clock() + int64(pause)
	if away(err) {
		l.awayAt = l.retryAt
	}
	l.log.Warn("the database failed a call", "error", err, "retry_in", pause.Round(time.Millisecond))
	return true
}

// away reports whether an error says that the database cannot be worked with at all: no
// answer in time, no connection, a server that stops or starts, or one that is read only.
// Otherwise it has refused one call.
func away(err error) bool {
	var answer *pgconn.PgError
	if !errors.As(err, &answer) {
		return true
	}
	var connect *pgconn.ConnectError
	return errors.As(err, &connect) || answer.Code == "25006" || strings.HasPrefix(answer.Code, "57P") || strings.HasPrefix(answer.Code, "08")
}

// endOnce ends a run that is no live node by an error, but for those that PostgreSQL asks
// to try again after: a deadlock, a serialization failure, a lock not granted in time.
func (l *loop) endOnce(err error) {
	var answer *pgconn.PgError
	if errors.As(err, &answer) && slices.Contains([]string{"40P01", "40001", "55P03"}, answer.Code) {
		return
	}
	if !l.live && l.ending == nil {
		l.ending = err
	}
}

// reportEvery is how often the log tells of failed deliveries, at most.
const reportEvery = 10 * time.Second

// trouble is what the log has not told yet: failed deliveries since the last report.
type trouble struct {
	retried, failed int
	last            *item
	told            int64 // clock time of the last report
}

// report tells the log of failed deliveries: at once of the first, then summed up, so
// that neither silence nor a flood hides a sink that is down.
func (l *loop) report() {
	now := l.clock()
	if l.trouble.last == nil || l.trouble.told > 0 && now-l.trouble.told < int64(reportEvery) && !l.draining {
		return
	}
	it := l.trouble.last
	l.log.Warn("deliveries failed", "to_be_retried", l.trouble.retried, "failed", l.trouble.failed,
		"last_namespace", it.Namespace, "last_dispatch_key", it.DispatchKey, "last_attempt", it.Attempt,
		"last_error", driver.CleanReason(it.reason))
	l.trouble = trouble{told: now}
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

// jitter spreads a duration by a fifth to both sides.
func jitter(d time.Duration) time.Duration {
	return d - d/5 + rand.N(2*d/5+1)
}
