package stdout

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/sinktest"
	"github.com/fairclaim/fairclaim/driver"
)

func failing(n int, errno syscall.Errno) func([]byte) (int, error) {
	return func([]byte) (int, error) { return n, &fs.PathError{Op: "write", Path: "/dev/stdout", Err: errno} }
}

// A line that was cut short spoils no other: the next one begins with a line end. Where nothing
// of it came out, there is none.
func TestFullDisk(t *testing.T) {
	for name, test := range map[string]struct {
		answers []func([]byte) (int, error)
		first   string // becomes of the message
		before  string // what is out before the second one
	}{
		"nothing written": {[]func([]byte) (int, error){failing(0, syscall.ENOSPC)}, sinktest.Retry, ""},
		"cut short":       {[]func([]byte) (int, error){failing(7, syscall.ENOSPC)}, sinktest.Retry, `{"id":1` + "\n"},
		"quota, after a short write": {
			[]func([]byte) (int, error){func([]byte) (int, error) { return 3, nil }, failing(4, syscall.EDQUOT)},
			sinktest.Retry, `{"id":1` + "\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := &scripted{answers: test.answers}
			s := New(w)
			err := s.Deliver(t.Context(), driver.Delivery{ID: 1})
			if got := sinktest.Outcome(err); got != test.first {
				t.Errorf("%s (%v), want %s", got, err, test.first)
			}
			for id := range int64(2) {
				if got := sinktest.Outcome(s.Deliver(t.Context(), driver.Delivery{ID: 2 + id})); got != sinktest.Done {
					t.Errorf("a later message: %s, want %s", got, sinktest.Done)
				}
			}
			rest, ok := strings.CutPrefix(w.out.String(), test.before)
			if !ok || !strings.HasPrefix(rest, `{"id":2,`) || strings.Count(rest, "\n") != 2 || strings.Contains(rest, "\n\n") {
				t.Errorf("the reader gets %q, want %q and two lines", w.out.String(), test.before)
			}
		})
	}
}

// A disk that stays full, and fails the line end too.
func TestDiskStaysFull(t *testing.T) {
	w := &scripted{answers: []func([]byte) (int, error){
		failing(7, syscall.ENOSPC), failing(0, syscall.ENOSPC), failing(1, syscall.ENOSPC), failing(0, syscall.ENOSPC),
	}}
	s := New(w)
	for range 4 {
		if got := sinktest.Outcome(s.Deliver(t.Context(), driver.Delivery{ID: 1})); got != sinktest.Retry {
			t.Errorf("%s, want %s", got, sinktest.Retry)
		}
	}
	if got := sinktest.Outcome(s.Deliver(t.Context(), driver.Delivery{ID: 2})); got != sinktest.Done {
		t.Errorf("%s, want %s", got, sinktest.Done)
	}
	if got := w.out.String(); !strings.HasPrefix(got, `{"id":1`+"\n"+`{"id":2,`) || strings.Count(got, "\n") != 2 {
		t.Errorf("the reader gets %q", got)
	}
}

func TestDevFull(t *testing.T) {
	f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("there is no /dev/full here:", err)
	}
	defer f.Close()
	s := New(f)
	for range 2 {
		if got := sinktest.Outcome(s.Deliver(t.Context(), driver.Delivery{})); got != sinktest.Retry {
			t.Errorf("%s, want %s", got, sinktest.Retry)
		}
	}
}

