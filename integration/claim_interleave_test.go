package integration

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// TestInterleaveSameNode: a claim beside an open one of the same node is empty and does
// not wait; so is that of another node on the same shards (INV-1, INV-11).
func TestInterleaveSameNode(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(2, 1, 10, 1))
	a, b := begin(t, withoutWaiting(t, db.Connect(t))), withoutWaiting(t, db.Connect(t))
	first := claimOn(t, a, "node", []int{0, 1, 2, 3, 4, 5, 6, 7}, 5)
	wantClaimed(t, "first", first, 5)
	wantClaimed(t, "the same node, other shards", claimOn(t, b, "node", []int{8, 9, 10, 11, 12, 13, 14, 15}, 20), 0)
	wantClaimed(t, "another node, the same shards", claimOn(t, b, "other", []int{0, 1, 2, 3, 4, 5, 6, 7}, 20), 0)
	commit(t, a)
	rest := claimOn(t, b, "node", longShards(), 20)
	wantClaimed(t, "after the commit", rest, 15)
	for _, id := range idsOf(rest) {
		if slices.Contains(idsOf(first), id) {
			t.Errorf("INV-1: message %d was claimed twice", id)
		}
	}
}

// TestInterleaveOverlap: shards that another claim holds are left out, of the rows and
// of the ceiling (INV-4).
func TestInterleaveOverlap(t *testing.T) {
	t.Parallel()
	db := setUp(t, `select outbox.configure('{"default_quota": 16}');`+longBacklog(1, 1, 400, 1))
	a, b := begin(t, withoutWaiting(t, db.Connect(t))), withoutWaiting(t, db.Connect(t))
	wantClaimed(t, "8 of 16 shards", claimOn(t, a, "a", []int{0, 1, 2, 3, 4, 5, 6, 7}, 100), 8)
	rows := claimOn(t, b, "b", []int{4, 5, 6, 7, 8, 9, 10, 11}, 100)
	wantClaimed(t, "4 of 16 shards", rows, 4)
	for _, r := range rows {
		if r.Shard < 8 {
			t.Errorf("message %d on shard %d, which another claim holds", r.ID, r.Shard)
		}
	}
}

// TestInterleaveDisjoint: open claims on disjoint shards together stay within
// quota + n - 1 (INV-4).
func TestInterleaveDisjoint(t *testing.T) {
	t.Parallel()
	db := setUp(t, `select outbox.configure('{"default_quota": 5}');`+longBacklog(1, 1, 400, 1))
	sum := 0
	for n := range 4 {
		tx := begin(t, withoutWaiting(t, db.Connect(t)))
		rows := claimOn(t, tx, fmt.Sprint("node", n), []int{4 * n, 4*n + 1, 4*n + 2, 4*n + 3}, 100)
		wantClaimed(t, "a quarter of 5, rounded up", rows, 2)
		sum += len(rows)
	}
	if sum > 5+4-1 {
		t.Errorf("%d claimed", sum)
	}
}

// TestInterleaveStrict: while one claim counts a strict namespace, others leave it out
// and serve the rest (INV-4, INV-11).
func TestInterleaveStrict(t *testing.T) {
	t.Parallel()
	db := setUp(t, `select outbox.set_quota('ns1', 2, true);`+longBacklog(2, 1, 400, 1))
	a, b := begin(t, withoutWaiting(t, db.Connect(t))), withoutWaiting(t, db.Connect(t))
	count := func(rows []modelClaimed) (n int) {
		for _, r := range rows {
			if r.Namespace == "ns1" {
				n++
			}
		}
		return n
	}
	if n := count(claimOn(t, a, "a", []int{0, 1, 2, 3, 4, 5, 6, 7}, 10)); n != 1 {
		t.Errorf("%d rows of the strict one on half of the shards, want 1", n)
	}
	rows := claimOn(t, b, "b", []int{8, 9, 10, 11, 12, 13, 14, 15}, 10)
	wantClaimed(t, "the other namespace", rows, 10)
	if n := count(rows); n != 0 {
		t.Errorf("%d rows of a strict namespace that another claim counts", n)
	}
	commit(t, a)
	if n := count(claimOn(t, b, "b", []int{8, 9, 10, 11, 12, 13, 14, 15}, 10)); n != 1 {
		t.Errorf("%d rows of the strict one after the commit, want 1", n)
	}
	if n := count(claimOn(t, b, "c", longShards(), 10)); n != 0 {
		t.Errorf("%d rows of the strict one at its quota", n)
	}
}

// TestInterleaveBegunBefore: a transaction that began before others committed sees what
// they claimed and what they enqueued (INV-4, INV-15).
func TestInterleaveBegunBefore(t *testing.T) {
	t.Parallel()
	db := setUp(t, `select outbox.set_quota('ns1', 5);`+longBacklog(1, 1, 4, 1))
	a, other := begin(t, withoutWaiting(t, db.Connect(t))), withoutWaiting(t, db.Connect(t))
	one[int](t, a, `select count(*)::int from outbox.pending as p`)
	wantClaimed(t, "the other's", claimOn(t, other, "other", longShards(), 3), 3)
	run(t, other, `select outbox.enqueue('ns1', 'q1', 'new' || k, '') from generate_series(1, 9) as k`)
	wantClaimed(t, "what is left of the quota", claimOn(t, a, "a", longShards(), 10), 2)
}

