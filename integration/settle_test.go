package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// settles are the calls that take ids and tokens, and what each makes of a message.
var settles = map[string]string{
	"complete": "done", "retry": "pending", "fail": "failed", "release": "pending", "extend": "claimed",
}

// TestSettleFencing proves INV-9: a settle with an old token changes nothing and is
// reported as lost, also when the same node has claimed the message again.
func TestSettleFencing(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	for how := range settles {
		for name, lose := range map[string]func(old claimRow){
			"rescued":   func(claimRow) { expire(t, conn, "n"); run(t, conn, "select outbox.rescue()") },
			"retried":   func(old claimRow) { settle(t, conn, "retry", old.ID, old.Token) },
			"released":  func(old claimRow) { settle(t, conn, "release", old.ID, old.Token) },
			"completed": func(old claimRow) { settle(t, conn, "complete", old.ID, old.Token) },
			"cancelled": func(old claimRow) { run(t, conn, "select outbox.cancel(array[$1])", old.Key) },
			"redriven": func(old claimRow) {
				settle(t, conn, "fail", old.ID, old.Token)
				run(t, conn, "select outbox.redrive(array[$1::bigint])", old.ID)
			},
			"redriven 2": func(old claimRow) {
				settle(t, conn, "fail", old.ID, old.Token)
				run(t, conn, "select outbox.redrive('n')")
			},
		} {
			put(t, conn, "n", "q", fmt.Sprint(how, name))
			old := claimOne(t, conn, "n1")
			lose(old)
			if settle(t, conn, how, old.ID, old.Token) {
				t.Errorf("%s of a message that was %s was settled, want lost", how, name)
			}
			run(t, conn, "update outbox.pending set visible_after = clock_timestamp()")
			for _, again := range claim(t, conn, "n1", 10) { // by the same node
				if again.Token <= old.Token {
					t.Errorf("token %d came after %d", again.Token, old.Token)
				}
				before := hotRow(t, conn, old.ID)
				if settle(t, conn, how, old.ID, old.Token) {
					t.Errorf("%s with the token of the claim before was settled, want lost (%s)", how, name)
				}
				if after := hotRow(t, conn, old.ID); after != before {
					t.Errorf("%s with an old token changed %s to %s", how, before, after)
				}
				if !settle(t, conn, how, again.ID, again.Token) {
					t.Errorf("%s with the right token was lost (%s)", how, name)
				}
				if got := status(t, conn, again.ID); got != settles[how] {
					t.Errorf("after %s the message is %s, want %s", how, got, settles[how])
				}
			}
			run(t, conn, "delete from outbox.pending")
			run(t, conn, "delete from outbox.claimed")
		}
	}
}

// hotRow is a message's hot row as bytes, with the place where it stands.
func hotRow(t *testing.T, q querier, id int64) string {
	t.Helper()
	return one[string](t, q, `select concat_ws(' ',
		(select format('pending %s %s %s', p.ctid, p.xmin, p) from outbox.pending as p where p.id = $1),
		(select format('claimed %s %s %s', c.ctid, c.xmin, c) from outbox.claimed as c where c.id = $1),
		(select format('settled %s %s %s', s.ctid, s.xmin, s) from outbox.settled as s where s.id = $1))`, id)
}

// TestHeldRowsAreUntouched proves INV-8: rows that a claim holds back, for whatever
// reason, are not written.
func TestHeldRowsAreUntouched(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	run(t, conn, "select outbox.enqueue(n, 'q', n || g, '') from unnest(array['capped', 'paused', 'zero', 'strict', 'served']) as n, generate_series(1, 20) as g")
	run(t, conn, "select outbox.enqueue('served', 'held', 'r' || g, '') from generate_series(1, 20) as g")
	run(t, conn, "select outbox.enqueue('future', 'q', 'f' || g, '', delay => '1 h') from generate_series(1, 20) as g")
	run(t, conn, "select outbox.set_quota('capped', 2), outbox.set_quota('zero', 0), outbox.set_quota('strict', 2, true)")
	run(t, conn, "select outbox.pause('paused'), outbox.pause('served', 'held')")
	const rows = "select format('%s %s %s', p.ctid, p.xmin, p) from outbox.pending as p where p.namespace <> 'served' or p.task_queue = 'held' order by p.id"
	claim(t, conn, "n1", 50) // brings the capped ones to their ceiling
	before := list[string](t, conn, rows)
	for i := range 5 {
		put(t, conn, "served", "q", fmt.Sprint("more ", i))
		claimOne(t, conn, "n1") // it works around the held ones
		list[string](t, conn, "select reason from outbox.explain_claim('n1', outbox.all_shards(), 50)")
		list[string](t, conn, "select w.reason from outbox.message as m, outbox.why(m.dispatch_key) as w")
		run(t, conn, "select outbox.rescue(), outbox.prune('0')")
	}
	if after := list[string](t, conn, rows); !slices.Equal(before, after) {
		t.Errorf("held rows were written:\n%s\n%s", before, after)
	}
	if len(before) != 116 {
		t.Errorf("%d rows were held, want 116", len(before))
	}
}

