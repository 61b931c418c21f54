package node

import (
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fairclaim/fairclaim/driver"
)

// backoff decides when the database is asked again after it has failed a call. It belongs to
// the loop's goroutine. Instants are clock times in nanoseconds.
//
// Calls are those that move messages: claims, settles, reads of payloads, begins of suspects. Duties
// are the regular ones: extends, heartbeats, rescues. What waits, and whether a Once ends:
//
//	the error                                         the database    calls wait  duties wait  a Once ends
//	no answer: a time-out, a broken connection        is away         yes         yes          yes
//	no connection: ConnectError, class 08             is away         yes         yes          yes
//	it stops, starts or ended the session: 57P        is away         yes         yes          yes
//	it is read only, a standby: 25006                 is away         yes         yes          yes
//	other transactions were in the way: see
//	driver.TryAgain                                   refused a call  yes         no           no
//	any other                                         refused a call  yes         no           yes
//
// A duty that the database refuses delays nothing else; it is tried again at its next time.
//
// The pause begins at 100 ms and doubles with each failed call, up to 10 s, and no more than a
// quarter of the lease, so that leases can be extended in time; each is spread by a fifth. A call
// that works ends the growth. A duty that works does not: it may have had nothing to ask for.
type backoff struct {
	pause    time.Duration // the last one, before jitter; 0: the last call worked
	callsAt  int64         // no call before this
	dutiesAt int64         // no duty before this
}

const (
	minPause = 100 * time.Millisecond
	maxPause = 10 * time.Second
)

// failed notes a failed call, and returns how long the next one waits.
func (b *backoff) failed(now int64, lease time.Duration, err error) time.Duration {
	b.pause = min(max(2*b.pause, minPause), lease/4, maxPause)
	wait := jitter(b.pause)
	b.callsAt = now + int64(wait)
	if away(err) {
		b.dutiesAt = b.callsAt
	}
	return wait
}

// worked notes a call that worked, and reports whether the one before it had failed.
func (b *backoff) worked() (recovered bool) {
	recovered = b.pause > 0
	b.pause = 0
	return recovered
}

// mayCall reports whether a call need not wait.
func (b *backoff) mayCall(now int64) bool { return now >= b.callsAt }

// away reports whether an error says that the database cannot be worked with at all.
func away(err error) bool {
	var answer *pgconn.PgError
	if !errors.As(err, &answer) {
		return true
	}
	var connect *pgconn.ConnectError
	return errors.As(err, &connect) || answer.Code == "25006" || strings.HasPrefix(answer.Code, "57P") || strings.HasPrefix(answer.Code, "08")
}

// endsOnce reports whether a Once ends with the error.
func endsOnce(err error) bool { return !driver.TryAgain(err) }
