package integration

import (
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
)

// holdFail says of claimed rows, in one call, that their destination failed, and returns how many were settled.
func holdFail(t testing.TB, q querier, kind string, rows ...modelClaimed) int {
	t.Helper()
	var ids, tokens []int64
	for _, r := range rows {
		ids, tokens = append(ids, r.ID), append(tokens, r.Token)
	}
	return one[int](t, q, `select count(*)::int from outbox.fail_destination($1::bigint[], $2, array_fill($3::text, array[cardinality($1)])) as f`, ids, tokens, kind)
}

// holdOver lets the time of all holds be over.
func holdOver(t testing.TB, q querier) {
	t.Helper()
	run(t, q, `update outbox.destination set held_until = clock_timestamp() - interval '1 s' where state = 'held'`)
}

// holdState is the state of a destination, well where it has no row.
func holdState(t testing.TB, q querier, namespace, queue string) string {
	t.Helper()
	return one[string](t, q, `select coalesce((select d.state from outbox.destination as d where d.namespace = $1 and d.task_queue = $2), 'well')`, namespace, queue)
}

// holdHalves are two halves of the shards.
func holdHalves() (low, high []int) { return longShards()[:8], longShards()[8:] }

// holdOf are the rows of one namespace.
func holdOf(rows []modelClaimed, namespace string) []modelClaimed {
	return slices.DeleteFunc(slices.Clone(rows), func(r modelClaimed) bool { return r.Namespace != namespace })
}

// holdTrip makes claims of ns1/q1 fail until it is held.
func holdTrip(t testing.TB, q querier) {
	t.Helper()
	rows := holdOf(claimOn(t, q, "trip", longShards(), 20), "ns1")
	for _, r := range rows[:5] {
		holdFail(t, q, "unreachable", r)
		one[int](t, q, `select count(*)::int from outbox.observe('{ns1}', '{q1}') as o`)
	}
	if got := holdState(t, q, "ns1", "q1"); got != "held" {
		t.Fatalf("INV-16: after five failures it is %s", got)
	}
	settleAll(t, q, "release", rows[5:])
}

// TestHoldInterleaveProbe: of two claims at a hold whose time is over one takes the probe, whether the other
// one comes while it is open or after; where it is rolled back, the next one does (INV-16).
func TestHoldInterleaveProbe(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(2, 1, 100, 1))
	low, high := holdHalves()
	b := withoutWaiting(t, db.Connect(t))
	holdTrip(t, b)
	wantClaimed(t, "while it is held", holdOf(claimOn(t, b, "b", longShards(), 8), "ns1"), 0)
	holdOver(t, b)

	a := begin(t, withoutWaiting(t, db.Connect(t)))
	wantClaimed(t, "the probe", holdOf(claimOn(t, a, "a", low, 8), "ns1"), 1)
	rows := claimOn(t, b, "b", high, 8)
	wantClaimed(t, "beside the open claim with the probe, of others", rows, 8)
	wantClaimed(t, "and of it", holdOf(rows, "ns1"), 0)
	if err := a.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	a = begin(t, withoutWaiting(t, db.Connect(t)))
	probe := holdOf(claimOn(t, a, "a", low, 8), "ns1")
	wantClaimed(t, "the probe, after a rollback", probe, 1)
	wantClaimed(t, "beside it", holdOf(claimOn(t, b, "b", high, 8), "ns1"), 0)
	commit(t, a)
	wantClaimed(t, "after its commit", holdOf(claimOn(t, b, "b", longShards(), 8), "ns1"), 0)

	// Its success, not yet committed, lifts nothing; committed, it does, and one claim at a time takes one.
	consumer := begin(t, withoutWaiting(t, db.Connect(t)))
	if settleAll(t, consumer, "complete", probe) != 1 {
		t.Fatal("the probe was lost")
	}
	wantClaimed(t, "beside an open success", holdOf(claimOn(t, b, "b", longShards(), 8), "ns1"), 0)
	commit(t, consumer)
	a = begin(t, withoutWaiting(t, db.Connect(t)))
	wantClaimed(t, "the first one that reads it", holdOf(claimOn(t, a, "a", low, 8), "ns1"), 1)
	wantClaimed(t, "who does not see that yet", holdOf(claimOn(t, b, "b", high, 8), "ns1"), 0)
	commit(t, a)
	if got := holdState(t, b, "ns1", "q1"); got != "recovering" {
		t.Errorf("INV-16: after the probe's success it is %s", got)
	}
}

