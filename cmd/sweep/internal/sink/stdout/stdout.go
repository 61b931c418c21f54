// Package stdout is the sink that prints one line of JSON for each message, in the form
// that `sweep enqueue` reads back.
package stdout

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// Sink writes messages to an [io.Writer], one line each. A message is done when its whole
// line is written; what the reader does with the line is not known.
//
// Lines of concurrent Deliver calls never mix. After a line that was cut short the next
// line, also that of a later process, begins with a line feed, so that a reader sees only
// one bad line. (So there may be an empty line where a process began.)
//
// Where the writer is full for the moment (a disk, a quota), the delivery fails and the
// message is retried. Where the writer says "try again" (EAGAIN), Deliver waits. After any
// other failed write (the reader
// has closed the pipe) the sink is closed for good: that message and all later ones are handed
// back with [node.ErrSinkClosed].
//
// Use [New]; the zero value does not work. Two sinks must not share a writer.
type Sink struct {
	// turn holds one token: the goroutine that has taken it may write, and use the fields
	// below. It is a channel and not a mutex, because a wait for it must end with the context.
	turn chan struct{}
	lines
}

// New returns a sink that writes to w. No other code may write to w meanwhile.
func New(w io.Writer) *Sink {
	s := &Sink{lines: lines{w: w}, turn: make(chan struct{}, 1)}
	if f, ok := w.(*os.File); ok {
		s.torn = mayBeTorn(f)
	}
	s.turn <- struct{}{}
	return s
}

// String is the name of the sink in logs.
func (s *Sink) String() string { return "stdout" }

// Deliver writes m's line.
//
// Where ctx ends before the first byte of m's line is out, m is handed back
// untried. A write that blocks cannot be called off: where ctx ends while the reader is
// stalled in the middle of m's line, Deliver returns at once with an error that counts as an
// attempt (the line may come out whole later, and the message is then delivered twice), one
// goroutine stays behind until the reader moves or the process ends, and later
// messages wait for it. So a stall costs one attempt of one message, however long
// it is.
func (s *Sink) Deliver(ctx context.Context, m driver.Delivery) error {
	text, err := appendLine(make([]byte, 1, len(m.Payload)+512), m)
	if err != nil {
		return node.Permanent(err)
	}
	text[0] = '\n'
	if ctx.Err() != nil { // select below would choose at random
		return notTried(ctx)
	}
	select {
	case <-s.turn:
	case <-ctx.Done():
		return notTried(ctx)
	}
	if s.closed != nil {
		err := s.closed
		s.turn <- struct{}{}
		return node.Undelivered(err)
	}

	written := make(chan error, 1)
	go func() {
		err := s.write(ctx, text)
		s.turn <- struct{}{}
		written <- err
	}()
	select {
	case err := <-written:
		return err
	case <-ctx.Done():
	}
	grace := time.NewTimer(grace) // a writer that waits returns now
	defer grace.Stop()
	select {
	case err := <-written:
		return err
	case <-grace.C:
		return fmt.Errorf("stdout: the reader is stalled, the line may come out later or be cut short: %w", context.Cause(ctx))
	}
}

// grace is how long a write may take to return after its context has ended.
const grace = 100 * time.Millisecond

// Close ends a line that was cut short, where that can be done at once.
func (s *Sink) Close() {
	select {
	case <-s.turn:
	default: // somebody is stalled in a write
		return
	}
	if !s.torn || s.closed != nil {
		s.turn <- struct{}{}
		return
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if _, err := s.w.Write([]byte("\n")); err == nil {
			s.torn = false
		}
		s.turn <- struct{}{}
	}()
	select {
	case <-ended:
	case <-time.After(grace):
	}
}

func notTried(ctx context.Context) error {
	return node.Undelivered(fmt.Errorf("stdout: not written: %w", context.Cause(ctx)))
}

// CatchBrokenPipe makes a write to a closed os.Stdout or os.Stderr fail with EPIPE
// like any other write; without it the Go runtime ends the process with SIGPIPE,
// before anything can be handed back. It holds until stop is called. Commands that
// the process starts keep the default action, which they would not if the signal
// were ignored.
func CatchBrokenPipe() (stop func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGPIPE)
	return func() { signal.Stop(c) }
}