// TestSettleArguments: empty arrays settle nothing, ids given twice are settled once,
// unknown ids and null elements are lost, and what does not pair up is an OB001, as
// are bad arguments of every other call.
func TestSettleArguments(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	for how, want := range settles {
		if got := list[int64](t, conn, "select outbox."+how+"('{}', '{}')"); len(got) != 0 {
			t.Errorf("%s of nothing gave %v", how, got)
		}
		first, second := put(t, conn, "n", "q", how+"1"), put(t, conn, "n", "q", how+"2")
		rows := claim(t, conn, "n1", 10)
		token := rows[0].Token
		got := list[int64](t, conn, "select outbox."+how+"(array[$1,$2,$1,$1,999999,null]::bigint[], array[$3,$3,$3,0,$3,null]::bigint[])", second, first, token)
		slices.Sort(got)
		if !slices.Equal(got, []int64{first, second}) {
			t.Errorf("%s settled %v, want %d and %d", how, got, first, second)
		}
		if got := status(t, conn, first); got != want {
			t.Errorf("after %s the message is %s, want %s", how, got, want)
		}
		for _, c := range []struct{ argument, args string }{
			{"ids", "null, '{1}'"}, {"tokens", "'{1}', null"}, {"tokens has 2 elements, ids has 1", "'{1}', '{1,2}'"}, {"tokens", "'{1}', '{}'"},
		} {
			_, err := conn.Exec(t.Context(), "select outbox."+how+"("+c.args+")")
			wantError(t, err, "OB001", how, c.argument)
		}
		run(t, conn, "delete from outbox.pending")
		run(t, conn, "delete from outbox.claimed")
	}
	for _, c := range []struct{ argument, call string }{
		{"node", "claim_fair(null, '{0}', 1)"},
		{"node", "claim_fair('', '{0}', 1)"},
		{"shards", "claim_fair('n1', null, 1)"},
		{"shards has -1", "claim_fair('n1', '{3,-1}', 1)"},
		{"shards has 16, outside 0 to 15", "claim_fair('n1', '{16}', 1)"},
		{"shards has a null element", "claim_fair('n1', '{0,null}', 1)"},
		{"batch is null", "claim_fair('n1', '{0}', null)"},
		{"batch", "explain_claim('n1', '{0}', 0)"},
		{"errors", "retry('{1}', '{1}', '{a,b}')"},
		{"delays", "retry('{1}', '{1}', '{a}', '{}')"},
		{"errors", "fail('{1}', '{1}', '{}')"},
		{"lease", "extend('{1}', '{1}', '-1 s')"},
		{"lease", "extend('{1}', '{1}', '0')"},
		{"lease", "extend('{1}', '{1}', '25 h')"},
		{"max", "rescue(0)"},
		{"max", "rescue(null)"},
		{"max", "prune('1 s', 0)"},
		{"older_than", "prune('-1 s')"},
		{"dispatch_keys", "cancel(null)"},
		{"namespace", "cancel_namespace(null)"},
		{"max", "cancel_namespace('n', 0)"},
		{"ids", "redrive(null::bigint[])"},
		{"namespace", "redrive(null::text)"},
		{"max", "redrive('n', 0)"},
		{"dispatch_keys", "retry_now(null::text[])"},
		{"namespace", "retry_now(null::text)"},
		{"namespace", "retry_now('')"},
		{"max", "retry_now('n', 0)"},
		{"in_namespace", "failed('')"},
		{"in_task_queue", "failed(null, '')"},
		{"max", "failed(max => 0)"},
		{"max", "failed(max => null)"},
		{"newest", "failed(newest => null)"},
		{"after_id", "failed(after_at => now())"},
		{"after_id", "failed('n', after_id => 1)"},
		{"namespace", "purge(null)"},
		{"namespace", "purge('')"},
		{"max", "purge('n', 0)"},
		{"max", "purge('n', null)"},
		{"max", "purge('n', 100001)"},
		{"after", "purge('n', 1, null)"},
		{"dispatch_key", "why(null)"},
		{"node", "heartbeat(null, '{}')"},
		{"shards", "heartbeat('n', '{0,null}')"},
		{"shards", "heartbeat('n', '{16}')"},
		{"shards", "heartbeat('n', '{-1}')"},
		{"node", "leave('')"},
	} {
		_, err := conn.Exec(t.Context(), "select outbox."+c.call)
		wantError(t, err, "OB001", c.argument)
	}
}