// TestHoldInterleaveFold: a claim beside one that is making a hold of reports does not wait, and goes by what is
// committed; where that claim is rolled back, the reports are there still (INV-16, INV-11).
func TestHoldInterleaveFold(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(2, 1, 400, 1))
	low, high := holdHalves()
	b := withoutWaiting(t, db.Connect(t))
	rows := holdOf(claimOn(t, b, "b", longShards(), 20), "ns1")
	for range 2 { // so that there is an edge that could move
		holdFail(t, b, "broken", holdOf(claimOn(t, b, "b", longShards(), 2), "ns2")...)
	}
	claimOn(t, b, "b", longShards(), 1)
	holdFail(t, b, "busy", rows[0])

	a := begin(t, withoutWaiting(t, db.Connect(t)))
	wantClaimed(t, "the claim that reads the report", holdOf(claimOn(t, a, "a", low, 4), "ns1"), 0)
	wantClaimed(t, "the one beside it", holdOf(claimOn(t, b, "b", high, 4), "ns1"), 2)
	if got := list[string](t, b, `select o.state from outbox.observe('{ns1,ns2}', '{q1,q1}') as o order by o.n`); !slices.Equal(got, []string{"unknown", "unknown"}) {
		t.Errorf("observe() beside a claim that reads reports: %v", got)
	}
	if err := a.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := one[int](t, b, `select count(*)::int from outbox.report`); n != 1 {
		t.Fatalf("INV-16: %d reports after the rollback", n)
	}
	wantClaimed(t, "the next one that reads the report", holdOf(claimOn(t, b, "b", longShards(), 4), "ns1"), 0)
	if got := holdState(t, b, "ns1", "q1"); got != "held" {
		t.Errorf("INV-16: a report of a claim that was rolled back is lost: %s", got)
	}
}

// holdEventually claims until what was reported late is read: one claim in ten looks for that. That a
// thousand do not has a probability of 1e-46.
func holdEventually(t testing.TB, q querier, what string, done func() bool) {
	t.Helper()
	for range 1000 {
		claimOn(t, q, "late", longShards(), 1)
		if done() {
			return
		}
	}
	t.Errorf("INV-16: %s was never read", what)
}

// TestHoldInterleaveLate: a report that is committed after later ones were read counts in a claim to come (INV-16).
func TestHoldInterleaveLate(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(3, 1, 2000, 1))
	b := withoutWaiting(t, db.Connect(t))
	rows := claimOn(t, b, "b", longShards(), 30)
	late := begin(t, withoutWaiting(t, db.Connect(t)))
	holdFail(t, late, "gone", holdOf(rows, "ns1")[0])
	holdFail(t, b, "gone", holdOf(rows, "ns2")[0])
	claimOn(t, b, "b", longShards(), 1)
	if got := holdState(t, b, "ns2", "q1"); got != "held" {
		t.Fatalf("what is committed first is %s", got)
	}
	commit(t, late)
	holdEventually(t, b, "a report that was committed late", func() bool { return holdState(t, b, "ns1", "q1") == "held" })
	if n := one[int](t, b, `select count(*)::int from outbox.report`); n != 0 {
		t.Errorf("%d reports are left", n)
	}
}

