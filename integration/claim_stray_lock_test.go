package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// strayTake takes advisory locks of the outbox's claims, as any role can.
func strayTake(t *testing.T, conn *pgx.Conn, keys ...int) {
	t.Helper()
	class := one[int](t, conn, `select c.oid::int from pg_class as c where c.oid = 'outbox.pending'::regclass`)
	for _, key := range keys {
		run(t, conn, fmt.Sprintf(`select pg_advisory_lock(%d, %d)`, class, key))
	}
}

// strayTold wants the stranger named, with the way to be rid of it, by everything that an
// operator asks.
func strayTold(t *testing.T, conn *pgx.Conn, holder, remedy string) {
	t.Helper()
	for what, sql := range map[string]string{
		"claim_obstacles": `select o.session || ' ' || o.remedy from outbox.claim_obstacles() as o`,
		"check":           `select c.subject || ' ' || c.hint from outbox.check() as c where c.detail like 'holds the locks of shards 0, %'`,
		"explain_claim":   `select e.reason from outbox.explain_claim('node', outbox.all_shards(), 10) as e where e.reason like 'shards 0, %'`,
		"why": `select w.reason from (select m.dispatch_key from outbox.messages as m where m.shard = 0 and m.status = 'pending' limit 1) as m
			cross join lateral outbox.why(m.dispatch_key) as w`,
	} {
		if text := one[string](t, conn, sql); !strings.Contains(text, holder) || !strings.Contains(text, remedy) {
			t.Errorf("%s says %q, without %q or %q", what, text, holder, remedy)
		}
	}
}

// TestStrayLock: a role without any right takes the locks of half of the shards, of a node and of the
// sharing-out. Claims never wait for it and serve the other shards (INV-11); everything that an operator
// asks says who it is and how to be rid of it, and says nothing of those who claim.
func TestStrayLock(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(1, 1, 400, 1))
	a, b := withoutWaiting(t, db.Connect(t)), withoutWaiting(t, db.Connect(t))
	open := begin(t, b)
	run(t, open, `select outbox.claim_fair('open', '{15}', 1)`)
	if n := one[int](t, a, `select count(*)::int from outbox.claim_obstacles()`); n != 0 {
		t.Errorf("a claim is taken for %d strangers", n)
	}
	if n := one[int](t, a, `select count(*)::int from outbox.claim_obstacles(claims => true) as o where o.shards = '{15}'`); n != 1 {
		t.Errorf("a claim that is under way is listed %d times, want 1", n)
	}
	of15 := one[string](t, a, `select m.dispatch_key from outbox.messages as m where m.shard = 15 and m.status = 'pending' limit 1`)
	pid := one[int](t, open, `select pg_backend_pid()`)
	if got, want := one[string](t, a, `select w.reason from outbox.why($1) as w`, of15), fmt.Sprintf("; a claim of pid %d", pid); !strings.Contains(got, want) || !strings.Contains(got, "holds its shard 15 until its transaction ends") {
		t.Errorf("why says %q of a claim that is left open", got)
	}
	commit(t, open)
	if got := one[string](t, a, `select w.reason from outbox.why($1) as w`, of15); strings.Contains(got, "holds its shard") {
		t.Errorf("why says %q of a claim that has ended", got)
	}
	cancel := begin(t, b)
	run(t, cancel, `select outbox.cancel('{1.1.400}')`)
	if n := one[int](t, a, `select count(*)::int from outbox.claim_obstacles()`); n != 0 {
		t.Error("a cancel is taken for a stranger")
	}
	commit(t, cancel)

	stranger := db.Connect(t, pgtest.Param("application_name", "stranger"))
	strayTake(t, stranger, append(longShards()[:8], one[int](t, a, `select outbox.node_lock('held')`), 1025)...)
	rows := claimOn(t, a, "node", longShards(), 50)
	wantClaimed(t, "a claim beside the stranger", rows, 50)
	for _, r := range rows {
		if r.Shard < 8 {
			t.Errorf("message %d is claimed from shard %d, which the stranger holds", r.ID, r.Shard)
		}
	}
	wantClaimed(t, "a claim by the name that it holds", claimOn(t, a, "held", longShards(), 50), 0)
	if n := one[int](t, a, `select cardinality(h.owned) from outbox.heartbeat('node') as h`); n != 0 {
		t.Errorf("a heartbeat was given %d shards while somebody else has the lock of the sharing-out", n)
	}
	strayTold(t, a, "(stranger, ", fmt.Sprintf("select pg_terminate_backend(%d)", stranger.PgConn().PID()))
	if out := sweep(t, db.DSN, "nodes"); !strings.Contains(out, "(those of shards 0-7, 2 other locks)") {
		t.Errorf("sweep nodes does not name the stranger:\n%s", out)
	}
	if err := stranger.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, a, `select count(*) = 0 from outbox.claim_obstacles()`)
	wantClaimed(t, "a claim when the stranger has gone", claimOn(t, a, "held", longShards()[:8], 50), 50)
}

