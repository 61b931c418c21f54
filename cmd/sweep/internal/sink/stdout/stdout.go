// Package stdout is the sink that prints: one line of JSON a message, in the form
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

// Sink writes messages to an [io.Writer], one line each. A message is done when
// its whole line was written; what the reader does with it then is not known.
//
// Lines of concurrent Deliver calls never mix, and a line that was cut short spoils no other:
// the next one, also that of a later process, begins with a line end, so that a reader
// sees one bad line only. (So there may be an empty line where a process began.)
//
// A writer that is full for the moment (the disk, a quota) fails the message, which is
// retried; one that says "try again" is waited for. After any other failed write (the reader
// has closed the pipe) the sink is closed for good: that message and all later ones are handed
// back with [node.ErrSinkClosed].
//
// Use [New]; the zero value does not work. Two sinks must not share a writer.
type Sink struct {
	w io.Writer

	// turn holds one token: who takes it may write and may touch the rest. A channel,
	// not a mutex, because waiting for it must end with the context.
	turn   chan struct{}
	closed error // why the sink is closed, nil while it is open
	torn   bool  // what was written last may not end with a line end
}

// New returns a sink that writes to w. No other code may write to w meanwhile.
func New(w io.Writer) *Sink {
	s := &Sink{w: w, turn: make(chan struct{}, 1)}
	if f, ok := w.(*os.File); ok {
		s.torn = mayBeTorn(f)
	}
	s.turn <- struct{}{}
	return s
}

// String is the sink's name in logs.
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
	if ctx.Err() != nil { // select would toss a coin
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
	grace := time.NewTimer(grace) // a writer that can be waited for comes back now
	defer grace.Stop()
	select {
	case err := <-written:
		return err
	case <-grace.C:
		return fmt.Errorf("stdout: the reader is stalled, the line may come out later or be cut short: %w", context.Cause(ctx))
	}
}

// grace is how long a write has to come back after its context has ended.
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
