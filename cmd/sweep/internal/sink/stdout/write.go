package stdout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/fairclaim/fairclaim/driver/node"
)

// againPause is the pause before a write is repeated that said "try again".
const againPause = 10 * time.Millisecond

// full are the errors of a writer without room for the moment.
var full = []error{syscall.ENOSPC, syscall.EDQUOT, syscall.ENOBUFS, syscall.ENOMEM}

// lines writes lines to w, one after the other.
type lines struct {
	w      io.Writer
	closed error // why no more is written; nil while w is open
	torn   bool  // the last bytes written may be the beginning of a line
}

// write writes one line, and returns the outcome of the delivery. text is the line with a
// line feed before it, which is written only where the line before was cut short. The caller
// has the turn.
func (l *lines) write(ctx context.Context, text []byte) error {
	start := 1
	if l.torn {
		start = 0
	}
	n, err := writeAll(ctx, l.w, text[start:])
	end := start + n // in text
	if n > 0 {
		l.torn = end > 1 && end < len(text)
	}
	if end == len(text) && (err == nil || isFull(err)) {
		return nil
	}
	failed := fmt.Errorf("stdout: %w", err)
	if l.torn && end > 1 {
		failed = fmt.Errorf("stdout: the line ends after %d of its %d bytes: %w", end-1, len(text)-1, err)
	}
	switch {
	case errors.Is(err, errAgain) && end > 1:
		return failed
	case errors.Is(err, errAgain):
		return node.Undelivered(failed)
	case isFull(err):
		return failed
	}
	l.closed = fmt.Errorf("%w: %w", node.ErrSinkClosed, failed)
	return node.Undelivered(l.closed)
}

func isFull(err error) bool {
	for _, e := range full {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// errAgain says that the writer said "try again" until the time was up.
var errAgain = errors.New("the reader takes no more for now")

// writeAll writes text, and returns how many bytes of it were written. Where w takes only a
// part, without an error, the rest follows in the next call; where it takes nothing, that is
// an error. Where w says "try again", writeAll waits and repeats the call until ctx ends.
func writeAll(ctx context.Context, w io.Writer, text []byte) (int, error) {
	total := 0
	for total < len(text) {
		n, err := w.Write(text[total:])
		if n < 0 || n > len(text)-total {
			return total, fmt.Errorf("the writer reports %d bytes of %d", n, len(text)-total)
		}
		total += n
		switch {
		case errors.Is(err, syscall.EAGAIN):
			pause := time.NewTimer(againPause)
			select {
			case <-pause.C:
			case <-ctx.Done():
				pause.Stop()
				return total, fmt.Errorf("%w: %w", errAgain, context.Cause(ctx))
			}
		case err != nil:
			return total, err
		case n == 0:
			return total, io.ErrShortWrite
		}
	}
	return total, nil
}