// A pipe that says "try again" is waited for until the time is up: then a message of which nothing
// is out goes back untried, and one that was cut short has failed.
func TestTryAgain(t *testing.T) {
	for name, test := range map[string]struct {
		taken  int  // bytes before it says so
		opens  bool // before the time is up
		want   string
		before string
	}{
		"nothing, then all":  {0, true, sinktest.Done, `{"id":1,`},
		"some, then all":     {7, true, sinktest.Done, `{"id":1,`},
		"nothing, for ever":  {0, false, sinktest.Undelivered, ""},
		"some, then nothing": {7, false, sinktest.Retry, `{"id":1` + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &gate{taken: test.taken}
				s := New(w)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if test.opens {
					w.opens = time.Now().Add(time.Minute / 2)
				}
				if got := sinktest.Outcome(s.Deliver(ctx, driver.Delivery{ID: 1})); got != test.want {
					t.Errorf("%s, want %s", got, test.want)
				}
				w.opens = time.Now()
				if got := sinktest.Outcome(s.Deliver(t.Context(), driver.Delivery{ID: 2})); got != sinktest.Done {
					t.Errorf("the message after it: %s, want %s", got, sinktest.Done)
				}
				out := w.out.String()
				if !strings.HasPrefix(out, test.before) || !strings.HasPrefix(out[strings.LastIndex(strings.TrimSuffix(out, "\n"), "\n")+1:], `{"id":2,`) ||
					strings.Contains(out, "\n\n") {
					t.Errorf("the reader gets %q", out)
				}
			})
		})
	}
}

// gate takes some bytes and then says "try again" until it opens.
type gate struct {
	taken int
	opens time.Time
	out   bytes.Buffer
}

func (g *gate) Write(p []byte) (int, error) {
	if !g.opens.IsZero() && !time.Now().Before(g.opens) {
		return g.out.Write(p)
	}
	n := min(g.taken, len(p))
	g.taken -= n
	g.out.Write(p[:n])
	return n, syscall.EAGAIN
}

// The next process does not know what the one before it left; what it writes is whole.
func TestNextProcess(t *testing.T) {
	for name, test := range map[string]struct{ before, want string }{
		"new file":       {"", ""},
		"whole lines":    {"{}\n", "{}\n"},
		"a line cut off": {"{}\n{\"id\":1", "{}\n{\"id\":1\n"},
		"nearly whole":   {"{}", "{}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "out")
			if err := os.WriteFile(path, []byte(test.before), 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if got := sinktest.Outcome(New(f).Deliver(t.Context(), driver.Delivery{ID: 2})); got != sinktest.Done {
				t.Fatal(got)
			}
			out, err := os.ReadFile(path)
			if rest, ok := strings.CutPrefix(string(out), test.want); err != nil || !ok || !strings.HasPrefix(rest, `{"id":2,`) {
				t.Errorf("the file has %q, %v, want the message after %q", out, err, test.want)
			}
		})
	}
}

// A real pipe that does not block, with a reader that is slow: all lines come whole, and what
// a process leaves in it when it ends does not spoil the next one's.
func TestPipeThatDoesNotBlock(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	// By another descriptor, as by another process that shares the pipe: the runtime does
	// not wait for this one by itself.
	n, err := syscall.Dup(int(w.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(n), "pipe")
	if err := syscall.SetNonblock(n, true); err != nil {
		t.Fatal(err)
	}
	w.Close()
	s := New(f)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	big := bytes.Repeat([]byte{1}, 200_000) // more than a pipe holds
	if got := sinktest.Outcome(s.Deliver(ctx, driver.Delivery{ID: 1, Payload: big})); got != sinktest.Retry {
		t.Errorf("nobody reads, and the message is %s, want %s", got, sinktest.Retry)
	}
	s.Close()
	go func() {
		defer f.Close()
		s := New(f) // as another process
		for id := range int64(20) {
			if got := sinktest.Outcome(s.Deliver(t.Context(), driver.Delivery{ID: 2 + id, Payload: big})); got != sinktest.Done {
				t.Errorf("message %d: %s, want %s", 2+id, got, sinktest.Done)
			}
		}
		s.Close()
	}()
	lines := bufio.NewReaderSize(r, 1<<20)
	bad, good := 0, 0
	for {
		text, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if text = bytes.TrimSpace(text); len(text) == 0 {
			continue
		}
		if bytes.HasPrefix(text, fmt.Appendf(nil, `{"id":%d,`, 2+good)) && bytes.HasSuffix(text, []byte("}")) {
			good++
		} else {
			bad++
		}
	}
	if good != 20 || bad != 1 {
		t.Errorf("%d whole lines and %d bad ones, want 20 and 1", good, bad)
	}
}
