package node

import (
	"context"
	"errors"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

// graceTime is how long a sink has to return after its context has ended, and how long the last
// calls of an end may take.
const graceTime = 5 * time.Second

// A Sink delivers messages to the outside. Deliver may be called by many
// goroutines at once, each with another message. It must return soon after ctx
// ends; what it returns then counts like any other answer. Where it has not returned 5 s after
// the delivery's time-out, the message counts as timed out, and the slot takes the next message; what
// Deliver returns later changes nothing. As many calls as a sink has slots are left behind in this way. Of
// further ones the slots are free only when Deliver returns.
//
// The error says what becomes of the message:
//
//   - nil: delivered; the message is done
//   - [Permanent]: it can never be delivered; the message has failed (dead letter)
//   - [RetryAfter]: retry, after the given delay
//   - [RetryNotBefore]: retry, after the policy's backoff or the given delay, whichever is later
//   - [Undelivered]: it was not tried; it is due again, and the attempt is given back
//   - [DestinationFailed], [DestinationBroken], [DestinationGone], [Hold]: its destination, the task queue of its
//     namespace, is in trouble, and no message's fault: retry, and once the destination is
//     held, without an attempt charged
//   - [ErrSettled]: the sink has settled it itself, in a transaction of its own
//   - any other error: retry, after the policy's backoff
//
// Delivery is at least once: a process that dies between Deliver and the settle
// leaves a message that another one delivers again. Delivery.DispatchKey stays
// the same then, so a consumer can tell.
type Sink interface {
	Deliver(ctx context.Context, m driver.Delivery) error
}

// SinkFunc makes a Sink of a function.
type SinkFunc func(ctx context.Context, m driver.Delivery) error

// Deliver calls f.
func (f SinkFunc) Deliver(ctx context.Context, m driver.Delivery) error { return f(ctx, m) }

// ErrSinkClosed is what a Sink returns, alone or wrapped, when it can take no
// message ever again (its pipe is closed, say). The loop then hands back what it
// holds, uncharged, and ends with this error.
var ErrSinkClosed = errors.New("sink is closed")

// ErrSettled is what a Sink returns, alone or wrapped, for a message that it has settled
// itself: with [driver.Complete] in the transaction of its own work, so that both are one.
var ErrSettled = errors.New("the sink has settled the message")

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Permanent marks err as final: the message fails at once. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type retryAfterError struct {
	err   error
	delay time.Duration
	least bool // the policy's backoff may be longer
}

func (e *retryAfterError) Error() string { return e.err.Error() }
func (e *retryAfterError) Unwrap() error { return e.err }

// RetryAfter marks err as temporary: the message is due again after delay, in
// place of the policy's backoff. Use it if you know better than the policy: with short
// delays the attempts are soon used up. For a time that a destination asks for, as by the
// header Retry-After, use [RetryNotBefore]. A negative delay counts as 0. RetryAfter(nil, d)
// is nil.
func RetryAfter(err error, delay time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{err, max(delay, 0), false}
}

// RetryNotBefore marks err as temporary: the message is due again after delay or after the
// policy's backoff, whichever is later. So a destination can put the next attempt off, and
// cannot call for so many that they are used up before it has recovered. A negative delay
// counts as 0. RetryNotBefore(nil, d) is nil.
func RetryNotBefore(err error, delay time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{err, max(delay, 0), true}
}

type undeliveredError struct{ err error }

func (e *undeliveredError) Error() string { return e.err.Error() }
func (e *undeliveredError) Unwrap() error { return e.err }

// Undelivered marks err as one that kept the message from being tried at all: it
// is released, and the attempt is given back (INV-10). Undelivered(nil) is nil.
func Undelivered(err error) error {
	if err == nil {
		return nil
	}
	return &undeliveredError{err}
}

type destinationError struct {
	err     error
	trouble driver.Trouble
	hold    time.Duration // of driver.Busy
}

func (e *destinationError) Error() string { return e.err.Error() }
func (e *destinationError) Unwrap() error { return e.err }

// DestinationFailed marks err as its destination's doing: it could not be reached, or turns away whoever
// calls. The message is tried again. Where five messages in a row fail so, of whatever nodes, the
// destination is held: what goes there is not claimed, and not charged, but for one message now and
// then as a probe, until one comes through. DestinationFailed(nil) is nil.
func DestinationFailed(err error) error { return inTrouble(err, driver.Unreachable, 0) }

// DestinationBroken marks err as perhaps its destination's doing: it broke on the message, maybe on this
// one alone. It is as [DestinationFailed], but that it takes twenty messages in a row.
// DestinationBroken(nil) is nil.
func DestinationBroken(err error) error { return inTrouble(err, driver.Broken, 0) }

// DestinationGone marks err as a destination that is no more: it is held at once, and until somebody
// lifts that. The message is not charged. DestinationGone(nil) is nil.
func DestinationGone(err error) error { return inTrouble(err, driver.Gone, 0) }

// Hold marks err as a destination that asks for time: it is held at once, for d, but for 5 s or so at
// least, and an hour at most. The message is not charged. Hold(nil, d) is nil.
func Hold(err error, d time.Duration) error { return inTrouble(err, driver.Busy, max(d, 0)) }

func inTrouble(err error, trouble driver.Trouble, hold time.Duration) error {
	if err == nil {
		return nil
	}
	return &destinationError{err, trouble, hold}
}

// A SharedSink is a Sink that can say where the messages of all namespaces go to one endpoint: so a failure
// of it counts for the whole task queue too. Where ten messages in a row fail, of five namespaces at least, the
// task queue is held for all. What a sink does not share can be held for one namespace at a time only: it is
// better not to share what may be each namespace's own, or those whose endpoints are dead stop all others.
type SharedSink interface {
	Sink
	Shared(taskQueue string) bool
}

// shares reports whether a sink sends the messages of all namespaces, of this task queue, to one endpoint.
func shares(sink Sink, taskQueue string) bool {
	s, ok := sink.(SharedSink)
	return ok && s.Shared(taskQueue)
}

// verdict is what becomes of a message after its delivery: the settle that it goes to.
type verdict int

const (
	toComplete verdict = iota
	toRetry
	toFail
	toRelease
	toFailDestination
	settledBySink
)

// outcome is what a delivery came to. It is read off the sink's error once, by the
// goroutine that got the error: an error can have methods, and what they do is the sink's doing.
type outcome struct {
	verdict verdict
	err     error          // nil: delivered
	reason  string         // its text
	delay   *time.Duration // of RetryAfter, RetryNotBefore or Hold
	least   bool           // of RetryNotBefore and Hold: the policy's backoff may be longer
	trouble driver.Trouble // of toFailDestination
	shared  bool           // of toFailDestination: it counts for the route of all, too
	reached driver.Reached // of toFailDestination: who got through to the destination since
	closed  bool           // the sink takes no message any more
	overdue bool           // the sink did not return: the dispatcher gave the delivery up
	ended   int64          // when the delivery ended, in dispatcher.clock time
}

// judge reads a delivery's error as the Sink interface defines it. Where an error says two
// things, the message's own fault goes last: a message that was perhaps not tried must not fail.
//
//	error holds                 verdict
//	nil                         toComplete
//	ErrSettled                  settledBySink
//	ErrSinkClosed, Undelivered  toRelease
//	DestinationFailed, -Broken,
//	-Gone, Hold                 toFailDestination
//	Permanent                   toFail
//	RetryAfter, RetryNotBefore  toRetry, with their delay
//	any other                   toRetry, with the policy's backoff
func judge(err error) outcome {
	if err == nil {
		return outcome{verdict: toComplete}
	}
	o := outcome{verdict: toRetry, err: err, reason: err.Error(), closed: errors.Is(err, ErrSinkClosed)}
	var permanent *permanentError
	var undelivered *undeliveredError
	var after *retryAfterError
	var destination *destinationError
	switch {
	case errors.Is(err, ErrSettled):
		o.verdict = settledBySink
	case o.closed || errors.As(err, &undelivered):
		o.verdict = toRelease
	case errors.As(err, &destination):
		o.verdict, o.trouble = toFailDestination, destination.trouble
		if destination.trouble == driver.Busy {
			o.delay, o.least = &destination.hold, true
		}
	case errors.As(err, &permanent):
		o.verdict = toFail
	case errors.As(err, &after):
		o.delay, o.least = &after.delay, after.least
	}
	return o
}

// atOnce reports whether a settle leaves the message due at that moment.
func (o *outcome) atOnce() bool {
	return o.verdict == toRelease || o.verdict == toRetry && o.delay != nil && *o.delay == 0 && !o.least
}
