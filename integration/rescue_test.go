package integration

import (
	"slices"
	"testing"
)

// TestRescue: only expired leases, up to a number, and none that is locked.
func TestRescue(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn, other := impatient(t, db.Connect(t)), db.Connect(t)
	run(t, conn, "select outbox.enqueue('n', 'q', 'k' || g, '') from generate_series(1, 10) as g")
	rows := claim(t, conn, "n1", 10)
	if got := list[int64](t, conn, "select id from outbox.rescue()"); len(got) != 0 {
		t.Errorf("rescued %v before their leases expired", got)
	}
	expire(t, conn, "n")
	tx := begin(t, other)
	settle(t, tx, "complete", rows[0].ID, rows[0].Token)
	var got []int
	for range 3 {
		got = append(got, len(list[int64](t, conn, "select id from outbox.rescue(7) where state = 'pending'")))
	}
	if !slices.Equal(got, []int{7, 2, 0}) {
		t.Errorf("rescued %v, want 7, 2 and 0", got)
	}
	commit(t, tx)
	if got := claim(t, conn, "n2", 20); len(got) != 9 {
		t.Errorf("%d are due again at once, want 9", len(got))
	}
}

// TestRescueBesideSettle: rescue passes a message whose settle is under way, and a settle
// that comes after an open rescue is lost (INV-2, INV-9, INV-10).
func TestRescueBesideSettle(t *testing.T) {
	t.Parallel()
	const expire = `update outbox.claimed as c set lease_until = '2020-01-01'`
	db := setUp(t, longBacklog(1, 1, 2, 1))
	worker, rescuer := db.Connect(t), withoutWaiting(t, db.Connect(t))
	rows := claimOn(t, worker, "node", longShards(), 2)
	run(t, worker, expire)

	settle := begin(t, worker)
	if n := settleAll(t, settle, "complete", rows[:1]); n != 1 {
		t.Fatalf("a late settle that comes first settled %d", n)
	}
	if n := one[int](t, rescuer, `select count(*)::int from outbox.rescue(10) as r`); n != 1 {
		t.Errorf("rescued %d, want the one that nobody settles", n)
	}
	commit(t, settle)

	rows = claimOn(t, worker, "node", longShards(), 2)
	wantClaimed(t, "the rescued one", rows, 1)
	if rows[0].Attempt != 1 {
		t.Errorf("INV-10: attempt %d after a rescue of one that was out with another, want 1", rows[0].Attempt)
	}
	run(t, worker, expire)
	rescue := begin(t, rescuer)
	if n := one[int](t, rescue, `select count(*)::int from outbox.rescue(10) as r`); n != 1 {
		t.Fatalf("rescued %d messages, want 1", n)
	}
	settled := -1
	done := whileWaiting(t, db, worker, func() error {
		return worker.QueryRow(t.Context(), `select count(*) from outbox.complete($1, $2) as x`, []int64{rows[0].ID}, []int64{rows[0].Token}).Scan(&settled)
	})
	commit(t, rescue)
	if err := done(); err != nil || settled != 0 {
		t.Errorf("INV-9: a settle behind a rescue settled %d, %v", settled, err)
	}
	wantEachOnce(t, db)
}
