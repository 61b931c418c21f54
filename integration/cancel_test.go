package integration

import (
	"slices"
	"strings"
	"testing"
)

// TestCancel: pending and claimed messages become cancelled, the rest is left out,
// and a claimed one's settle is lost (INV-9).
func TestCancel(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	put(t, conn, "n", "q", "claimed")
	row := claimOne(t, conn, "n1")
	put(t, conn, "n", "q", "done")
	done := claimOne(t, conn, "n1")
	settle(t, conn, "complete", done.ID, done.Token)
	pending := put(t, conn, "n", "q", "pending")

	const call = "select dispatch_key || ' was ' || was from outbox.cancel('{pending,claimed,done,unknown,null,pending}') order by 1"
	got := list[string](t, conn, call)
	if want := []string{"claimed was claimed", "pending was pending"}; !slices.Equal(got, want) {
		t.Errorf("cancel gave %q, want %q", got, want)
	}
	if got := list[string](t, conn, call); len(got) != 0 {
		t.Errorf("cancel gave %q a second time", got)
	}
	if settle(t, conn, "complete", row.ID, row.Token) {
		t.Error("the settle of a cancelled message was not lost")
	}
	if status(t, conn, row.ID) != "cancelled" || status(t, conn, pending) != "cancelled" || status(t, conn, done.ID) != "done" {
		t.Error("not what they should be")
	}
	if got := list[string](t, conn, "select dispatch_key from outbox.cancel('{}')"); len(got) != 0 {
		t.Errorf("cancelling nothing gave %q", got)
	}
	back := list[int64](t, conn, "select outbox.redrive(array[$1, $2, $3, $2, 99999, null]::bigint[])", row.ID, pending, done.ID)
	slices.Sort(back)
	if !slices.Equal(back, []int64{row.ID, pending}) {
		t.Errorf("redrive brought back %v", back)
	}
	if got := one[int](t, conn, "select count(*) from outbox.redrive('n') as n where n > 0"); got != 0 {
		t.Error("redriving the namespace brought something back")
	}
}

// TestCancelNamespace works in chunks, leaves other namespaces alone, and is repeated
// until nothing is left.
func TestCancelNamespace(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	run(t, conn, "select outbox.enqueue(n, 'q', n || g, '') from unnest('{a,b}'::text[]) as n, generate_series(1, 20) as g")
	claim(t, conn, "n1", 10) // five of each
	var got []int
	for n := -1; n != 0; {
		n = one[int](t, conn, "select outbox.cancel_namespace('a', 8)")
		got = append(got, n)
	}
	if !slices.Equal(got, []int{8, 8, 4, 0}) {
		t.Errorf("four calls cancelled %v, want 8, 8, 4 and 0", got)
	}
	left := list[string](t, conn, "select namespace || ' ' || status || ' ' || count(*) from outbox.messages group by namespace, status order by 1")
	if want := []string{"a cancelled 20", "b claimed 5", "b pending 15"}; !slices.Equal(left, want) {
		t.Errorf("the messages are %q, want %q", left, want)
	}
	if n := one[int](t, conn, "select outbox.cancel_namespace('b')"); n != 20 {
		t.Errorf("cancelled %d, want 20", n)
	}
}

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
