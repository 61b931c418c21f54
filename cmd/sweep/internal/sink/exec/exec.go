// Package exec is the sink that runs a command for each message.
//
// The command line is split into words as a shell splits it ([New]), but no shell runs it,
// and no part of a message is put into it: the payload goes to the command's standard
// input, and what else is known of the message into environment variables. So no message
// can change which command runs.
//
//	FAIRCLAIM_ID            the id of the message
//	FAIRCLAIM_NAMESPACE     the tenant
//	FAIRCLAIM_TASK_QUEUE    the route
//	FAIRCLAIM_DISPATCH_KEY  the idempotency key: the same at each attempt
//	FAIRCLAIM_ATTEMPT       1 at the first attempt
//	FAIRCLAIM_CREATED_AT    when the message was enqueued: the same at each attempt
//	FAIRCLAIM_DUE_AT        when it came due: at a later attempt, the end of the backoff
//	FAIRCLAIM_CLAIMED_AT    when it was claimed for this attempt
//	FAIRCLAIM_CONTENT_TYPE  of the payload
//	FAIRCLAIM_HEADERS       a JSON object of strings
//
// The times are of the database's clock, by RFC 3339 in UTC: 2026-01-02T03:04:05.678901Z.
//
// The other environment variables are those of sweep, without DATABASE_URL, PG*,
// FAIRCLAIM_* and SWEEP_*. So the credentials of the database do not get into logs of the
// command, or to other programs that it starts. A command that runs as the same user as
// sweep can still find them.
//
// The end of the command decides what becomes of the message:
//
//	exit 0                   done
//	exit 65 (EX_DATAERR)     the message has failed for good
//	exit 69 (EX_UNAVAILABLE) the destination could not be reached: retry, and once enough
//	                         have failed so the destination is held
//	any other exit, a signal retry by the policy, also exit 75 (EX_TEMPFAIL)
//	out of time              retry by the policy; the command was killed
//	could not be started     released uncharged, after a pause: see [Sink.Deliver]
package exec

import (
	"context"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/snippet"
	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

const (
	// exitDataError is EX_DATAERR of sysexits.h: "the input data was incorrect".
	exitDataError = 65

	// exitUnavailable is EX_UNAVAILABLE: "a service is unavailable". Which one, and whose, only the command
	// knows: it counts for the namespace of the message, and not for the task queue of all.
	exitUnavailable = 69

	// startPause is how long a message is held after its command could not be started: so
	// that releasing and claiming it again does not become a busy loop.
	startPause = 5 * time.Second

	// startPatience is how long all starts may fail before the sink is closed: long enough
	// for an operator who replaces the command's file, short enough to be noticed.
	startPatience = time.Minute
)

// Sink runs a command for each message, as many at once as Deliver is called.
// Use [New]; the zero value does not work.
type Sink struct {
	command
	environ []string
	timeout time.Duration

	mu      sync.Mutex
	failing time.Time // the first failed start since the last good one; zero if there is none
}

// New returns a sink for a command line. Words end at white space; 'single' and
// "double" quotes and \ keep characters as in a POSIX shell. Nothing is expanded:
// for variables, globs or pipes name the shell yourself (sh -c '...') and mind
// that the names in the variables were chosen by others: quote them.
//
// timeout bounds each run; 0 leaves that to the context of Deliver. New fails if
// the command is not there or may not be executed. The environment is that of the
// process at this moment.
func New(line string, timeout time.Duration) (*Sink, error) {
	argv, err := words(line)
	if err != nil {
		return nil, fmt.Errorf("exec: %w", err)
	}
	if len(argv) == 0 || argv[0] == "" {
		return nil, errors.New("exec: no command; write exec:COMMAND [ARGUMENT...]")
	}
	path, err := osexec.LookPath(argv[0])
	if err != nil {
		if e, ok := errors.AsType[*osexec.Error](err); ok {
			err = e.Err
		}
		return nil, fmt.Errorf("exec: command %q: %w; give the path of an executable file", argv[0], err)
	}
	return &Sink{command: command{argv: argv, path: path, kill: killGroup}, environ: passedOn(os.Environ()), timeout: timeout}, nil
}

// String is the name of the sink in logs: the command without its arguments, which may be
// secrets.
func (s *Sink) String() string { return "exec:" + snippet.Clean([]byte(s.argv[0]), 200) }

// Deliver runs the command for m and waits for its end. The command leads a process group
// of its own, so that a Ctrl-C in the terminal of sweep does not reach it. The whole group
// is killed when ctx ends, when the time is up, and when the command has ended: processes
// that the command leaves in the background end with the delivery. (A process that has
// moved to a group of its own goes on; Deliver does not wait for it.) On Linux the command
// is also killed when sweep dies.
//
// A command need not read its input. Its output is dropped; the error of a command that
// fails has the first 512 and the last 1,024 bytes.
//
// Where the command cannot be started (its file is gone, the machine is out of
// processes or files), that is not the message's fault: Deliver holds m for 5
// seconds, or until ctx ends, and then hands it back uncharged. If no start has
// succeeded for a minute, the error is [node.ErrSinkClosed].
func (s *Sink) Deliver(ctx context.Context, m driver.Delivery) error {
	variables, err := facts(m)
	if err != nil {
		return node.Permanent(fmt.Errorf("%s: %w", s, err))
	}
	run := ctx
	if s.timeout > 0 {
		var cancel context.CancelFunc
		run, cancel = context.WithTimeoutCause(ctx, s.timeout, fmt.Errorf("timed out after %v", s.timeout))
		defer cancel()
	}
	r, err := s.command.run(run, append(variables, s.environ...), m.Payload)
	switch {
	case errors.Is(err, syscall.E2BIG): // the message itself is probably too large: charge it, so that it ends as failed
		return fmt.Errorf("%s: headers and environment are too large: %w", s, err)
	case err != nil && run.Err() != nil: // os/exec starts nothing then
		return node.Undelivered(fmt.Errorf("%s: not started: %w", s, context.Cause(run)))
	case err != nil:
		return s.notStarted(ctx, err)
	}
	s.mu.Lock()
	s.failing = time.Time{}
	s.mu.Unlock()
	return s.verdict(run, r)
}

// notStarted holds a message whose command could not be started, and returns its outcome.
func (s *Sink) notStarted(ctx context.Context, err error) error {
	err = fmt.Errorf("%s: could not be started: %w", s, err)
	s.mu.Lock()
	if s.failing.IsZero() {
		s.failing = time.Now()
	}
	failing := time.Since(s.failing)
	s.mu.Unlock()
	if failing >= startPatience {
		return node.Undelivered(fmt.Errorf("%w, nor at any time in the last %v: %w", err, failing.Round(time.Second), node.ErrSinkClosed))
	}
	pause := time.NewTimer(startPause)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
	return node.Undelivered(err)
}

// verdict returns the outcome of a delivery by how its command ended.
func (s *Sink) verdict(ctx context.Context, r result) error {
	if r.state != nil && r.state.Success() {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: ", s)
	switch {
	case r.state == nil:
		fmt.Fprintf(&b, "how it ended is not known: %v", r.err)
	case ctx.Err() != nil && !r.state.Exited():
		fmt.Fprintf(&b, "killed: %v", context.Cause(ctx))
	default:
		b.WriteString(r.state.String())
	}
	if r.output != "" {
		b.WriteString(": " + r.output)
	}
	err := errors.New(b.String())
	if r.state != nil {
		switch r.state.ExitCode() {
		case exitDataError:
			return node.Permanent(err)
		case exitUnavailable:
			return node.DestinationFailed(err)
		}
	}
	return err
}
