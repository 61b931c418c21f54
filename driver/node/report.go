package node

import (
	"log/slog"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

// reportEvery is how often the log tells of failed deliveries, and of a duty that fails, at most.
const reportEvery = 10 * time.Second

// failureReport is what the log has not told yet: failed deliveries since the last report.
type failureReport struct {
	retried, failed int
	givenBack       int // untried: a sink could not begin
	last            *item
	reportedAt      int64 // clock time of the last report; 0: none
}

// write tells the log of failed deliveries: at once of the first, then summed up, so
// that neither silence nor a flood hides a sink that is down. At the end it tells the rest.
func (r *failureReport) write(log *slog.Logger, now int64, atEnd bool) {
	if r.last == nil || r.reportedAt > 0 && now-r.reportedAt < int64(reportEvery) && !atEnd {
		return
	}
	log.Warn("deliveries failed", "to_be_retried", r.retried, "failed", r.failed, "given_back", r.givenBack,
		"last_namespace", r.last.Namespace, "last_dispatch_key", r.last.DispatchKey, "last_attempt", r.last.Attempt,
		"last_error", driver.CleanReason(r.last.reason))
	*r = failureReport{reportedAt: now}
}

// logCrowds tells the log of sinks all of whose slots, the spare ones too, are held by deliveries
// that are slow, while other namespaces wait. It says so at once, and every now and then while it lasts.
func (l *loop) logCrowds() {
	now := l.clock()
	if l.crowdedAt > 0 && now-l.crowdedAt < int64(reportEvery) {
		return
	}
	for _, c := range l.dispatch.crowds() {
		l.crowdedAt = now
		route := "all others"
		for taskQueue, q := range l.taskQueues {
			if q == c.queue {
				route = taskQueue
			}
		}
		l.log.Warn("slow deliveries hold all slots of a sink, the spare ones too: namespaces wait", "task_queue", route,
			"slots", l.config.Slots, "spare", l.config.Spare, "waiting", c.waiting, "holds_most", c.largest, "its_deliveries", c.holds)
	}
}
