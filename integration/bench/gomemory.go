package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	sweepBudget  = 64 << 20
	sweepPayload = 256 << 10 // bytes; so large that the budget is what limits it
	sweepDelay   = 100 * time.Millisecond
)

// residentMemory runs the sweep binary under a load that uses up its budget, and watches
// its memory.
func (l *lab) residentMemory(ctx context.Context) error {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		l.say("resident memory: not measured, this system has no /proc")
		return nil
	}
	bin, remove, err := buildSweep(ctx)
	if err != nil {
		return err
	}
	defer remove()
	db, err := l.outbox(ctx, "memory")
	if err != nil {
		return err
	}
	n := l.size.large
	if _, err := db.write(ctx, backlog{to: jobTenants, rows: n, payload: sweepPayload}); err != nil {
		return err
	}
	var received atomic.Int64
	sink := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		received.Add(1)
		select {
		case <-r.Context().Done():
		case <-time.After(sweepDelay):
		}
	}))
	defer sink.Close()

	command := exec.CommandContext(ctx, bin, "run", "--sink", sink.URL, "--budget", strconv.Itoa(sweepBudget), "--batch", "500", "--log-level", "warn")
	command.Env = append(os.Environ(), "DATABASE_URL="+db.DSN)
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = 10 * time.Second
	if err := command.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()

	inFlight, resident, err := l.watchSweep(ctx, db, command.Process.Pid, n, ended)
	if err == nil {
		err = command.Process.Signal(syscall.SIGTERM)
	}
	if err == nil {
		err = <-ended
	} else {
		_ = command.Process.Kill()
	}
	if err != nil {
		return fmt.Errorf("%w; it said: %s", err, output.String())
	}
	if received.Load() < int64(n) {
		return fmt.Errorf("the sink got %d of %d messages", received.Load(), n)
	}
	memory := goFigure("sweep run, most resident memory", "MiB", resident)
	memory.Note = fmt.Sprintf("sweep run: a budget of 64 MiB that is used up, payloads of 256 KiB, a batch of 500, an HTTP sink that takes %v", sweepDelay)
	l.report.add(goFigure("sweep run, most payload claimed at a time", "MiB", inFlight), memory)
	return l.dropAll(ctx, db)
}

// watchSweep waits until n messages are settled. It returns the most payload that was
// claimed at a time, and the most memory that the process has held, in MiB.
func (l *lab) watchSweep(ctx context.Context, db *database, pid, n int, ended <-chan error) (inFlight, resident float64, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("waited for %v in vain", patience))
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for settled := 0; settled < n; {
		select {
		case <-ctx.Done():
			return 0, 0, context.Cause(ctx)
		case err := <-ended:
			return 0, 0, fmt.Errorf("it ended: %v", err)
		case <-tick.C:
		}
		bytes, err := ask[int64](ctx, db.pool, `select coalesce(sum(c.payload_bytes), 0)::bigint from outbox.claimed as c`)
		if err != nil {
			return 0, 0, err
		}
		inFlight = max(inFlight, float64(bytes)/(1<<20))
		if settled, err = ask[int](ctx, db.pool, `select count(*) from outbox.settled where outcome = 'done'`); err != nil {
			return 0, 0, err
		}
	}
	if most := float64(sweepBudget+sweepPayload) / (1 << 20); inFlight > most {
		return 0, 0, fmt.Errorf("%v MiB were in flight, with a budget of %v (INV-13)", inFlight, most)
	}
	var kb float64
	value := fileValue(fmt.Sprintf("/proc/%d/status", pid), "VmHWM")
	if _, err := fmt.Sscanf(value, "%f kB", &kb); err != nil {
		return 0, 0, fmt.Errorf("resident memory %q: %w", value, err)
	}
	return inFlight, kb / 1024, nil
}

// buildSweep builds the sweep binary out of the module beside this one.
func buildSweep(ctx context.Context) (bin string, remove func(), err error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/fairclaim/fairclaim").Output()
	if err != nil {
		return "", nil, fmt.Errorf("find the module (run this from integration/bench): %w", err)
	}
	dir, err := os.MkdirTemp("", "fairclaim-bench-")
	if err != nil {
		return "", nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	bin = filepath.Join(dir, "sweep")
	build := exec.CommandContext(ctx, "go", "build", "-o", bin, "./cmd/sweep")
	build.Dir = strings.TrimSpace(string(root))
	if text, err := build.CombinedOutput(); err != nil {
		remove()
		return "", nil, fmt.Errorf("build sweep: %w: %s", err, text)
	}
	return bin, remove, nil
}
