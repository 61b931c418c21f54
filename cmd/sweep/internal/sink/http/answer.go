package http

import (
	nethttp "net/http"
	"strconv"
	"strings"
	"time"
)

// maxRetryAfter is the longest delay that a server may ask for.
const maxRetryAfter = time.Hour

// permanent reports whether a status says that the server will never accept this message,
// however often it is sent: most of 4xx. Not 408, 409 (an earlier attempt is still at work),
// 421, 423, 425 and 429, which are about the moment. And not 401, 403 and 407, which are
// about the credentials of the sender: they meet all messages alike, and end when an
// operator corrects the credentials.
func permanent(status int) bool {
	switch status {
	case nethttp.StatusUnauthorized, nethttp.StatusForbidden, nethttp.StatusProxyAuthRequired,
		nethttp.StatusRequestTimeout, nethttp.StatusConflict, nethttp.StatusMisdirectedRequest,
		nethttp.StatusLocked, nethttp.StatusTooEarly, nethttp.StatusTooManyRequests:
		return false
	}
	return status >= 400 && status <= 499
}

// retryAfter returns the delay that the field Retry-After of an answer asks for, more than
// 0 and at most maxRetryAfter. ok is false where there is no such field, or no value that
// makes sense. A delay of 0 counts as none: the backoff of the policy protects the server.
//
// A date in the field counts from the answer's own Date, and is ignored without that: no
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
