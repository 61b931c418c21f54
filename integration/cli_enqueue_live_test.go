package integration

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
)

// liveEnqueue is a sweep enqueue whose input comes while it runs.
type liveEnqueue struct {
	cmd            *exec.Cmd
	stdin          io.WriteCloser
	stdout, stderr bytes.Buffer
}

func startEnqueue(t *testing.T, dsn string, args ...string) *liveEnqueue {
	t.Helper()
	l := &liveEnqueue{cmd: sweepCall{dsn: dsn, args: append([]string{"enqueue"}, args...)}.start(t)}
	l.cmd.Stdin, l.cmd.Stdout, l.cmd.Stderr = nil, &l.stdout, &l.stderr
	var err error
	if l.stdin, err = l.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return l
}

// line sends a good line.
func (l *liveEnqueue) line(t *testing.T, key string) {
	t.Helper()
	if _, err := fmt.Fprintf(l.stdin, goodLine+"\n", key); err != nil {
		t.Fatal(err)
	}
}

// awaitStrict waits until a strict run has written what it got.
func awaitStrict(t *testing.T, q querier) {
	t.Helper()
	await(t, q, `select exists (select from pg_stat_activity where application_name = 'sweep enqueue'
		and datname = current_database() and state = 'idle in transaction' and query like 'release%')`)
}

func (l *liveEnqueue) end() sweepOutcome {
	_ = l.cmd.Wait()
	return sweepOutcome{l.stdout.String(), l.stderr.String(), l.cmd.ProcessState.ExitCode()}
}

// A line that comes alone does not wait for others; an interrupt ends the run after
// what was read, and says how far it came.
func TestCLIEnqueueInterrupted(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	l := startEnqueue(t, db.DSN)
	for n := range 3 {
		l.line(t, fmt.Sprint(n))
		await(t, db.Pool, `select count(*) = $1::int from outbox.message`, n+1)
	}
	if err := l.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	got := l.end()
	got.want(t, 1, l.cmd.Args, "sweep: interrupt", "done up to stdin:3", "Run it again")
	if got.stdout != "enqueued 3, duplicates 0, bad 0\n" {
		t.Errorf("printed %q", got.stdout)
	}
}

// INV-2: a strict run that is interrupted leaves nothing.
func TestCLIEnqueueStrictInterrupted(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	l := startEnqueue(t, db.DSN, "--strict")
	l.line(t, "1")
	awaitStrict(t, db.Admin(t))
	if err := l.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	got := l.end()
	got.want(t, 1, l.cmd.Args, "sweep: interrupt", "nothing was written")
	if got.stdout != "enqueued 0, duplicates 0, bad 0\n" {
		t.Errorf("printed %q", got.stdout)
	}
	if n := one[int](t, db.Pool, `select count(*) from outbox.message`); n != 0 {
		t.Errorf("%d messages", n)
	}
}

// INV-3: a key that another session writes while a strict run is under way is a
// duplicate, whatever isolation the role has.
func TestCLIEnqueueStrictIsolation(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	role := db.Role(t, "set default_transaction_isolation = 'serializable'")
	run(t, db.Pool, `select outbox.grant_producer($1)`, role.Name)
	l := startEnqueue(t, role.DSN, "--strict")
	l.line(t, "1")
	awaitStrict(t, db.Admin(t))
	put(t, db.Pool, "n", "q", "2")
	l.line(t, "2")
	if err := l.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	got := l.end()
	got.want(t, 0, l.cmd.Args)
	if got.stdout != "enqueued 1, duplicates 1, bad 0\n" {
		t.Errorf("printed %q", got.stdout)
	}
}

// A connection that breaks ends the run with an error that says how far it came;
// the same input again completes it (INV-2).
func TestCLIEnqueueConnectionLost(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	l := startEnqueue(t, db.DSN)
	l.line(t, "1")
	await(t, db.Pool, `select count(*) = 1 from outbox.message`)
	run(t, db.Admin(t), `select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'sweep enqueue' and datname = current_database()`)
	l.line(t, "2")
	l.end().want(t, 1, l.cmd.Args, "done up to stdin:1", "Run it again")
	input := fmt.Sprintf(goodLine+"\n"+goodLine, "1", "2")
	if got := sweepWith(t, db.DSN, input, "enqueue"); got != "enqueued 1, duplicates 1, bad 0\n" {
		t.Errorf("again: %q", got)
	}
}
