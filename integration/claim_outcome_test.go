package integration

import (
	"bufio"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/driver/node"
)

// claimOutcome claims in a transaction of its own, and returns how many rows that brought and how
// it ended.
func claimOutcome(t *testing.T, conn *pgx.Conn, node string, batch int) (rows int, outcome string) {
	t.Helper()
	tx := begin(t, conn)
	rows = len(claimOn(t, tx, node, longShards(), batch))
	outcome = one[string](t, tx, `select current_setting('outbox.claim_outcome')`)
	commit(t, tx)
	return rows, outcome
}

// TestClaimOutcome: a claim says how it ended, so that its caller knows when to claim again.
func TestClaimOutcome(t *testing.T) {
	t.Parallel()
	db := setUp(t, ringByName+`select outbox.configure('{"max_visits": 4}');`+longBacklog(10, 1, 2, 1)+
		`update outbox.pending as p set visible_after = 'infinity' where p.namespace <> 'ns10'`)
	conn, other := withoutWaiting(t, db.Connect(t)), withoutWaiting(t, db.Connect(t))
	want := func(what, node string, batch, rows int, outcome string) {
		t.Helper()
		if n, got := claimOutcome(t, conn, node, batch); n != rows || got != outcome {
			t.Errorf("%s: %d rows, %q, want %d, %q", what, n, got, rows, outcome)
		}
	}
	// By name: ns1, ns10, ns2 ... ns9.
	want("some, and there is more to look at", "node", 5, 2, "cut")
	want("none, likewise", "node", 5, 0, "cut")
	want("none, past the end", "node", 5, 0, "cut_past_end")

	open := begin(t, other)
	run(t, open, `select outbox.claim_fair('node', '{0}', 1)`)
	want("beside a claim of the node", "node", 5, 0, "shut_out")
	want("beside a claim of a shard", "another", 5, 0, "cut")
	run(t, conn, `delete from outbox.pending as p where p.namespace > 'ns10'`)
	want("nothing on the other shards", "another", 5, 0, "shut_out")
	commit(t, open)
	want("nothing at all", "another", 5, 0, "all_round")
	put(t, conn, "ns1", "q1", "new")
	want("a message", "another", 5, 1, "served")
	want("no shards", "another", 5, 0, "all_round")
}

// TestLateCommitIsNotAllRound: a claim does not say that nothing is due while a message is that was committed
// long after it had come due, behind the edge from which claims look for such messages.
func TestLateCommitIsNotAllRound(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(1, 1, 1, 1))
	conn := withoutWaiting(t, db.Connect(t))
	claimOutcome(t, conn, "node", 5)
	producer := begin(t, db.Connect(t))
	run(t, producer, `select outbox.enqueue('late', 'q', 'late', '', delay => '1 ms')`)
	run(t, producer, `select pg_sleep(0.3)`) // the edge stays 100 ms behind
	put(t, conn, "ns1", "q1", "meanwhile")
	claimOutcome(t, conn, "node", 5)
	commit(t, producer)
	if rows, outcome := claimOutcome(t, conn, "node", 5); rows == 0 && outcome != "cut" {
		t.Errorf("a message is due, and the claim says %q", outcome)
	} else if rows == 0 {
		if rows, outcome = claimOutcome(t, conn, "node", 5); rows != 1 {
			t.Errorf("the claim after that: %d rows, %q", rows, outcome)
		}
	}
}

// TestOnceLooksAtAll: sweep once delivers a message behind more idle namespaces than a claim
// visits, and ends when it has come past all of them.
func TestOnceLooksAtAll(t *testing.T) {
	t.Parallel()
	db := setUp(t, `select outbox.configure('{"max_visits": 3}');`+longBacklog(40, 1, 1, 1)+`
		update outbox.pending as p set visible_after = 'infinity' where p.namespace <> 'ns9'`)
	sweep(t, db.DSN, "once", "--sink", "stdout")
	if state := one[string](t, db.Pool, `select w.state from outbox.why('9.1.1') as w`); state != "done" {
		t.Errorf("the message behind the idle ones is %s", state)
	}
	sweep(t, db.DSN, "once", "--sink", "stdout") // and ends where there is nothing to do
}

// TestOnceIsShutOut: sweep once waits for a claim of others that has all shards, and delivers then.
func TestOnceIsShutOut(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(1, 1, 5, 1)+`select outbox.pause('ns1')`)
	open := begin(t, withoutWaiting(t, db.Connect(t)))
	claimOn(t, open, "other", longShards(), 5)
	call := sweepCall{dsn: db.DSN, args: []string{"once", "--sink", "stdout", "--node", "once"}}
	cmd := call.start(t)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	log := bufio.NewScanner(stderr)
	for log.Scan() && !strings.Contains(log.Text(), "trying again") {
	}
	if log.Text() == "" {
		t.Error("sweep once ended without a word that it was shut out")
	}
	run(t, db.Connect(t), `select outbox.resume('ns1')`)
	commit(t, open)
	for log.Scan() {
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if n := one[int](t, db.Pool, `select count(*)::int from outbox.settled as s where s.outcome = 'done'`); n != 5 {
		t.Errorf("%d of 5 messages were delivered", n)
	}
}

// TestOnceIsShutOutForGood: where others hold the shards for longer than a claim may be left open, sweep once
// says so and fails.
func TestOnceIsShutOutForGood(t *testing.T) {
	t.Parallel()
	db := setUp(t, `select outbox.configure('{"claim_idle_timeout": "200 ms"}');`+longBacklog(1, 1, 5, 1))
	open := begin(t, db.Connect(t))
	claimOn(t, open, "other", longShards(), 5)
	stop := make(chan struct{})
	go func() { // busy, and so not idle
		defer close(stop)
		_, _ = open.Exec(t.Context(), `select pg_sleep($1)`, patience().Seconds())
	}()
	sweepFails(t, db.DSN, 1, []string{"once", "--sink", "stdout"}, "other claims hold the shards")
	if err := open.Conn().PgConn().CancelRequest(t.Context()); err != nil {
		t.Error(err)
	}
	<-stop
}

// TestRunLooksAtAll: a node delivers a message behind more idle namespaces than a claim visits
// without waiting for its tick.
func TestRunLooksAtAll(t *testing.T) {
	t.Parallel()
	db := setUp(t, `select outbox.configure('{"max_visits": 3}');`+longBacklog(40, 1, 1, 1)+`
		update outbox.pending as p set visible_after = 'infinity' where p.namespace <> 'ns9'`)
	startNode(t, newNode(t, db, &collector{}, func(c *node.Config) { c.Tick = time.Hour }))
	await(t, db.Pool, `select w.state = 'done' from outbox.why('9.1.1') as w`)
}

// TestClaimWhereNothingCanBeWritten: on a standby, or under default_transaction_read_only, a claim says so by its name.
func TestClaimWhereNothingCanBeWritten(t *testing.T) {
	t.Parallel()
	conn := setUp(t, longBacklog(1, 1, 5, 1)).Connect(t)
	run(t, conn, "set default_transaction_read_only = on")
	_, err := conn.Exec(t.Context(), "select outbox.claim_fair('n', outbox.all_shards(), 1)")
	wantError(t, err, "25006", "outbox.claim_fair: the transaction is read-only", "primary")
	if got := one[int](t, conn, "select due from outbox.explain_claim('n', outbox.all_shards(), 1)"); got != 5 {
		t.Errorf("explain_claim says that %d are due, want 5", got)
	}
}