// TestExtend: a lease runs on from now, as far as asked, and only while the claim
// stands.
func TestExtend(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	put(t, conn, "n", "q", "k")
	row := claimOne(t, conn, "n1")
	for lease, want := range map[string]string{"null": "60 s", "'1 ms'": "1 ms", "'1 day'": "1 day", "'5 min'": "5 min"} {
		before := one[time.Time](t, conn, "select clock_timestamp()")
		got := list[int64](t, conn, "select outbox.extend(array[$1::bigint], array[$2::bigint], "+lease+")", row.ID, row.Token)
		ok := one[bool](t, conn, "select lease_until between $2::timestamptz + $1::text::interval and clock_timestamp() + $1::text::interval from outbox.claimed", want, before)
		if len(got) != 1 || !ok {
			t.Errorf("extend by %s gave %v", lease, got)
		}
	}
}

// TestCompleteInConsumersTransaction: what a consumer does in the transaction of its
// complete() happens exactly once; rolled back, the message is still claimed and the
// token still good (INV-2).
func TestCompleteInConsumersTransaction(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	run(t, conn, "create table effect (id bigint)")
	id := put(t, conn, "n", "q", "k")
	row := claimOne(t, conn, "n1")
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		tx := beginAt(t, conn, level)
		run(t, tx, "insert into effect values ($1)", id)
		if !settle(t, tx, "complete", id, row.Token) {
			t.Errorf("%s: complete was lost", level)
		}
		if got := status(t, tx, id); got != "done" {
			t.Errorf("%s: inside the transaction it is %s", level, got)
		}
		if level == pgx.Serializable {
			commit(t, tx)
		} else if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		} else if got := status(t, conn, id); got != "claimed" {
			t.Errorf("%s: rolled back it is %s", level, got)
		}
	}
	if got := one[int](t, conn, "select count(*) from effect"); got != 1 || status(t, conn, id) != "done" {
		t.Errorf("%d effects, and it is %s", got, status(t, conn, id))
	}
}

// TestSettleRaces: two sessions settle one claim. The second waits, and has lost;
// rescue and extend wait for nobody, and a settle under way wins (INV-2, INV-9).
func TestSettleRaces(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	first, second, watch := db.Connect(t), impatient(t, db.Connect(t)), db.Connect(t)
	for firstHow := range settles {
		for secondHow := range settles {
			id := put(t, first, "n", "q", firstHow+secondHow)
			row := claimOne(t, first, "n1")
			expire(t, first, "n")
			tx := begin(t, first)
			settle(t, tx, firstHow, id, row.Token)
			if got := list[int64](t, second, "select id from outbox.rescue()"); len(got) != 0 {
				t.Errorf("rescue took a message that %s holds", firstHow)
			}
			waits := secondHow != "extend"
			if !waits {
				if !settle(t, second, "extend", id, row.Token) {
					t.Errorf("a claim that %s is about to end is told lost before it is", firstHow)
				}
				commit(t, tx)
			}
			done := async(t, second, "select (select "+secondHow+" from outbox."+secondHow+"(array[$1::bigint], array[$2::bigint]))", id, row.Token)
			if waits {
				awaitBlocked(t, watch, second.PgConn().PID())
				commit(t, tx)
			}
			got := <-done
			if want := firstHow == "extend"; got.err != nil || (got.value != nil) != want {
				t.Errorf("%s after %s: settled is %v, %v, want %v", secondHow, firstHow, got.value != nil, got.err, want)
			}
			want := settles[firstHow]
			if firstHow == "extend" {
				want = settles[secondHow]
			}
			if got := status(t, first, id); got != want {
				t.Errorf("after %s and %s it is %s, want %s", firstHow, secondHow, got, want)
			}
			run(t, first, "delete from outbox.pending")
			run(t, first, "delete from outbox.claimed")
		}
	}
}

// TestSettlesDoNotDeadlock: settles of the same messages in opposite orders.
func TestSettlesDoNotDeadlock(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	first, second, watch := db.Connect(t), impatient(t, db.Connect(t)), db.Connect(t)
	var ids []int64
	for i := range 3 {
		ids = append(ids, put(t, first, "n", "q", fmt.Sprint(i)))
	}
	token := claim(t, first, "n1", 10)[0].Token
	tx := begin(t, first)
	settle(t, tx, "complete", ids[1], token)
	// In the order given, the second would hold the last message, and wait for the middle.
	done := async(t, second, "select count(*) from outbox.complete(array[$1, $2, $3]::bigint[], array[$4, $4, $4]::bigint[])", ids[2], ids[1], ids[0], token)
	awaitBlocked(t, watch, second.PgConn().PID())
	if !settle(t, tx, "complete", ids[2], token) {
		t.Error("the settle that came first lost a message")
	}
	commit(t, tx)
	if got := <-done; got.err != nil || *got.value != 1 {
		t.Errorf("the second settled %v, %v, want 1", got.value, got.err)
	}
}
