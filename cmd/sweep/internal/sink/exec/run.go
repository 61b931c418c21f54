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
	// killPatience is how long after a kill the command may take to be gone. Only
	// one that may not be killed (sudo and its like) or hangs in the kernel does.
	killPatience = 2 * time.Second

	// outputPatience is how long output is still read when the command's group is
	// gone but a process that left the group holds the pipe.
	outputPatience = 500 * time.Millisecond
)

// result is how a command ended.
type result struct {
	state  *os.ProcessState // nil: not known, and err says why
	err    error
	output string
}

// run starts the command and waits for its end. The error says that it could not
// be started.
func (s *Sink) run(ctx context.Context, environ []string, payload []byte) (result, error) {
	type answer struct {
		result
		startErr error
	}
	ended := make(chan answer, 1)
	go func() {
		r, err := s.startAndWait(ctx, environ, payload)
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

func (s *Sink) startAndWait(ctx context.Context, environ []string, payload []byte) (result, error) {
	// The kernel counts the thread that started a child as its parent, and kills
	// the child when that thread ends (Pdeathsig): keep the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	// Pipes of our own, where os/exec would wait for a grandchild that holds them
	// before it lets us kill the group.
	stdin, feed, err := os.Pipe()
	if err != nil {
		return result{}, err
	}
	drain, stdout, err := os.Pipe()
	if err != nil {
		return result{}, errors.Join(err, stdin.Close(), feed.Close())
	}
	cmd := osexec.CommandContext(ctx, s.path)
	cmd.Args = s.argv
	cmd.Env = environ
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stdout
	cmd.SysProcAttr = attributes()
	cmd.Cancel = func() error { s.kill(cmd.Process); return nil }
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
	s.kill(cmd.Process)
	_ = feed.SetWriteDeadline(time.Now())
	_ = drain.SetReadDeadline(time.Now().Add(outputPatience))
	pumps.Wait()
	return result{state: cmd.ProcessState, err: waitErr, output: output.String()}, nil
}
