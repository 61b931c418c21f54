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
		t.Errorf("rescued %v before their leases ran out", got)
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
