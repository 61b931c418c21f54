//go:build unix

package exec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/sinktest"
	"github.com/fairclaim/fairclaim/driver"
)

// waitFor polls until ok or the deadline.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen in 10 s", what)
		}
		<-tick.C
	}
}

// pid reads a process number that a script wrote.
func pid(t *testing.T, path string) int {
	t.Helper()
	var n int
	waitFor(t, "a number in "+filepath.Base(path), func() bool {
		text, _ := os.ReadFile(path)
		var err error
		n, err = strconv.Atoi(strings.TrimSuffix(string(text), "\n"))
		return err == nil && bytes.HasSuffix(text, []byte("\n"))
	})
	return n
}

// gone reports whether a process has ended; a zombie has.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(rest, "Z")
}

// INV-11: a delivery ends with its context or time-out, whatever the command and
// its children do, and none of them is left.
func TestTimeoutKillsTheWholeGroup(t *testing.T) {
	const family = `trap '' TERM INT HUP
sh -c 'trap "" TERM; echo $$ > '"$1"'/grandchild; sleep 60; sleep 60' &
(sleep 60; sleep 60) &
echo $$ > "$1/child"; echo before; wait; sleep 60`
	for _, c := range []struct {
		name    string
		timeout time.Duration
		cancel  bool
		says    string
	}{
		{"time-out", 700 * time.Millisecond, false, "killed: timed out after 700ms: before"},
		{"context", 0, true, "killed: stopped by the test: before"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, dir := shell(t, family, c.timeout)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			answer := make(chan error, 1)
			go func() { answer <- s.Deliver(ctx, driver.Delivery{Payload: make([]byte, 1<<20)}) }()
			child, grandchild := pid(t, filepath.Join(dir, "child")), pid(t, filepath.Join(dir, "grandchild"))
			began := time.Now()
			if c.cancel {
				cancel(errors.New("stopped by the test"))
			}
			err := <-answer
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("took %v", took)
			}
			if sinktest.Outcome(err) != sinktest.Retry || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s (%v), want retry with %q", sinktest.Outcome(err), err, c.says)
			}
			waitFor(t, "the end of child and grandchild", func() bool { return gone(child) && gone(grandchild) })
		})
	}
}

// A grandchild that holds the pipes neither holds up the answer nor outlives it.
func TestBackgroundProcesses(t *testing.T) {
	for _, c := range []struct{ name, script, want string }{
		{"success", `sleep 60 & echo $! > "$1/pid"; exit 0`, sinktest.Done},
		{"failure", `sleep 60 & echo $! > "$1/pid"; exit 1`, sinktest.Retry},
		{"floods the output", `yes & echo $! > "$1/pid"; exit 0`, sinktest.Done},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, dir := shell(t, c.script, time.Minute)
			began := time.Now()
			err := s.Deliver(t.Context(), driver.Delivery{Payload: make([]byte, 1<<20)})
			if got := sinktest.Outcome(err); got != c.want {
				t.Errorf("%s (%v), want %s", got, err, c.want)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("took %v", took)
			}
			left := pid(t, filepath.Join(dir, "pid"))
			waitFor(t, "the end of the background process", func() bool { return gone(left) })
		})
	}
}

// A process that left the group is let go, and not waited for, though it holds both
// pipes.
func TestProcessOutsideTheGroup(t *testing.T) {
	if _, err := osexec.LookPath("setsid"); err != nil {
		t.Skip("no setsid command: ", err)
	}
	for _, script := range []string{"sleep 60", "yes"} {
		s, dir := shell(t, `exec 3<&0; setsid sh -c 'echo $$ > '"$1"'/pid; exec `+script+`' <&3 & while ! test -s "$1/pid"; do :; done; exit 0`, time.Minute)
		began := time.Now()
		err := s.Deliver(t.Context(), driver.Delivery{Payload: make([]byte, 1<<20)})
		left := pid(t, filepath.Join(dir, "pid"))
		if took := time.Since(began); err != nil || took > 10*time.Second {
			t.Errorf("%s: %v after %v", script, err, took)
		}
		if script == "sleep 60" && gone(left) {
			t.Error("it was killed too")
		}
		_ = syscall.Kill(left, syscall.SIGKILL)
	}
}

// A command that may not be killed must not hold Deliver.
func TestCommandThatCannotBeKilled(t *testing.T) {
	s, dir := shell(t, `echo $$ > "$1/pid"; exec sleep 60`, 300*time.Millisecond)
	s.kill = func(*os.Process) {}
	began := time.Now()
	err := s.Deliver(t.Context(), driver.Delivery{})
	if sinktest.Outcome(err) != sinktest.Retry || !strings.Contains(err.Error(), "timed out after 300ms, and it cannot be killed") {
		t.Errorf("%v", err)
	}
	if took := time.Since(began); took > killPatience+5*time.Second {
		t.Errorf("took %v", took)
	}
	_ = syscall.Kill(pid(t, filepath.Join(dir, "pid")), syscall.SIGKILL)
}

func TestConcurrentDeliveries(t *testing.T) {
	s, _ := shell(t, `test "$(cat)" = "$FAIRCLAIM_DISPATCH_KEY" || exit 65`, time.Minute)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			key := fmt.Sprint("key", i)
			if err := s.Deliver(t.Context(), driver.Delivery{DispatchKey: key, Payload: []byte(key)}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
