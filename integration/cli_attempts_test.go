package integration

import (
	"bytes"
	"syscall"
	"testing"
	"time"
)

// INV-10: a message that kills its worker is charged each time, and ends as failed.
func TestCLIMessageThatKillsItsWorker(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, `select outbox.configure('{"max_attempts": 3}')`)
	put(t, db.Pool, "acme", "q", "poison")
	for attempt := 1; attempt <= 3; attempt++ {
		got := sweepCall{dsn: db.DSN, args: []string{"once", "--sink", `exec:sh -c 'kill -9 $PPID; sleep 5'`}}.do(t)
		if got.code != -1 { // ended by a signal
			t.Fatalf("attempt %d: exit %d\n%s", attempt, got.code, got.stderr)
		}
		if n := one[int](t, db.Pool, "select attempt from outbox.claimed"); n != attempt {
			t.Fatalf("charged %d, want %d", n, attempt)
		}
		expire(t, db.Pool, "acme")
	}
	sweep(t, db.DSN, "once", "--sink", "stdout")
	if s := one[string](t, db.Pool, "select status from outbox.messages"); s != "failed" {
		t.Errorf("it is %s", s)
	}
}

// INV-10: what a stop interrupts is handed back, and its attempt is not charged.
func TestCLIStopHandsBack(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	fill(t, db.Pool, "acme", "q", 5, 10)
	cmd := sweepCall{dsn: db.DSN, args: []string{"run", "--slots", "2", "--share", "1", "--sink", "exec:sleep 60"}}.start(t)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, db.Pool, "select count(*) = 5 from outbox.claimed")
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	again := time.NewTicker(200 * time.Millisecond) // one that comes right after the first counts as the same
	defer again.Stop()
	for stopped := false; !stopped; {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		select {
		case <-ended:
			stopped = true
		case <-again.C:
		}
	}
	if code := cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit %d\n%s", code, stderr.String())
	}
	wantUntouched(t, db, 5)
	if n := one[int](t, db.Pool, "select count(*) from outbox.node"); n != 0 {
		t.Error("the node did not leave")
	}
}
