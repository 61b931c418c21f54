package http

import (
	nethttp "net/http"
	"strconv"
	"strings"
	"time"
)

// maxRetryAfter is the longest delay that a server may ask for.
const maxRetryAfter = time.Hour

// meaning is what an answer says, and of whom.
type meaning string

const (
	done        meaning = "done"        // the message was delivered
	failed      meaning = "failed"      // the message can never be delivered
	unreachable meaning = "unreachable" // the destination: whoever calls gets this
	broken      meaning = "broken"      // the destination: it broke on the message, perhaps on this one alone
	busy        meaning = "busy"        // the destination: it asks for time
	gone        meaning = "gone"        // the destination: it is no more
	ours        meaning = "ours"        // of the proxy of this node: nothing of message or destination
)

// meaningOf reads the status of an answer. waits says that it came with a Retry-After that makes sense,
// byProxy that a proxy of ours may have given it, and final4xx that most 4xx are final: all but those that
// are about the moment (408, 409, 421, 423, 425, 429), or about the credentials of the sender (401, 403),
// which end when an operator corrects these.
func meaningOf(status int, waits, byProxy, final4xx bool) meaning {
	switch status {
	case nethttp.StatusBadRequest, nethttp.StatusRequestEntityTooLarge, nethttp.StatusUnsupportedMediaType, nethttp.StatusUnprocessableEntity:
		return failed
	case nethttp.StatusTooManyRequests:
		return busy
	case nethttp.StatusProxyAuthRequired:
		if byProxy {
			return ours
		}
	case nethttp.StatusUnauthorized, nethttp.StatusForbidden:
		return unreachable
	case nethttp.StatusRequestTimeout, nethttp.StatusConflict, nethttp.StatusMisdirectedRequest, nethttp.StatusLocked, nethttp.StatusTooEarly:
		return broken
	}
	switch {
	case status/100 == 2:
		return done
	case status/100 == 3:
		return unreachable
	case status/100 == 4 && final4xx:
		return failed
	}
	switch status {
	case nethttp.StatusGone:
		return gone
	case nethttp.StatusServiceUnavailable:
		if waits {
			return busy
		}
		return unreachable
	case nethttp.StatusNotFound, nethttp.StatusMethodNotAllowed, nethttp.StatusBadGateway, nethttp.StatusGatewayTimeout:
		return unreachable
	}
	return broken
}

// retryAfter returns the delay that the field Retry-After of an answer asks for, at most
// maxRetryAfter; of an instant that is past it is 0. ok is false where there is no such field, or no value
// that makes sense.
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
		return delay, true
	}
	at, err := nethttp.ParseTime(value)
	if err != nil {
		return 0, false
	}
	now, err := nethttp.ParseTime(h.Get("Date"))
	if err != nil {
		return 0, false
	}
	return max(min(at.Sub(now), maxRetryAfter), 0), true
}
