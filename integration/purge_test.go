package integration

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
)

// purgeStep is what one call returns.
type purgeStep struct {
	Purged   int64
	Next     *int64
	Enqueued *bool
}

func purgeCall(t *testing.T, q querier, namespace string, limit int, after int64) purgeStep {
	t.Helper()
	rows, err := q.Query(t.Context(), "select * from outbox.purge($1, $2, $3)", namespace, limit, after)
	if err != nil {
		t.Fatal(err)
	}
	step, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[purgeStep])
	if err != nil {
		t.Fatal(err)
	}
	return step
}

// purgeAll calls until nothing is left, and returns how many each call deleted, and whether
// there are messages again.
func purgeAll(t *testing.T, q querier, namespace string, limit int) (each []int64, enqueued bool) {
	t.Helper()
	for after := int64(0); ; {
		step := purgeCall(t, q, namespace, limit, after)
		each = append(each, step.Purged)
		if step.Next == nil {
			return each, *step.Enqueued
		}
		if step.Enqueued != nil || *step.Next <= after {
			t.Fatalf("after %d: %+v", after, step)
		}
		after = *step.Next
	}
}

// purgeFill makes messages of a namespace in every state, a quota, pauses, failures and a route.
func purgeFill(t *testing.T, conn *pgx.Conn, namespace string) {
	t.Helper()
	run(t, conn, "select outbox.enqueue($1, 'q' || g % 3, $1 || g, 'x') from generate_series(1, 30) as g", namespace)
	for i, row := range claim(t, conn, "n1", 25) {
		switch i % 5 {
		case 0:
			settle(t, conn, "complete", row.ID, row.Token)
		case 1:
			settle(t, conn, "fail", row.ID, row.Token)
		case 2:
			settle(t, conn, "retry", row.ID, row.Token)
		case 3:
			run(t, conn, "select outbox.cancel(array[$1])", row.Key)
		case 4:
			if i == 24 {
				run(t, conn, "select outbox.fail_destination(array[$1::bigint], array[$2::bigint], '{unreachable}')", row.ID, row.Token)
			}
		}
	}
	waiting(t, conn, namespace+" later", 1)
	run(t, conn, "select outbox.enqueue($1, 'q', $1 || ' later', '', delay => '1 h')", namespace)
	run(t, conn, "select outbox.set_quota($1, 7), outbox.pause($1), outbox.pause($1, 'q1'), outbox.hold($1, 'other')", namespace)
}

// purgeLeft says where there is still something of a namespace.
func purgeLeft(t *testing.T, q querier, namespace string) string {
	t.Helper()
	var left []string
	for _, table := range list[string](t, q, `select c.relname::text from pg_class as c join pg_attribute as a on a.attrelid = c.oid and a.attname = 'namespace'
		where c.relnamespace = 'outbox'::regnamespace and c.relkind = 'r' and c.relname <> 'walk' order by 1`) {
		if one[bool](t, q, "select exists (select from outbox."+table+" where namespace = $1)", namespace) {
			left = append(left, table)
		}
	}
	if one[bool](t, q, "select exists (select from outbox.failure as f where not exists (select from outbox.message as m where m.id = f.id))") {
		left = append(left, "failure")
	}
	return strings.Join(left, " ")
}

// TestPurge: of a namespace nothing is left, in chunks; of others nothing goes. A settle of what was
// claimed is lost (INV-9), and the keys are free again.
func TestPurge(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	purgeFill(t, conn, "globex")
	purgeFill(t, conn, "acme")
	if got := purgeLeft(t, conn, "acme"); got != "claimed destination former_quota hold_event message namespace pause pending report route settled" {
		t.Fatalf("there is only %s: this shows nothing", got)
	}
	claimed := list[int64](t, conn, "select c.id from outbox.claimed as c where c.namespace = 'acme' order by c.id")
	token := one[int64](t, conn, "select c.claim_token from outbox.claimed as c where c.id = $1", claimed[0])
	const others = "select string_agg(x, ' ' order by x) from (select p::text from outbox.pending as p where namespace <> 'acme' union all select p::text from outbox.claimed as p where namespace <> 'acme' union all select p::text from outbox.settled as p where namespace <> 'acme' union all select p::text from outbox.pause as p where namespace <> 'acme' union all select p::text from outbox.route as p where namespace <> 'acme') as x(x)"
	before := one[string](t, conn, others)
	run(t, conn, "insert into outbox.destination (task_queue, state, failed_of, changed_at) values ('shared', 'failing', '{globex,acme}', now())")
	each, enqueued := purgeAll(t, conn, "acme", 8)
	if !slices.Equal(each, []int64{8, 8, 8, 7, 0}) || enqueued {
		t.Errorf("deleted %v, enqueued meanwhile: %v", each, enqueued)
	}
	if got := purgeLeft(t, conn, "acme"); got != "" {
		t.Errorf("there is still something in %s", got)
	}
	if got := one[string](t, conn, others); got != before {
		t.Error("something of others is gone, or was written")
	}
	if got := one[string](t, conn, "select d.failed_of::text from outbox.destination as d where d.task_queue = 'shared'"); got != "{globex}" {
		t.Errorf("a route of all remembers %s", got)
	}
	if settle(t, conn, "complete", claimed[0], token) {
		t.Error("INV-9: a message that was purged was settled")
	}
	if put(t, conn, "globex", "q", "acme1") == 0 {
		t.Error("a key is not free again")
	}
	wantSound(t, conn)
	if each, _ := purgeAll(t, conn, "nobody", 8); slices.Max(each) != 0 {
		t.Errorf("of a namespace without messages %v were deleted", each)
	}
}

