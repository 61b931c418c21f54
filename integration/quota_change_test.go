package integration

import (
	"fmt"
	"maps"
	"slices"
	"testing"
)

// rowVersions are where every pending and claimed row stands and who wrote it: a row that
// is written, if only with its own values, changes its place.
func rowVersions(t *testing.T, q querier) []string {
	t.Helper()
	return list[string](t, q, `select format('%s %s %s', p.id, p.ctid, p.xmin) from outbox.pending as p
		union all select format('claimed %s %s %s', c.id, c.ctid, c.xmin) from outbox.claimed as c order by 1`)
}

// TestQuotaChanges: quotas that are lowered below what is claimed, raised and cleared, and
// pauses, hold from the next claim on, beside an open claim too, and write no message
// (INV-4, INV-8).
func TestQuotaChanges(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn, operator := db.Connect(t), withoutWaiting(t, db.Connect(t))
	execScript(t, conn, longBacklog(1, 2, 60, 1)+`select outbox.set_quota('ns1', 10)`)
	for i, step := range []struct {
		change string
		settle int // claimed messages, before the claim
		want   int // rows of the claim
	}{
		{"", 0, 10},
		{"select outbox.set_quota('ns1', 4)", 0, 0},
		{"", 6, 0},
		{"", 1, 1},
		{"select outbox.set_quota('ns1', 0)", 2, 0},
		{"select outbox.set_quota('ns1', 12)", 0, 10},
		{"select outbox.pause('ns1')", 3, 0},
		{"select outbox.set_quota('ns1', 20)", 0, 0},
		{"select outbox.resume('ns1')", 0, 11},
		{"select outbox.pause(note => 'all', everything => true)", 1, 0},
		{"select outbox.resume(null)", 0, 1},
		{"select outbox.pause('ns1', 'q1'), outbox.pause(null, 'q2')", 1, 0},
		{"select outbox.resume('ns1', 'q1'), outbox.resume(null, 'q2')", 0, 1},
		{`select outbox.configure('{"default_quota": 22}')`, 0, 0},
		{"select outbox.clear_quota('ns1')", 0, 2},
		{`select outbox.configure('{"default_quota": 3}')`, 1, 0},
		{"select outbox.set_quota('ns1', 5, true)", 16, 0},
		{"", 1, 1},
		{"select outbox.set_quota('ns1', 2)", 0, 0},
		{"select outbox.set_quota('ns1', 8, false)", 0, 3},
	} {
		what := fmt.Sprintf("step %d, %s", i, step.change)
		if step.settle > 0 {
			if n := one[int](t, conn, `select count(*) from outbox.complete(array(select c.id from outbox.claimed as c order by c.id limit $1),
				array(select c.claim_token from outbox.claimed as c order by c.id limit $1))`, step.settle); n != step.settle {
				t.Fatalf("%s: settled %d, want %d", what, n, step.settle)
			}
		}
		before := rowVersions(t, conn)
		if step.change != "" {
			run(t, operator, step.change)
			if after := rowVersions(t, conn); !slices.Equal(after, before) {
				t.Errorf("%s: rows were written", what)
			}
		}
		// Rolled back, while the operator changes the quota again and back: it waits for no
		// claim that is open (but to make a namespace strict), and the claim counts by its own.
		tx := begin(t, conn)
		rows := claim(t, tx, "node", 50)
		if len(rows) != step.want {
			t.Errorf("%s: the next claim has %d rows, want %d", what, len(rows), step.want)
		}
		if step.change == "" {
			run(t, operator, "select outbox.pause('other'), outbox.set_quota('other', $1)", i)
		}
		commit(t, tx)
		wantMoved(t, what, before, rowVersions(t, conn), rows)
		wantSound(t, conn)
	}
}

// wantMoved fails unless a claim has written the rows that it returned, and no others (INV-8).
func wantMoved(t *testing.T, what string, before, after []string, rows []claimRow) {
	t.Helper()
	left := map[string]bool{}
	for _, v := range before {
		left[v] = true
	}
	for _, v := range after {
		delete(left, v)
	}
	if len(left) != len(rows) {
		t.Errorf("%s: a claim of %d rows has changed %d: %v", what, len(rows), len(left), slices.Sorted(maps.Keys(left)))
	}
}