// TestHoldInterleaveOperator: beside an operator's open transaction no claim waits, and none sees of it before its
// end; the operator waits for the claim that reads reports, and then for nobody (INV-16, INV-11).
func TestHoldInterleaveOperator(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(2, 1, 400, 1))
	b, operator := withoutWaiting(t, db.Connect(t)), impatient(t, db.Connect(t))
	tx := begin(t, operator)
	run(t, tx, `select outbox.hold('ns1', 'q1', '1 h')`)
	rows := claimOn(t, b, "b", longShards(), 8)
	wantClaimed(t, "beside hold() in an open transaction", holdOf(rows, "ns1"), 4)
	holdFail(t, b, "busy", holdOf(rows, "ns2")[0])
	wantClaimed(t, "and reports that nobody can read", holdOf(claimOn(t, b, "b", longShards(), 8), "ns2"), 4)
	one[int](t, b, `select outbox.prune('0')`)
	commit(t, tx)
	wantClaimed(t, "after its commit", claimOn(t, b, "b", longShards(), 8), 0)

	tx = begin(t, operator)
	run(t, tx, `select outbox.lift('ns1', 'q1')`)
	wantClaimed(t, "beside lift() in an open transaction", claimOn(t, b, "b", longShards(), 8), 0)
	commit(t, tx)
	wantClaimed(t, "after its commit", holdOf(claimOn(t, b, "b", longShards(), 8), "ns1"), 1)

	low, high := holdHalves()
	a := begin(t, withoutWaiting(t, db.Connect(t)))
	claimOn(t, a, "a", low, 8)
	done := whileWaiting(t, db, operator, func() error {
		_, err := operator.Exec(t.Context(), `select outbox.lift('ns2', 'q1')`)
		return err
	})
	claimOn(t, b, "b", high, 8) // who waits keeps nobody
	commit(t, a)
	if err := done(); err != nil {
		t.Error(err)
	}
	wantClaimed(t, "lifted", holdOf(claimOn(t, b, "b", high, 8), "ns2"), 1)
}

// TestHoldInterleaveConsumers: consumers in long transactions of their own complete messages of two destinations in
// trouble, in opposite orders, and one says that they failed: nobody waits, nothing is a deadlock (INV-16).
func TestHoldInterleaveConsumers(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(2, 1, 400, 1))
	b := withoutWaiting(t, db.Connect(t))
	rows := claimOn(t, b, "b", longShards(), 40)
	ns1, ns2 := holdOf(rows, "ns1"), holdOf(rows, "ns2")
	holdFail(t, b, "unreachable", ns1[0])
	holdFail(t, b, "unreachable", ns2[0])
	claimOn(t, b, "b", longShards(), 1)
	var open []pgx.Tx
	for i, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		tx := beginAt(t, withoutWaiting(t, db.Connect(t)), level)
		first, second := ns1, ns2
		if i%2 == 1 {
			first, second = ns2, ns1
		}
		settleAll(t, tx, "complete", first[1+3*i:2+3*i])
		settleAll(t, tx, "complete", second[1+3*i:2+3*i])
		holdFail(t, tx, "unreachable", first[2+3*i])
		holdFail(t, tx, "broken", second[2+3*i])
		open = append(open, tx)
		wantClaimed(t, "beside them", claimOn(t, b, "b", longShards(), 4), 4)
		run(t, b, `select outbox.hold('ns1', 'other')`) // an operator neither
	}
	for _, tx := range open {
		commit(t, tx)
	}
	if n := one[int](t, b, `select count(*)::int from outbox.report`); n != 12 {
		t.Errorf("INV-16: %d reports of 12", n)
	}
	wantEachOnce(t, db)
}

// TestHoldInterleaveSettles: of a message that somebody else is settling, fail_destination() reports nothing once
// that is committed; what it settles is lost for others (INV-9, INV-16).
func TestHoldInterleaveSettles(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"complete", "retry", "release", "cancel", "rescue"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			db := setUp(t, longBacklog(1, 1, 4, 1))
			b := impatient(t, db.Connect(t))
			rows := claimOn(t, b, "b", longShards(), 1)
			call := fmt.Sprintf(`select count(*)::int from outbox.%s(array[%d::bigint], array[%d::bigint]) as x`, how, rows[0].ID, rows[0].Token)
			switch how {
			case "cancel":
				call = fmt.Sprintf(`select count(*)::int from outbox.cancel(array[(select m.dispatch_key from outbox.message as m where m.id = %d)]) as x`, rows[0].ID)
			case "rescue":
				run(t, b, `update outbox.claimed set lease_until = clock_timestamp() - interval '1 s'`)
				call = `select count(*)::int from outbox.rescue(1000) as x`
			}
			// The other one first.
			a := begin(t, db.Connect(t))
			if n := one[int](t, a, call); n != 1 {
				t.Fatalf("%s settled %d", how, n)
			}
			settled := -1
			done := whileWaiting(t, db, b, func() error {
				return b.QueryRow(t.Context(), `select count(*)::int from outbox.fail_destination(array[$1::bigint], array[$2::bigint], '{unreachable}') as f`,
					rows[0].ID, rows[0].Token).Scan(&settled)
			})
			commit(t, a)
			if err := done(); err != nil || settled != 0 {
				t.Errorf("INV-9: fail_destination() after %s settled %d: %v", how, settled, err)
			}
			if n := one[int](t, b, `select count(*)::int from outbox.report`); n != 0 {
				t.Errorf("INV-16: %d reports of what was lost", n)
			}
			// And after the failure.
			rows = claimOn(t, b, "b", longShards(), 1)
			if n := holdFail(t, b, "gone", rows[0]); n != 1 {
				t.Fatalf("fail_destination() settled %d", n)
			}
			if how != "cancel" && how != "rescue" {
				if n := settleAll(t, b, how, rows); n != 0 {
					t.Errorf("INV-9: %s settled %d after fail_destination()", how, n)
				}
			}
			wantEachOnce(t, db)
		})
	}
}