// TestStrayLockBrief: a claim that ends gives its locks on tables back first, and on a busy machine the others
// a moment later. Whoever holds only locks of claims for so long is not named.
func TestStrayLockBrief(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(1, 1, 1, 1))
	a, ending := db.Connect(t), db.Connect(t)
	eventually(t, "a lock that is soon given back is no stranger's", func() bool {
		done := make(chan error)
		go func() {
			_, err := ending.Exec(t.Context(), `select pg_advisory_xact_lock('outbox.pending'::regclass::oid::int, 0), pg_sleep(0.1)`)
			done <- err
		}()
		await(t, a, `select count(*) = 1 from pg_locks as l where l.locktype = 'advisory' and l.classid = 'outbox.pending'::regclass`)
		n := one[int](t, a, `select count(*)::int from outbox.claim_obstacles()`)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		return n == 0
	})
}

// TestPurgeBesideASettle: a purge waits for a message that somebody settles in a transaction of his own for a bounded
// time, and then says what it may be.
func TestPurgeBesideASettle(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(1, 1, 1, 1)+`select outbox.configure('{"claim_idle_timeout": "200 ms"}')`)
	conn := db.Connect(t)
	rows := claimOn(t, conn, "n", longShards(), 10)
	open := begin(t, conn)
	settleAll(t, open, "complete", rows)
	sweepFails(t, db.DSN, 1, []string{"purge", "ns1", "--yes"}, "purge: a lock was not granted within 400ms", "changes in a long transaction")
	commit(t, open)
	wantTexts(t, "afterwards", sweep(t, db.DSN, "purge", "ns1", "--yes"), "purged 1 message")
}

// TestCommandsWaitABoundedTime: commands that change something wait for whoever changes the same in a transaction of
// his own for a bounded time, and then say what it may be.
func TestCommandsWaitABoundedTime(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(1, 1, 2, 1)+`
		select outbox.configure('{"claim_idle_timeout": "200 ms"}');
		select outbox.enqueue('ns1', 'q1', 'dead', ''), outbox.enqueue('ns1', 'q1', 'late', '', delay => '1 day')`)
	conn := db.Connect(t)
	rows := claimOn(t, conn, "n", longShards(), 10)
	settleAll(t, conn, "fail", rows)
	run(t, conn, `select outbox.pause('ns1'); select outbox.set_quota('ns1', 5)`)
	for _, c := range []struct {
		open string // a transaction that is left open
		args []string
		what string
	}{
		{`select outbox.retry_now('{late}'::text[])`, []string{"retry", "late"}, "retry"},
		{`select outbox.cancel('{late}')`, []string{"cancel", "late"}, "cancel"},
		{`select outbox.cancel('{late}')`, []string{"cancel", "--namespace", "ns1", "--yes"}, "cancel"},
		{`select outbox.redrive('ns1', 10)`, []string{"redrive", "dead"}, "redrive"},
		{`select outbox.resume('ns1')`, []string{"pause", "ns1"}, "pause"},
		{`select outbox.resume('ns1')`, []string{"resume", "ns1"}, "resume"},
		{`select outbox.set_quota('ns1', 6)`, []string{"quota", "ns1", "7"}, "set the quota"},
	} {
		open := begin(t, conn)
		run(t, open, c.open)
		sweepFails(t, db.DSN, 1, c.args, c.what+": a lock was not granted within 400ms")
		if err := open.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		sweep(t, db.DSN, c.args...)
	}
}

// TestStrayPrepared: a transaction that was prepared with a claim in it holds its shards and its
// node's name until somebody ends it; from claim_idle_timeout on it is named as forgotten.
func TestStrayPrepared(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(1, 1, 400, 1)+`select outbox.configure('{"claim_idle_timeout": "10 min"}')`)
	conn := withoutWaiting(t, db.Connect(t))
	if one[string](t, conn, `select current_setting('max_prepared_transactions')`) == "0" {
		t.Skip("max_prepared_transactions is 0 here: no transaction can be prepared")
	}
	run(t, conn, `begin isolation level read committed`)
	rows := claimOn(t, conn, "node", longShards(), 10)
	gid := "forgotten " + one[string](t, conn, `select current_database()::text`)
	run(t, conn, fmt.Sprintf(`prepare transaction '%s'`, gid))
	t.Cleanup(func() { _, _ = conn.Exec(context.Background(), fmt.Sprintf(`rollback prepared '%s'`, gid)) })

	wantClaimed(t, "a claim beside it", claimOn(t, conn, "other", longShards(), 10), 0)
	if n := one[int](t, conn, `select count(*)::int from outbox.claim_obstacles()`); n != 0 {
		t.Errorf("%d strangers while the transaction may still be committed", n)
	}
	run(t, conn, `select outbox.configure('{"claim_idle_timeout": "100 ms"}')`)
	await(t, conn, `select count(*) = 1 from outbox.claim_obstacles()`)
	strayTold(t, conn, fmt.Sprintf("transaction '%s', prepared by ", gid), fmt.Sprintf("rollback prepared '%s'", gid))
	run(t, conn, fmt.Sprintf(`commit prepared '%s'`, gid))
	if n := one[int](t, conn, `select count(*)::int from outbox.claimed as c where c.id = any ($1)`, idsOf(rows)); n != len(rows) {
		t.Errorf("%d of %d rows of the prepared claim are claimed after its commit", n, len(rows))
	}
	wantClaimed(t, "a claim when it has ended", claimOn(t, conn, "node", longShards(), 10), 10)
}

