package http

import (
	nethttp "net/http"
	"strconv"
	"strings"
	"time"
)

// maxRetryAfter is the longest delay that a server may ask for.
const maxRetryAfter = time.Hour

// permanent reports whether a status says that this message will never be taken,
// however often it comes. That is the case for most of 4xx. Not for those that
// speak of the moment (408, 409 an earlier attempt is still at work, 421, 423, 425,
// 429), and not for those that speak of the sender's credentials (401, 403, 407):
// they hit all messages alike and pass when an operator mends them.
func permanent(status int) bool {
	switch status {
	case nethttp.StatusUnauthorized, nethttp.StatusForbidden, nethttp.StatusProxyAuthRequired,
		nethttp.StatusRequestTimeout, nethttp.StatusConflict, nethttp.StatusMisdirectedRequest,
		nethttp.StatusLocked, nethttp.StatusTooEarly, nethttp.StatusTooManyRequests:
		return false
	}
	return status >= 400 && status <= 499
}

// retryAfter returns the delay that an answer asks for, more than 0 and at most
// maxRetryAfter; ok is false if it asks for none, or for none that makes sense.
// "At once" is none: the policy's backoff is there to protect the server.
//
// A date is measured against the answer's own Date, and ignored without one: no
// clock of this node decides when a message is due (INV-15).
func retryAfter(h nethttp.Header) (delay time.Duration, ok bool) {
	value := strings.Trim(h.Get("Retry-After"), " \t")
	if value == "" {
		return 0, false
	}
	if strings.Trim(value, "0123456789") == "" {
		seconds, err := strconv.ParseUint(value, 10, 64)
		if err != nil || seconds > uint64(maxRetryAfter/time.Second) { // err: too many digits
			return maxRetryAfter, true
		}
		delay = time.Duration(seconds) * time.Second
		return delay, delay > 0
	}
	at, err := nethttp.ParseTime(value)
	if err != nil {
		return 0, false
	}
	now, err := nethttp.ParseTime(h.Get("Date"))
	if err != nil {
		return 0, false
	}
	delay = min(at.Sub(now), maxRetryAfter)
	return max(delay, 0), delay > 0
}