// TestHoldInterleaveIsolation: what writes destinations refuses a snapshot that may be old, and what settles does not.
func TestHoldInterleaveIsolation(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(1, 1, 40, 1))
	b := withoutWaiting(t, db.Connect(t))
	rows := claimOn(t, b, "b", longShards(), 10)
	for i, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		for _, call := range []string{`select outbox.hold('ns1', 'q1')`, `select outbox.lift('ns1', 'q1')`, `select outbox.set_shared('q1', true)`} {
			tx := beginAt(t, withoutWaiting(t, db.Connect(t)), level)
			_, err := tx.Exec(t.Context(), call)
			wantError(t, err, "OB002", "read committed")
			_ = tx.Rollback(t.Context())
		}
		tx := beginAt(t, withoutWaiting(t, db.Connect(t)), level)
		if n := holdFail(t, tx, "unreachable", rows[i]); n != 1 {
			t.Errorf("%s: fail_destination() settled %d", level, n)
		}
		if got := one[string](t, tx, `select o.state from outbox.observe('{ns1}', '{q1}') as o`); got != "unknown" {
			t.Errorf("%s: observe() beside a report that it may not read says %s", level, got)
		}
		commit(t, tx)
	}
}

// TestObserveManyReports: more reports are waiting than one call reads: how a destination is comes out once
// they are all read, and not from the first of them (INV-16).
func TestObserveManyReports(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(1, 1, 10, 1))
	run(t, db.Pool, `insert into outbox.report (at, kind, message_id, claim_token, namespace, task_queue)
		select now(), 'unreachable', -i, 1, 'other', 'q1' from generate_series(1, 600) as i`)
	run(t, db.Pool, `insert into outbox.report (at, kind, message_id, claim_token, namespace, task_queue, hold)
		values (now(), 'busy', 1, nextval('outbox.claim_token'), 'ns1', 'q1', '1 hour')`)
	observe := `select o.state from outbox.observe('{ns1}', '{q1}') as o`
	if got := one[string](t, db.Pool, observe); got != "unknown" {
		t.Errorf("with reports that are not read yet, the destination is %s", got)
	}
	if got := one[string](t, db.Pool, observe); got != "held" {
		t.Errorf("once all are read, the destination is %s", got)
	}
}

// TestProbeWhoseResultIsUnread: a settle commits what a probe came to while a claim runs that has read the reports
// already. That claim draws no other probe: the result decides whether there is to be one (INV-16).
func TestProbeWhoseResultIsUnread(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(1, 1, 10, 1)+`select outbox.hold('ns1', 'q1', '1 ms')`)
	conn := db.Connect(t)
	holdOver(t, conn)
	probe := claimOn(t, conn, "n", longShards(), 10)
	wantClaimed(t, "the probe", probe, 1)
	holdFail(t, conn, "unreachable", probe...)
	// As that claim sees it: the reports were read before this one was there.
	run(t, conn, `select setval('outbox.report_edge', 1000)`)
	for range 5 {
		if got := one[*int](t, conn, `select outbox.gate(d, clock_timestamp(), true) from outbox.destination as d`); got == nil || *got != 0 {
			t.Fatalf("INV-16: the gate lets %v through beside a result that is unread", got)
		}
	}
	run(t, conn, `select setval('outbox.report_edge', 1)`)
	wantClaimed(t, "a claim that reads it", claimOn(t, conn, "n", longShards(), 10), 0)
	if got := one[bool](t, conn, `select d.held_until > clock_timestamp() from outbox.destination as d`); !got {
		t.Error("INV-16: the probe that failed did not make the hold longer")
	}
}
