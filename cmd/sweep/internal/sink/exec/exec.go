// Package exec is the sink that runs a command for each message.
//
// The command line is split into words as a shell would ([New]) but is never given
// to a shell, and nothing of a message stands in it: the payload goes to the
// command's standard input, the facts into its environment. So no message, however
// its names and payload are chosen, can change what is run.
//
//	FAIRCLAIM_ID            the message's number
//	FAIRCLAIM_NAMESPACE     the tenant
//	FAIRCLAIM_TASK_QUEUE    the route
//	FAIRCLAIM_DISPATCH_KEY  the idempotency key: the same over retries
//	FAIRCLAIM_ATTEMPT       1 at the first attempt
//	FAIRCLAIM_CONTENT_TYPE  of the payload
//	FAIRCLAIM_HEADERS       a JSON object of strings
//
// The rest of the environment is that of sweep, without DATABASE_URL, PG*,
// FAIRCLAIM_* and SWEEP_*. That keeps credentials out of what a command logs and
// hands on; it is no wall against a command that runs as the same user as sweep.
//
// How a command ends says what becomes of its message:
//
//	exit 0                   done
//	exit 65 (EX_DATAERR)     the message has failed for good
//	any other exit, a signal retry; 75 (EX_TEMPFAIL) says so on purpose
//	out of time              retry; the command was killed
//	could not be started     handed back uncharged after a pause: see [Sink.Deliver]
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

	// startPause is how long a message is held after its command could not be
	// started, so that handing it back does not turn into a busy loop.
	startPause = 5 * time.Second

	// startPatience is how long no start may succeed before the sink is closed:
	// long enough for a file that is being replaced, short enough to be noticed.
	startPatience = time.Minute
)

// Sink runs a command for each message, as many at once as Deliver is called.
// Use [New]; the zero value does not work.
type Sink struct {
	argv    []string // argv[0] as it was given
	path    string   // argv[0] as it was found
	environ []string
	timeout time.Duration
	kill    func(*os.Process)

	mu      sync.Mutex
	failing time.Time // the first of the failed starts since the last good one; zero if there are none
}

// New returns a sink for a command line. Words end at white space; 'single' and
// "double" quotes and \ keep characters as in a POSIX shell. Nothing is expanded:
// for variables, globs or pipes name the shell yourself (sh -c '...') and mind
// that the names in the variables were chosen by others: quote them.
//
// timeout bounds each run; 0 leaves that to the context of Deliver. New fails if
// the command is not there or may not be executed. The environment is that of the
// process at this moment.
func New(command string, timeout time.Duration) (*Sink, error) {
	argv, err := words(command)
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
	return &Sink{argv: argv, path: path, environ: passedOn(os.Environ()), timeout: timeout, kill: killGroup}, nil
}

// String is the sink's name in logs: the command without its arguments, which may
// hold secrets.
func (s *Sink) String() string { return "exec:" + snippet.Clean([]byte(s.argv[0]), 200) }

// Deliver runs the command for m and waits for it. The command leads a process
// group of its own, so that a Ctrl-C meant for sweep does not reach it. The whole
// group is killed when ctx ends or the time is up, and also when the command has
// ended: what it left in the background does not outlive the delivery (a process
// that went into a group of its own does, but is not waited for). On Linux the
// command is killed when sweep dies.
//
// A command need not read its input. Output is dropped, but for its beginning and its end
// (512 and 1,024 bytes) in the error of a command that fails.
//
// Where the command cannot be started (its file is gone, the machine is out of
// processes or files), that is not the message's fault: Deliver holds m for 5
// seconds, or until ctx ends, and then hands it back uncharged. If no start has
// succeeded for a minute, it says [node.ErrSinkClosed].
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
	r, err := s.run(run, append(variables, s.environ...), m.Payload)
	switch {
	case errors.Is(err, syscall.E2BIG): // mostly the message's own doing, so it must not go round forever
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

// notStarted holds a message whose command could not be started.
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

// verdict says what a command's end means.
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
	if r.state != nil && r.state.ExitCode() == exitDataError {
		return node.Permanent(err)
	}
	return err
}
