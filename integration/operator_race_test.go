package integration

import (
	"strings"
	"testing"
)

// TestCancelRaces: a message that another session moves while cancel runs is met where
// it has gone to; nothing is lost and nothing is in two states (INV-2).
func TestCancelRaces(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	mover, canceller, watch := db.Connect(t), impatient(t, db.Connect(t)), db.Connect(t)
	for _, c := range []struct {
		move      string
		claimed   bool // before the move
		commits   bool
		cancelled int64
		want      string
	}{
		{"select * from outbox.claim_fair('n1', outbox.all_shards(), 10)", false, true, 1, "cancelled"},
		{"select * from outbox.claim_fair('n1', outbox.all_shards(), 10)", false, false, 1, "cancelled"},
		{"select outbox.retry(array[$1::bigint], array[$2::bigint])", true, true, 1, "cancelled"},
		{"select outbox.release(array[$1::bigint], array[$2::bigint])", true, true, 1, "cancelled"},
		{"select outbox.retry(array[$1::bigint], array[$2::bigint])", true, false, 1, "cancelled"},
		{"select outbox.complete(array[$1::bigint], array[$2::bigint])", true, true, 0, "done"},
		{"select outbox.cancel(array['k'])", true, true, 0, "cancelled"},
	} {
		id := put(t, mover, "n", "q", "k")
		var args []any
		if c.claimed {
			row := claimOne(t, mover, "n1")
			if strings.Contains(c.move, "$1") {
				args = []any{row.ID, row.Token}
			}
		}
		tx := begin(t, mover)
		run(t, tx, c.move, args...)
		done := async(t, canceller, "select count(*) from outbox.cancel('{k}')")
		awaitBlocked(t, watch, canceller.PgConn().PID())
		if c.commits {
			commit(t, tx)
		} else if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := <-done; got.err != nil || *got.value != c.cancelled {
			t.Errorf("%s: cancelled %v, %v, want %d", c.move, got.value, got.err, c.cancelled)
		}
		if got := status(t, watch, id); got != c.want {
			t.Errorf("%s: the message is %s, want %s", c.move, got, c.want)
		}
		if got := one[int](t, watch, "select (select count(*) from outbox.pending) + (select count(*) from outbox.claimed) + (select count(*) from outbox.settled)"); got != 1 {
			t.Errorf("%s: the message stands in %d tables", c.move, got)
		}
		run(t, watch, "select outbox.prune('0', 10)")
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
