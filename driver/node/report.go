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
	last            *item
	reportedAt      int64 // clock time of the last report; 0: none
}

// write tells the log of failed deliveries: at once of the first, then summed up, so
// that neither silence nor a flood hides a sink that is down. At the end it tells the rest.
func (r *failureReport) write(log *slog.Logger, now int64, atEnd bool) {
	if r.last == nil || r.reportedAt > 0 && now-r.reportedAt < int64(reportEvery) && !atEnd {
		return
	}
	log.Warn("deliveries failed", "to_be_retried", r.retried, "failed", r.failed,
		"last_namespace", r.last.Namespace, "last_dispatch_key", r.last.DispatchKey, "last_attempt", r.last.Attempt,
		"last_error", driver.CleanReason(r.last.reason))
	*r = failureReport{reportedAt: now}
}
