package exec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"runtime"
	"sync"
	"time"
)

const (
	// killPatience is how long Deliver waits for the end of a command that was killed. Only
	// a command that sweep may not kill (sudo), or that hangs in the kernel, takes longer.
	killPatience = 2 * time.Second

	// outputPatience is how long output is still read after the process group has ended,
	// while a process that left the group holds the pipe open.
	outputPatience = 500 * time.Millisecond
)

// command is a command that can be run any number of times.
type command struct {
	argv []string // argv[0] as it was given
	path string   // argv[0] as it was found
	kill func(*os.Process)
}

// result is how a command ended.
type result struct {
	state  *os.ProcessState // nil: not known; err says why
	err    error
	output string
}

// run starts the command and waits for its end. An error says that the command could not
// be started.
func (c *command) run(ctx context.Context, environ []string, payload []byte) (result, error) {
	type answer struct {
		result
		startErr error
	}
	ended := make(chan answer, 1)
	go func() {
		r, err := c.startAndWait(ctx, environ, payload)
		ended <- answer{r, err}
	}()
	select {
	case a := <-ended:
		return a.result, a.startErr
	case <-ctx.Done():
	}
	patience := time.NewTimer(killPatience)
	defer patience.Stop()
	select {
	case a := <-ended:
		return a.result, a.startErr
	case <-patience.C:
		return result{err: fmt.Errorf("%w, and it cannot be killed", context.Cause(ctx))}, nil
	}
}

func (c *command) startAndWait(ctx context.Context, environ []string, payload []byte) (result, error) {
	// With Pdeathsig the kernel kills the child when the thread that started it ends: keep
	// the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	// These pipes are made here because os/exec would wait for a grandchild that holds its
	// pipes open, before the group could be killed.
	stdin, feed, err := os.Pipe()
	if err != nil {
		return result{}, err
	}
	drain, stdout, err := os.Pipe()
	if err != nil {
		return result{}, errors.Join(err, stdin.Close(), feed.Close())
	}
	cmd := osexec.CommandContext(ctx, c.path)
	cmd.Args = c.argv
	cmd.Env = environ
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stdout
	cmd.SysProcAttr = attributes()
	cmd.Cancel = func() error { c.kill(cmd.Process); return nil }
	err = cmd.Start()
	_, _ = stdin.Close(), stdout.Close()
	if err != nil {
		_, _ = feed.Close(), drain.Close()
		return result{}, err
	}

	var (
		output ends
		pumps  sync.WaitGroup
	)
	pumps.Go(func() {
		_, _ = feed.Write(payload) // a command that does not read its input is no failure
		_ = feed.Close()
	})
	pumps.Go(func() {
		_, _ = io.Copy(&output, drain)
		_ = drain.Close()
	})
	waitErr := cmd.Wait()
	c.kill(cmd.Process)
	_ = feed.SetWriteDeadline(time.Now())
	_ = drain.SetReadDeadline(time.Now().Add(outputPatience))
	pumps.Wait()
	return result{state: cmd.ProcessState, err: waitErr, output: output.String()}, nil
}