// TestPurgeLooksAtABoundedNumber: one call looks at ten times as many messages as it may delete
// (INV-14), and a message that a producer enqueues meanwhile is told.
func TestPurgeLooksAtABoundedNumber(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn, producer := db.Connect(t), db.Connect(t)
	run(t, conn, "select outbox.enqueue('other', 'q', g::text, '') from generate_series(1, 30) as g")
	tx := begin(t, producer)
	late := put(t, tx, "acme", "q", "late")
	last := put(t, conn, "acme", "q", "k")
	if step := purgeCall(t, conn, "acme", 1, 0); step.Purged != 0 || step.Next == nil || *step.Next != 10 {
		t.Errorf("the first call: %+v", step)
	}
	if step := purgeCall(t, conn, "acme", 10, 10); step.Purged != 1 || step.Next == nil || *step.Next != last {
		t.Errorf("the second call: %+v", step)
	}
	commit(t, tx)
	step := purgeCall(t, conn, "acme", 10, last)
	if step.Purged != 0 || step.Next != nil || !*step.Enqueued {
		t.Errorf("the last call: %+v", step)
	}
	if got := status(t, conn, late); got != "pending" {
		t.Errorf("what was enqueued meanwhile is %q", got)
	}
	for _, state := range []string{"unripe", "claimed", "failed"} {
		switch state {
		case "unripe":
			run(t, conn, "update outbox.pending set ripe = false where id = $1", late)
		case "claimed":
			run(t, conn, "update outbox.pending set ripe = true where id = $1", late)
			claim(t, conn, "n1", 100)
		case "failed":
			run(t, conn, "select outbox.fail(array[c.id], array[c.claim_token]) from outbox.claimed as c where c.id = $1", late)
		}
		if step := purgeCall(t, conn, "acme", 10, last); step.Next != nil || !*step.Enqueued {
			t.Errorf("beside one that is %s: %+v", state, step)
		}
	}
}

// TestPurgeRaces: what another session moves while the call runs goes all the same, wherever it
// has gone to, and nothing is left of it (INV-2).
func TestPurgeRaces(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	mover, caller, watch := db.Connect(t), impatient(t, db.Connect(t)), db.Connect(t)
	const args = "array[$1::bigint], array[$2::bigint]"
	for _, c := range []struct{ before, move string }{
		{"", "select * from outbox.claim_fair('n1', outbox.all_shards(), 10)"},
		{"claim", "select outbox.retry(" + args + ")"},
		{"claim", "select outbox.release(" + args + ")"},
		{"claim", "select outbox.complete(" + args + ")"},
		{"fail", "select outbox.redrive(array[$1::bigint])"},
		{"fail", "select outbox.prune('0', 10, true)"},
		{"", "select outbox.cancel('{k}')"},
	} {
		for _, commits := range []bool{true, false} {
			id := put(t, mover, "acme", "q", "k")
			var token int64
			if c.before != "" {
				token = claimOne(t, mover, "n1").Token
			}
			if c.before == "fail" {
				settle(t, mover, "fail", id, token)
			}
			tx := begin(t, mover)
			run(t, tx, c.move, []any{id, token}[:strings.Count(c.move, "$")]...)
			done := async(t, caller, "select purged from outbox.purge('acme')")
			awaitBlocked(t, watch, caller.PgConn().PID())
			if commits {
				commit(t, tx)
			} else if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			want := int64(1)
			if commits && strings.Contains(c.move, "prune") {
				want = 0
			}
			if got := <-done; got.err != nil || *got.value != want {
				t.Errorf("%s: purged %v, %v", c.move, got.value, got.err)
			}
			if step := purgeCall(t, caller, "acme", 1, id); step.Next != nil || *step.Enqueued {
				t.Errorf("%s: the end is %+v", c.move, step)
			}
			if got := purgeLeft(t, watch, "acme"); got != "" {
				t.Errorf("%s: something is left in %s", c.move, got)
			}
			wantSound(t, watch)
		}
	}
}