// TestInterleaveLockedRows: rows that somebody has locked cost no place and no wait,
// wherever they stand (INV-6, INV-11); INV-8: they are what they were.
func TestInterleaveLockedRows(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(2, 4, 10, 1))
	locker, b := begin(t, withoutWaiting(t, db.Connect(t))), withoutWaiting(t, db.Connect(t))
	one[int](t, locker, `with l as (
		select p.id from outbox.pending as p where p.namespace = 'ns1' and p.task_queue <> 'q4' or p.id % 2 = 0 for update)
		select count(*)::int from l`)
	for _, batch := range []int{1, 2, 5} {
		wantClaimed(t, "what is not locked", claimOn(t, b, "b", longShards(), batch), batch)
	}
	free := one[int](t, b, `select count(*)::int from (select from outbox.pending as p for update skip locked) as x`)
	wantClaimed(t, "all that is not locked", claimOn(t, b, "b", longShards(), 100), free)
	commit(t, locker)
	wantClaimed(t, "the rest", claimOn(t, b, "b", longShards(), 100), 80-8-free)
}

// TestInterleaveRescheduled: a claim passes a row that is being moved to the future,
// and does not take it after the commit; one that is moved to the past, and made ripe, it takes then.
func TestInterleaveRescheduled(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(1, 1, 2, 1)+`select outbox.enqueue('ns1', 'q1', 'late', '', delay => '1 h')`)
	operator, b := begin(t, withoutWaiting(t, db.Connect(t))), withoutWaiting(t, db.Connect(t))
	if _, err := operator.Exec(t.Context(), `update outbox.pending as p
		set visible_after = case when p.id = 1 then 'infinity' else '-infinity' end::timestamptz, ripe = true where p.id in (1, 3)`); err != nil {
		t.Fatal(err)
	}
	if got := idsOf(claimOn(t, b, "b", longShards(), 10)); !slices.Equal(got, []int64{2}) {
		t.Errorf("claimed %v while 1 and 3 are locked", got)
	}
	commit(t, operator)
	if got := idsOf(claimOn(t, b, "b", longShards(), 10)); !slices.Equal(got, []int64{3}) {
		t.Errorf("claimed %v after 1 went to the future and 3 to the past", got)
	}
}

// TestInterleaveSavepoint: a claim that is rolled back to a savepoint never was, its
// locks neither (INV-2, INV-8).
func TestInterleaveSavepoint(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(1, 1, 5, 1))
	a, b := begin(t, withoutWaiting(t, db.Connect(t))), withoutWaiting(t, db.Connect(t))
	inner, err := a.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wantClaimed(t, "inner", claimOn(t, inner, "node", longShards(), 3), 3)
	wantClaimed(t, "beside it", claimOn(t, b, "other", longShards(), 3), 0)
	if err := inner.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	rows := claimOn(t, b, "node", longShards(), 10)
	wantClaimed(t, "after the rollback", rows, 5)
	for _, r := range rows {
		if r.Attempt != 1 {
			t.Errorf("INV-8: message %d has attempt %d", r.ID, r.Attempt)
		}
	}
}

// TestInterleaveTwoClaims: a transaction may claim twice; the second counts the first
// (INV-1, INV-4).
func TestInterleaveTwoClaims(t *testing.T) {
	t.Parallel()
	db := setUp(t, `select outbox.set_quota('ns1', 5, true);`+longBacklog(1, 1, 10, 1))
	a := begin(t, withoutWaiting(t, db.Connect(t)))
	first := claimOn(t, a, "node", longShards(), 3)
	second := claimOn(t, a, "other", longShards(), 9)
	wantClaimed(t, "first", first, 3)
	wantClaimed(t, "second", second, 2)
	if ids := slices.Compact(slices.Sorted(slices.Values(slices.Concat(idsOf(first), idsOf(second))))); len(ids) != 5 {
		t.Errorf("INV-1: %v and %v", idsOf(first), idsOf(second))
	}
	if first[0].Token >= second[0].Token {
		t.Errorf("INV-9: tokens %d, then %d", first[0].Token, second[0].Token)
	}
}

// TestInterleaveIsolation: a snapshot that may be old is refused (INV-4).
func TestInterleaveIsolation(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(1, 1, 5, 1))
	for level, works := range map[pgx.TxIsoLevel]bool{
		pgx.ReadCommitted: true, pgx.ReadUncommitted: true, pgx.RepeatableRead: false, pgx.Serializable: false,
	} {
		tx, err := withoutWaiting(t, db.Connect(t)).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
		if err != nil {
			t.Fatal(err)
		}
		_, err = modelClaimRows(t.Context(), tx, "node", longShards(), 1, 0)
		var refused *pgconn.PgError
		if errors.As(err, &refused); works != (err == nil) || !works && (refused == nil || refused.Code != "OB002") {
			t.Errorf("%s: %v", level, err)
		}
		_ = tx.Rollback(t.Context())
	}
}