// TestStrayLockOnce: sweep once, which a stranger shuts out, fails and says whose locks these are.
func TestStrayLockOnce(t *testing.T) {
	t.Parallel()
	db := setUp(t, `select outbox.configure('{"claim_idle_timeout": "200 ms"}');`+longBacklog(3, 1, 10, 1))
	stranger := db.Connect(t, pgtest.Param("application_name", "stranger"))
	strayTake(t, stranger, longShards()...)
	sweepFails(t, db.DSN, 1, []string{"once", "--sink", "stdout"}, "other claims hold the shards",
		fmt.Sprintf("select pg_terminate_backend(%d)", stranger.PgConn().PID()))
}

// TestStrayFoldLock: a role without any right, or a prepared transaction with a hold in it, has the lock of destinations.
// Claims go on, and everything says what stands still; commands that need the lock name the holder and end.
func TestStrayFoldLock(t *testing.T) {
	t.Parallel()
	db := setUp(t, `select outbox.configure('{"claim_idle_timeout": "200 ms"}'), outbox.enqueue('a', 'q', 'k', '')`)
	conn := db.Connect(t)
	told := func(holder, remedy string) {
		t.Helper()
		await(t, conn, `select count(*) = 1 from outbox.claim_obstacles()`)
		if got, want := one[string](t, conn, `select c.detail from outbox.check() as c where c.guarantee = 'locks'`),
			"holds the lock of destinations, and is not claiming: no destination becomes held and no hold ends, while claims go on"; got != want {
			t.Errorf("check says %q, want %q", got, want)
		}
		for _, command := range []string{"nodes", "status"} {
			if out := sweep(t, db.DSN, command); !strings.Contains(out, remedy) || !strings.Contains(out, "destinations") || strings.Contains(out, "nothing is claimed from its") {
				t.Errorf("sweep %s does not say what stands still:\n%s", command, out)
			}
		}
		for _, args := range [][]string{{"hold", "a", "--queue", "q"}, {"lift", "--all", "--queue", "q"}, {"purge", "gone", "--yes"}} {
			sweepFails(t, db.DSN, 1, args, args[0]+": a lock was not granted within 400ms: it is held by "+holder, "To end it: "+remedy)
		}
	}
	stranger := db.Connect(t, pgtest.Param("application_name", "stranger"))
	strayTake(t, stranger, 1027)
	ui := serveUI(t, db.DSN, "--actions")
	wantTexts(t, "the pages", ui.page(t, "/"), "what needs them stands still")
	if answer, body := ui.send(t, "POST", "/lift", formOf("namespace", "a", "route", "q"), nil); answer.StatusCode != 503 || !strings.Contains(body, "Somebody is in the way") {
		t.Errorf("the page that lifts answers %d:\n%s", answer.StatusCode, body)
	}
	told(fmt.Sprintf("pid %d (stranger, ", stranger.PgConn().PID()), fmt.Sprintf("select pg_terminate_backend(%d)", stranger.PgConn().PID()))
	if err := stranger.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, conn, `select count(*) = 0 from outbox.claim_obstacles()`)
	wantTexts(t, "without the stranger", sweep(t, db.DSN, "hold", "a", "--queue", "q"), "is held until it is lifted")

	if one[string](t, conn, `select current_setting('max_prepared_transactions')`) == "0" {
		t.Skip("max_prepared_transactions is 0 here: no transaction can be prepared")
	}
	gid := "held " + one[string](t, conn, `select current_database()::text`)
	run(t, conn, fmt.Sprintf(`begin isolation level read committed; select outbox.hold('a', 'other'); prepare transaction '%s'`, gid))
	rollback := fmt.Sprintf("rollback prepared '%s'", gid)
	t.Cleanup(func() { _, _ = conn.Exec(context.Background(), rollback) })
	told(fmt.Sprintf("transaction '%s', prepared by ", gid), rollback)
	wantClaimed(t, "a claim beside it", claimOn(t, conn, "node", longShards(), 10), 0)
	run(t, conn, rollback)
	wantTexts(t, "without it", sweep(t, db.DSN, "lift", "a", "--queue", "q"), "lifted the hold")
}
