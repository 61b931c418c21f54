package integration

import (
	"slices"
	"testing"
)

// TestHoldMadeLonger: a probe that is out while somebody makes the hold longer stays the one that is out: no other one is
// drawn beside it, and check() knows it. But it says nothing of the destination any more: the next one does (INV-16).
func TestHoldMadeLonger(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(1, 1, 10, 1)+`select outbox.hold('ns1', 'q1', '1 ms')`)
	conn := db.Connect(t)
	draw := func(what string, want int) []modelClaimed {
		t.Helper()
		holdOver(t, conn)
		rows := claimOn(t, conn, "n", longShards(), 10)
		wantClaimed(t, what, rows, want)
		return rows
	}
	first := draw("the first probe", 1)
	for range 4 {
		run(t, conn, `select outbox.hold('ns1', 'q1', '300 ms')`)
		draw("beside a probe, after a hold that made it longer", 0)
	}
	run(t, conn, `update outbox.destination set held_since = held_since - interval '1 h'`)
	if got := list[string](t, conn, `select concat_ws(' ', c.guarantee, c.subject, c.detail) from outbox.check() as c where c.guarantee like 'INV-%'`); len(got) > 0 {
		t.Errorf("check() beside the probe: %q", got)
	}

	holdFail(t, conn, "unreachable", first...)
	if got := list[string](t, conn, `select format('attempt %s, visible %s, reports %s, step %s', p.attempt, p.visible_after <= clock_timestamp(), (select count(*) from outbox.report), d.step)
		from outbox.pending as p, outbox.destination as d where p.id = $1`, first[0].ID); !slices.Equal(got, []string{"attempt 0, visible t, reports 0, step 0"}) {
		t.Errorf("INV-16: after the failure of a probe that says nothing: %q", got)
	}
	second := draw("the second probe", 1)
	run(t, conn, `select outbox.hold('ns1', 'q1', '1 h')`)
	settleAll(t, conn, "complete", second)
	third := draw("the third probe", 1)
	if got := holdState(t, conn, "ns1", "q1"); got != "held" {
		t.Errorf("INV-16: after the success of a probe that says nothing it is %s", got)
	}
	settleAll(t, conn, "complete", third)
	wantClaimed(t, "after the success of a probe", claimOn(t, conn, "n", longShards(), 10), 1)
	if got := holdState(t, conn, "ns1", "q1"); got != "recovering" {
		t.Errorf("INV-16: after the success of a probe it is %s", got)
	}
}
