package integration

import (
	"bytes"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// INV-10: a message that kills its worker is suspect after the first time, and charged each time
// after that, and ends as failed.
func TestCLIMessageThatKillsItsWorker(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, `select outbox.configure('{"max_attempts": 3}')`)
	put(t, db.Pool, "acme", "q", "poison")
	for death := range 4 {
		got := sweepCall{dsn: db.DSN, args: []string{"once", "--sink", `exec:sh -c 'kill -9 $PPID; sleep 5'`}}.do(t)
		if got.code != -1 { // ended by a signal
			t.Fatalf("death %d: exit %d\n%s", death, got.code, got.stderr)
		}
		if n := one[int](t, db.Pool, "select attempt from outbox.claimed"); n != max(death, 1) {
			t.Fatalf("attempt %d, want %d", n, max(death, 1))
		}
		expire(t, db.Pool, "acme")
	}
	sweep(t, db.DSN, "once", "--sink", "stdout")
	if s := one[string](t, db.Pool, "select status from outbox.messages"); s != "failed" {
		t.Errorf("it is %s", s)
	}
}

// INV-10: a message that kills its node takes no other along, whatever was claimed with it: nodes
// that are started again and again deliver all of the others, and make it a dead letter
// once it has killed max_attempts of them alone.
func TestCLIMessageThatKillsItsNodeBesideOthers(t *testing.T) {
	t.Parallel()
	for name, healthy := range map[string]int{"few": 20, "more than a company": 60} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pg.New(t)
			run(t, db.Pool, `select outbox.configure('{"max_attempts": 3}')`)
			put(t, db.Pool, "poison", "q", "k0")
			for i := range healthy {
				put(t, db.Pool, fmt.Sprint("tenant", i), "q", fmt.Sprint("healthy", i))
			}
			deaths := 0
			for one[bool](t, db.Pool, "select exists (select from outbox.pending union all select from outbox.claimed)") {
				got := sweepCall{dsn: db.DSN, args: []string{"once", "--sink", `exec:sh -c 'cat >/dev/null; test "$FAIRCLAIM_DISPATCH_KEY" != k0 || kill -9 $PPID'`}}.do(t)
				if got.code != 0 && got.code != -1 {
					t.Fatalf("exit %d\n%s", got.code, got.stderr)
				}
				if got.code == -1 {
					deaths++
				}
				if deaths > 10 {
					t.Fatal("it goes on killing")
				}
				run(t, db.Pool, "update outbox.claimed set lease_until = '2020-01-01'")
			}
			wantOutcomes(t, db.Pool, map[string]int{"done": healthy, "failed": 1})
			if n := one[int](t, db.Pool, "select attempts from outbox.settled where outcome = 'failed' and namespace = 'poison'"); n != 3 {
				t.Errorf("the poisonous message has %d attempts, want 3", n)
			}
			if n := one[int](t, db.Pool, "select coalesce(max(attempts), 0) from outbox.settled where outcome = 'done'"); n != 1 {
				t.Errorf("a healthy one was charged: %d attempts", n)
			}
			t.Logf("%d nodes died", deaths)
		})
	}
}

// INV-10: a message that kills its node while the node reads it is charged and fails at last,
// and keeps nobody else's from being delivered meanwhile.
func TestCLIMessageThatKillsItsNodeWhenRead(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, `select outbox.configure('{"max_attempts": 2, "max_payload_bytes": 10000000}')`)
	run(t, db.Pool, "select outbox.enqueue('giant', 'q', 'giant', convert_to(repeat('x', 5000000), 'UTF8'))")
	for i := range 20 {
		put(t, db.Pool, fmt.Sprint("tenant", i), "q", fmt.Sprint("small", i))
	}
	proxy := pgtest.NewProxy(t, db.DSN)
	deaths := 0
	for one[bool](t, db.Pool, "select exists (select from outbox.pending union all select from outbox.claimed)") {
		cmd := sweepCall{dsn: proxy.DSN(db.DSN), args: []string{"once", "--sink", "stdout"}}.start(t)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		proxy.After(4_000_000, func() { _ = cmd.Process.Kill() }) // it has no memory for more
		if err := cmd.Wait(); err != nil {
			deaths++
		}
		if deaths > 10 {
			t.Fatal("it goes on dying")
		}
		run(t, db.Pool, "update outbox.claimed set lease_until = '2020-01-01'")
	}
	wantOutcomes(t, db.Pool, map[string]int{"done": 20, "failed": 1})
	if n := one[int](t, db.Pool, "select attempts from outbox.settled where outcome = 'failed' and namespace = 'giant'"); n != 2 {
		t.Errorf("the giant has %d attempts, want 2", n)
	}
	t.Logf("%d nodes died", deaths)
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
