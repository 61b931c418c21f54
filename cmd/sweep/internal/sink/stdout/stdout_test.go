package stdout

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/sinktest"
	"github.com/fairclaim/fairclaim/driver"
)

// TestMain lets the tests run this binary as a process that prints to a real
// standard output.
func TestMain(m *testing.M) {
	if os.Getenv("STDOUT_TEST_PRINT") != "" {
		os.Exit(printUntilClosed())
	}
	goleak.VerifyTestMain(m)
}

// printUntilClosed delivers messages to os.Stdout and exits 3 when the sink says
// that it is closed.
func printUntilClosed() int {
	if os.Getenv("STDOUT_TEST_PRINT") == "caught" {
		defer CatchBrokenPipe()()
	}
	s := New(os.Stdout)
	for i := range 1_000_000 {
		err := s.Deliver(context.Background(), driver.Delivery{ID: int64(i), Payload: make([]byte, 1000)})
		switch sinktest.Outcome(err) {
		case sinktest.Done:
		case sinktest.Closed:
			fmt.Fprintln(os.Stderr, err)
			return 3
		default:
			fmt.Fprintln(os.Stderr, "unexpected:", err)
			return 4
		}
	}
	return 0
}

// crumbs takes a few bytes at a time, as io.Writer forbids but some writers do.
type crumbs struct{ bytes.Buffer }

func (c *crumbs) Write(p []byte) (int, error) {
	runtime.Gosched()
	return c.Buffer.Write(p[:min(len(p), 1+rand.IntN(9))])
}

func TestConcurrentLinesNeverMix(t *testing.T) {
	var w crumbs
	s := New(&w)
	const messages = 200
	var wg sync.WaitGroup
	for i := range messages {
		wg.Go(func() {
			if err := s.Deliver(t.Context(), driver.Delivery{ID: int64(i), DispatchKey: fmt.Sprint(i)}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	lines := bufio.NewScanner(&w)
	for lines.Scan() {
		seen[parseLine(t, lines.Bytes()).DispatchKey] = true
	}
	if len(seen) != messages {
		t.Errorf("%d of %d messages came out", len(seen), messages)
	}
}

// scripted answers one Write after another.
type scripted struct {
	answers []func(p []byte) (int, error)
	out     bytes.Buffer
}

func (s *scripted) Write(p []byte) (int, error) {
	if len(s.answers) == 0 {
		return s.out.Write(p)
	}
	answer := s.answers[0]
	s.answers = s.answers[1:]
	n, err := answer(p)
	if n > 0 && n <= len(p) {
		s.out.Write(p[:n])
	}
	return n, err
}

func TestFailedWriteClosesTheSink(t *testing.T) {
	full := errors.New("device gone")
	answer := func(n int, err error) func([]byte) (int, error) {
		return func([]byte) (int, error) { return n, err }
	}
	for _, c := range []struct {
		name    string
		answers []func(p []byte) (int, error)
		is      error
		says    string
	}{
		{"at once", []func([]byte) (int, error){answer(0, full)}, full, "sink is closed: stdout: device gone"},
		{"in the line", []func([]byte) (int, error){answer(10, full)}, full, "the line ends after 10 of its "},
		{"after a short write", []func([]byte) (int, error){answer(10, nil), answer(5, full)}, full, "after 15 of its "},
		{"nothing taken", []func([]byte) (int, error){answer(0, nil)}, io.ErrShortWrite, "short write"},
		{"whole line and an error", []func([]byte) (int, error){func(p []byte) (int, error) { return len(p), full }}, full, "device gone"},
		{"writer counts wrong", []func([]byte) (int, error){answer(1<<20, nil)}, nil, "the writer reports 1048576 bytes"},
		{"writer counts below 0", []func([]byte) (int, error){answer(-1, full)}, nil, "the writer reports -1 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &scripted{answers: c.answers}
			s := New(w)
			first := s.Deliver(t.Context(), driver.Delivery{ID: 1})
			if got := sinktest.Outcome(first); got != sinktest.Closed {
				t.Errorf("the message that hit the error: %s (%v), want %s", got, first, sinktest.Closed)
			}
			if c.is != nil && !errors.Is(first, c.is) || !strings.Contains(first.Error(), c.says) {
				t.Errorf("error is %q, want %q in it", first, c.says)
			}
			before := w.out.Len()
			later := s.Deliver(t.Context(), driver.Delivery{ID: 2})
			if got := sinktest.Outcome(later); got != sinktest.Closed {
				t.Errorf("a later message: %s (%v), want %s", got, later, sinktest.Closed)
			}
			if w.out.Len() != before {
				t.Error("wrote after the sink was closed")
			}
		})
	}
}

// A stalled reader must not hold up Deliver once its context ends, costs one
// attempt of one message, and loses nothing.
func TestStalledReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		s := New(w)
		deliver := func(ctx context.Context, id int64) chan string {
			c := make(chan string, 1)
			go func() { c <- sinktest.Outcome(s.Deliver(ctx, driver.Delivery{ID: id})) }()
			synctest.Wait()
			return c
		}
		first, stopFirst := context.WithCancel(t.Context())
		second, stopSecond := context.WithCancel(t.Context())
		defer stopSecond()
		a := deliver(first, 1)
		b := deliver(second, 2)
		stopFirst()
		if got := <-a; got != sinktest.Retry {
			t.Errorf("the message in the middle of its line: %s, want %s", got, sinktest.Retry)
		}
		stopSecond()
		if got := <-b; got != sinktest.Undelivered {
			t.Errorf("the message that waited for its turn: %s, want %s", got, sinktest.Undelivered)
		}
		if got := <-deliver(second, 3); got != sinktest.Undelivered {
			t.Errorf("a message whose context has ended: %s, want %s", got, sinktest.Undelivered)
		}

		c := deliver(t.Context(), 4)
		lines := bufio.NewScanner(r)
		for _, want := range []string{`{"id":1,`, `{"id":4,`} {
			if !lines.Scan() || !strings.HasPrefix(lines.Text(), want) {
				t.Errorf("the reader got %q, want %q first", lines.Text(), want)
			}
		}
		if got := <-c; got != sinktest.Done {
			t.Errorf("the message after the stall: %s, want %s", got, sinktest.Done)
		}
	})
}

func TestContextThatHasEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var b bytes.Buffer
	s := New(&b)
	for range 50 {
		if got := sinktest.Outcome(s.Deliver(ctx, driver.Delivery{})); got != sinktest.Undelivered {
			t.Fatalf("%s, want %s", got, sinktest.Undelivered)
		}
	}
	if b.Len() > 0 {
		t.Errorf("wrote %q", b.String())
	}
}

// A line that is out counts, even where the context ends at the same moment.
func TestContextEndsWithTheWrite(t *testing.T) {
	for range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		w := &scripted{answers: []func([]byte) (int, error){func(p []byte) (int, error) { cancel(); return len(p), nil }}}
		s := New(w)
		err := s.Deliver(ctx, driver.Delivery{})
		if got := sinktest.Outcome(err); got != sinktest.Done && got != sinktest.Retry {
			t.Fatalf("%s (%v)", got, err)
		}
		<-s.turn // the writing goroutine is through
	}
}

// INV-2: a real process whose standard output is closed under it must live to hand
// its messages back.
func TestClosedPipeInARealProcess(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no SIGPIPE on Windows")
	}
	for _, c := range []struct {
		mode string
		code int
		sig  syscall.Signal
	}{
		{"caught", 3, -1},
		{"not caught", -1, syscall.SIGPIPE},
	} {
		t.Run(c.mode, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), "STDOUT_TEST_PRINT="+c.mode)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			for i := range 3 {
				if !lines.Scan() || !strings.HasPrefix(lines.Text(), fmt.Sprintf(`{"id":%d,`, i)) {
					t.Errorf("line %d is %.60q", i, lines.Text())
				}
			}
			out.Close()
			_ = cmd.Wait()
			status := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if status.ExitStatus() != c.code || status.Signal() != c.sig {
				t.Fatalf("%v, want exit %d or signal %v; stderr: %s", cmd.ProcessState, c.code, c.sig, stderr.String())
			}
			if c.code == 3 && !strings.Contains(stderr.String(), "sink is closed") {
				t.Errorf("stderr is %q", stderr.String())
			}
		})
	}
}

func TestRealPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := New(w)
	const messages = 50
	var wg sync.WaitGroup
	for i := range messages {
		wg.Go(func() {
			// More than a pipe holds, so that writes block and are taken in parts.
			m := driver.Delivery{DispatchKey: fmt.Sprint(i), Payload: bytes.Repeat([]byte{byte(i)}, 200_000)}
			if err := s.Deliver(t.Context(), m); err != nil {
				t.Error(err)
			}
		})
	}
	go func() { wg.Wait(); w.Close() }()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	seen := map[string]bool{}
	for lines.Scan() {
		if len(lines.Bytes()) == 0 { // the pipe does not block: a line before it might have been cut short
			continue
		}
		m := parseLine(t, lines.Bytes())
		seen[m.DispatchKey] = len(m.payload) == 200_000
	}
	if len(seen) != messages {
		t.Errorf("%d of %d messages came out", len(seen), messages)
	}
}
