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

// verdict is what becomes of a message after its delivery: the settle that it goes to.
type verdict int

const (
	toComplete verdict = iota
	toRetry
	toFail
	toRelease
	settledBySink
)

// outcome is what a delivery came to. It is read off the sink's error once, by the
// goroutine that got the error: an error can have methods, and what they do is the sink's doing.
type outcome struct {
	verdict verdict
	err     error          // nil: delivered
	reason  string         // its text
	delay   *time.Duration // of RetryAfter or RetryNotBefore
	least   bool           // of RetryNotBefore: the policy's backoff may be longer
	closed  bool           // the sink takes no message any more
	overdue bool           // the sink did not return: the dispatcher gave the delivery up
}

// judge reads a delivery's error as the Sink interface defines it. Where an error says two
// things, the message's own fault goes last: a message that was perhaps not tried must not fail.
//
//	error holds                 verdict
//	nil                         toComplete
//	ErrSettled                  settledBySink
//	ErrSinkClosed, Undelivered  toRelease
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
	switch {
	case errors.Is(err, ErrSettled):
		o.verdict = settledBySink
	case o.closed || errors.As(err, &undelivered):
		o.verdict = toRelease
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