// TestPurgeBesideClaims: the end waits for a claim that is open, since that may have written where it
// stands among the routes; while the end is open itself, no claim waits (INV-11).
func TestPurgeBesideClaims(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	claimer, caller, watch := db.Connect(t), impatient(t, db.Connect(t)), db.Connect(t)
	run(t, watch, "select outbox.enqueue('acme', 'q' || g, g::text, '') from generate_series(1, 8) as g")
	claim(t, claimer, "n1", 3)
	if got := purgeLeft(t, watch, "acme"); !strings.Contains(got, "route") {
		t.Fatalf("no route was written, only %s", got)
	}
	tx := begin(t, claimer)
	claim(t, tx, "n1", 2)
	done := async(t, caller, "select purged from outbox.purge('acme', 10, 99)")
	awaitBlocked(t, watch, caller.PgConn().PID())
	commit(t, tx)
	if got := <-done; got.err != nil {
		t.Fatal(got.err)
	}
	if got := purgeLeft(t, watch, "acme"); strings.Contains(got, "route") {
		t.Error("the route is still there")
	}
	claim(t, claimer, "n1", 1)
	open := begin(t, caller)
	if step := purgeCall(t, open, "acme", 10, 99); step.Next != nil {
		t.Fatalf("not the end: %+v", step)
	}
	claim(t, withoutWaiting(t, claimer), "n1", 2)
	claim(t, claimer, "n2", 2)
	commit(t, open)
}

// TestPurgeBesideDeletes: a purge passes over nothing, however many messages of others are deleted while it looks.
func TestPurgeBesideDeletes(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn, other := db.Connect(t), db.Connect(t)
	run(t, conn, `insert into outbox.message (namespace, task_queue, dispatch_key, content_type, headers, payload, created_at)
		select case when n % 25 = 0 then 'acme' else 'other' end, 'q', n, 'text/plain', '{}', '', now() from generate_series(1, 50000) as n`)
	run(t, conn, `vacuum analyze outbox.message`)
	var after atomic.Int64
	done := make(chan error, 1)
	go func() { // deletes right behind where the purge stands
		for after.Load() >= 0 {
			_, err := other.Exec(t.Context(), `delete from outbox.message as m where m.id = any (array(
				select o.id from outbox.message as o where o.id > $1 and o.namespace = 'other' order by o.id limit 25))`, after.Load())
			if err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for {
		step := purgeCall(t, conn, "acme", 500, after.Load())
		if step.Next == nil {
			break
		}
		after.Store(*step.Next)
	}
	after.Store(-1)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := one[int](t, conn, `select count(*)::int from outbox.message as m where m.namespace = 'acme'`); n != 0 {
		t.Errorf("a purge passed over %d of 2,000 messages", n)
	}
}

// TestPurgeBesideAnOpenChange: while the end of a purge waits for somebody who has changed a pause or a quota of the namespace and
// left his transaction open, others claim, and destinations are read (INV-11).
func TestPurgeBesideAnOpenChange(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{"a pause": `select outbox.resume('acme', 'q9')`, "a quota": `select outbox.set_quota('acme', 7)`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pg.New(t)
			claimer, caller, somebody := db.Connect(t), impatient(t, db.Connect(t)), db.Connect(t)
			run(t, claimer, `select outbox.enqueue('acme', 'q' || g, g::text, ''), outbox.enqueue('other', 'q', 'o' || g, '') from generate_series(1, 3) as g`)
			run(t, claimer, `select outbox.pause('acme', 'q9'), outbox.set_quota('acme', 5)`)
			claim(t, claimer, "n1", 2)
			open := begin(t, somebody)
			run(t, open, change)
			done := async(t, caller, "select purged from outbox.purge('acme', 10, 99)")
			awaitBlocked(t, claimer, caller.PgConn().PID())
			claim(t, withoutWaiting(t, claimer), "n1", 1)
			if !one[bool](t, claimer, `select pg_try_advisory_xact_lock(outbox.lock_class(), outbox.fold_lock())`) {
				t.Error("a purge that waits has the lock of destinations")
			}
			commit(t, open)
			if got := <-done; got.err != nil {
				t.Fatal(got.err)
			}
		})
	}
}
