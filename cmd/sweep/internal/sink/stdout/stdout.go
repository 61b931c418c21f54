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

	"github.com/fairclaim/fairclaim/driver"
)

// Sink writes messages to an [io.Writer], one line each. A message is done when
// its whole line was written; what the reader does with it then is not known.
//
// Lines of concurrent Deliver calls never mix. After the first failed write (the
// reader has closed the pipe, the disk is full) the sink is closed for good: that
// message and all later ones are handed back with [driver.ErrSinkClosed].
//
// Use [New]; the zero value does not work. Two sinks must not share a writer.
type Sink struct {
	w io.Writer

	// turn holds one token: who takes it may write and may touch closed. A channel,
	// not a mutex, because waiting for it must end with the context.
	turn   chan struct{}
	closed error // why the sink is closed, nil while it is open
}

// New returns a sink that writes to w. No other code may write to w meanwhile.
func New(w io.Writer) *Sink {
	s := &Sink{w: w, turn: make(chan struct{}, 1)}
	s.turn <- struct{}{}
	return s
}

// String is the sink's name in logs.
func (s *Sink) String() string { return "stdout" }

// Deliver writes m's line.
//
// Where ctx ends while another message is being written, m is handed back
// untried. A write that has begun cannot be called off, since half a line would
// spoil the next one: where ctx ends while the reader is stalled in the middle of
// m's line, Deliver returns at once with an error that counts as an attempt (the
// line may come out whole later, and the message is then delivered twice), one
// goroutine stays behind until the reader moves or the process ends, and later
// messages wait for it. So a stall costs one attempt of one message, however long
// it is.
func (s *Sink) Deliver(ctx context.Context, m driver.Message) error {
	text, err := appendLine(make([]byte, 0, len(m.Payload)+512), m)
	if err != nil {
		return driver.Permanent(err)
	}
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
		return driver.Undelivered(err)
	}

	written := make(chan error, 1)
	go func() {
		if n, err := writeAll(s.w, text); err != nil {
			s.closed = closedError(err, n, len(text))
		}
		err := s.closed
		s.turn <- struct{}{}
		written <- err
	}()
	select {
	case err := <-written:
		return driver.Undelivered(err) // nil if the line was written
	case <-ctx.Done():
		select {
		case err := <-written:
			return driver.Undelivered(err)
		default:
		}
		return fmt.Errorf("stdout: the reader is stalled, the line may come out later or be cut short: %w", context.Cause(ctx))
	}
}

func notTried(ctx context.Context) error {
	return driver.Undelivered(fmt.Errorf("stdout: not written: %w", context.Cause(ctx)))
}

// closedError says what is left of a line of size bytes whose write failed after
// n bytes.
func closedError(err error, n, size int) error {
	if n == 0 {
		return fmt.Errorf("stdout: %w: %w", driver.ErrSinkClosed, err)
	}
	return fmt.Errorf("stdout: %w: the last line ends after %d of its %d bytes: %w", driver.ErrSinkClosed, n, size, err)
}

// writeAll writes text with as few Write calls as w needs, and returns how many
// bytes of it went out. A writer that takes less than it was given, without an
// error, gets the rest; one that takes nothing fails.
func writeAll(w io.Writer, text []byte) (int, error) {
	total := 0
	for total < len(text) {
		n, err := w.Write(text[total:])
		if n < 0 || n > len(text)-total {
			return total, fmt.Errorf("the writer reports %d bytes of %d", n, len(text)-total)
		}
		total += n
		if err != nil {
			return total, err
		}
		if n == 0 {
			return total, io.ErrShortWrite
		}
	}
	return total, nil
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
