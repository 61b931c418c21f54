package integration

import (
	"slices"
	"testing"
)

// TestRedriveNamespace brings failed messages back, oldest first, up to a number:
// pending, due, attempts from 0 (INV-10).
func TestRedriveNamespace(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	run(t, conn, "select outbox.enqueue(n, 'q', n || g, 'x', delay => '-1 s') from unnest('{a,b}'::text[]) as n, generate_series(1, 5) as g")
	for _, row := range claim(t, conn, "n1", 10) {
		settle(t, conn, "fail", row.ID, row.Token)
	}
	var got []int
	for _, limit := range []any{2, 2, nil, nil} {
		got = append(got, one[int](t, conn, "select outbox.redrive('a', $1)", limit))
	}
	if !slices.Equal(got, []int{2, 2, 1, 0}) {
		t.Errorf("redrove %v", got)
	}
	if got := list[string](t, conn, "select dispatch_key from outbox.messages where status = 'failed' order by 1"); !slices.Equal(got, []string{"b1", "b2", "b3", "b4", "b5"}) {
		t.Errorf("still failed: %q", got)
	}
	for _, row := range claim(t, conn, "n1", 10) {
		if row.Namespace != "a" || row.Attempt != 1 || string(row.Payload) != "x" {
			t.Errorf("claimed %+v", row)
		}
	}
}

// TestRedriveRace: two sessions redrive one message, or one redrives what the other
// prunes; each row goes one way only (INV-2).
func TestRedriveRace(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	first, second, watch := db.Connect(t), impatient(t, db.Connect(t)), db.Connect(t)
	for _, call := range []string{"select count(*) from outbox.redrive(array[$1::bigint])", "select outbox.prune('0', 10, true) where $1::bigint > 0"} {
		id := put(t, first, "n", "q", "k")
		row := claimOne(t, first, "n1")
		settle(t, first, "fail", id, row.Token)
		tx := begin(t, first)
		if got := one[int](t, tx, call, id); got != 1 {
			t.Errorf("%s gave %d, want 1", call, got)
		}
		// Prune passes over what is locked; redrive waits, and finds nothing any more.
		if got := one[int](t, second, "select outbox.prune('0', 10, true)"); got != 0 {
			t.Errorf("prune took a message that %s holds", call)
		}
		done := async(t, second, "select count(*) from outbox.redrive(array[$1::bigint])", id)
		awaitBlocked(t, watch, second.PgConn().PID())
		commit(t, tx)
		if got := <-done; got.err != nil || *got.value != 0 {
			t.Errorf("redrive after %s: %v, %v, want none", call, got.value, got.err)
		}
		run(t, watch, "select outbox.cancel_namespace('n'), outbox.prune('0', 10)")
		run(t, watch, "select outbox.prune('0', 10)")
	}
}