// TestQuotaLoweredBesideOpenClaim: the claim that is open keeps what it took, the next one
// counts it against the new quota, and neither waits (INV-4, INV-11).
func TestQuotaLoweredBesideOpenClaim(t *testing.T) {
	t.Parallel()
	db := setUp(t, `select outbox.set_quota('ns1', 16);`+longBacklog(1, 1, 400, 1))
	a, b, operator := begin(t, withoutWaiting(t, db.Connect(t))), withoutWaiting(t, db.Connect(t)), withoutWaiting(t, db.Connect(t))
	wantClaimed(t, "8 of 16 shards", claimOn(t, a, "a", []int{0, 1, 2, 3, 4, 5, 6, 7}, 100), 8)
	run(t, operator, `select outbox.set_quota('ns1', 6)`)
	wantClaimed(t, "the other half of 6", claimOn(t, b, "b", []int{8, 9, 10, 11, 12, 13, 14, 15}, 100), 3)
	commit(t, a)
	wantClaimed(t, "all shards, 11 of 6 claimed", claimOn(t, b, "b", longShards(), 100), 0)
	wantClaimed(t, "half of them, 8 of 3 claimed", claimOn(t, b, "b", []int{0, 1, 2, 3, 4, 5, 6, 7}, 100), 0)
	run(t, operator, `select outbox.set_quota('ns1', 12)`)
	wantClaimed(t, "all shards, 11 of 12 claimed", claimOn(t, b, "b", longShards(), 100), 1)
}

// TestInterleaveMovedShards: on shards that have moved, the new owner counts what the former
// one has claimed, settled or not yet, and what it settles is room for the new one (INV-4).
func TestInterleaveMovedShards(t *testing.T) {
	t.Parallel()
	for name, strict := range map[string]bool{"strict": true, "not strict": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := setUp(t, fmt.Sprintf(`select outbox.set_quota('ns1', 8, %t);`, strict)+longBacklog(1, 1, 400, 1))
			a, b := withoutWaiting(t, db.Connect(t)), withoutWaiting(t, db.Connect(t))
			lower := []int{0, 1, 2, 3, 4, 5, 6, 7}
			mine := claimOn(t, a, "a", lower, 100)
			wantClaimed(t, "half of 8", mine, 4)
			wantClaimed(t, "the same shards, moved", claimOn(t, b, "b", lower, 100), 0)
			if !strict { // one that is makes up for it on the others
				wantClaimed(t, "all shards, 4 of 8 claimed", claimOn(t, b, "b", longShards(), 2), 2)
			} else {
				wantClaimed(t, "all shards, 4 of 8 claimed", claimOn(t, b, "b", longShards(), 100), 4)
			}

			for _, end := range []string{"complete", "release", "retry", "fail"} {
				settling := begin(t, a)
				id, token := mine[0].ID, mine[0].Token
				if n := one[int](t, settling, fmt.Sprintf(`select count(*)::int from outbox.%s(array[$1::bigint], array[$2::bigint]) as x`, end), id, token); n != 1 {
					t.Fatalf("%s of the former owner's claim settled %d", end, n)
				}
				wantClaimed(t, "beside an open "+end, claimOn(t, b, "b", lower, 100), 0)
				if err := settling.Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
				wantClaimed(t, "after its rollback", claimOn(t, b, "b", lower, 100), 0)
			}
			claimed := one[int](t, b, `select count(*)::int from outbox.claimed as c where c.shard < 8`)
			if n := one[int](t, a, `select count(*)::int from outbox.complete(array[$1::bigint], array[$2::bigint]) as x`, mine[0].ID, mine[0].Token); n != 1 {
				t.Fatal("the former owner's settle was lost")
			}
			wantClaimed(t, "after a settle of the former owner", claimOn(t, b, "b", lower, 100), max(0, min(1, 5-claimed)))

			// A rescue that is under way has given nothing back yet.
			run(t, a, `update outbox.claimed as c set lease_until = '-infinity'`)
			before := one[int](t, b, `select count(*)::int from outbox.claimed as c`)
			rescuing := begin(t, a)
			one[int](t, rescuing, `select count(*)::int from outbox.rescue(100) as x`)
			claimOn(t, b, "b", longShards(), 100)
			if n := one[int](t, b, `select count(*)::int from outbox.claimed as c`); n > max(before, 8) {
				t.Errorf("%d are claimed beside an open rescue, the quota is 8, %d were before", n, before)
			}
			commit(t, rescuing)
			left := one[int](t, b, `select count(*)::int from outbox.claimed as c`)
			wantClaimed(t, "after the rescue", claimOn(t, b, "b", longShards(), 100), 8-left)
		})
	}
}
