package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// interSetUp gives a database with some messages.
func interSetUp(t *testing.T, sql string) *pgtest.DB {
	t.Helper()
	db := pg.New(t)
	interExec(t, db.Connect(t), sql)
	return db
}

// interConnect opens a session in which no statement can wait for a lock: one that has to
// fails. What it would wait for is held until the test gives it back, so that a second is
// as good as a millisecond, and leaves a busy machine its time.
func interConnect(t *testing.T, db *pgtest.DB) *pgx.Conn {
	t.Helper()
	return db.Connect(t, pgtest.Param("lock_timeout", "1s"))
}

func interBegin(t *testing.T, conn *pgx.Conn) pgx.Tx {
	t.Helper()
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func interCommit(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func interExec(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if err := conn.PgConn().Exec(t.Context(), sql).Close(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func interClaim(t *testing.T, q modelQueryer, node string, shards []int, batch int) []modelClaimed {
	t.Helper()
	rows, err := modelClaimRows(t.Context(), q, node, shards, batch, 0)
	if err != nil {
		t.Fatalf("claim: %v", err)
	}
	return rows
}

// interScan reads one value.
func interScan[T any](t *testing.T, q modelQueryer, sql string, args ...any) T {
	t.Helper()
	rows, err := q.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	value, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

func interIDs(rows []modelClaimed) []int64 {
	var ids []int64
	for _, r := range rows {
		ids = append(ids, r.ID)
	}
	slices.Sort(ids)
	return ids
}

func interWant(t *testing.T, what string, rows []modelClaimed, want int) {
	t.Helper()
	if len(rows) != want {
		t.Fatalf("%s: %d rows, want %d", what, len(rows), want)
	}
}

// interWaits runs do beside the test, and returns once that session waits for a lock;
// the function that it returns gives the outcome.
func interWaits(t *testing.T, db *pgtest.DB, conn *pgx.Conn, do func() error) (done func() error) {
	t.Helper()
	watch, pid, result := db.Connect(t), conn.PgConn().PID(), make(chan error, 1)
	go func() { result <- do() }()
	interUntil(t, "the session waits for a lock", func() bool {
		return interScan[bool](t, watch, `select exists (select from pg_stat_activity as a where a.pid = $1 and a.wait_event_type = 'Lock')`, pid)
	})
	return func() error {
		select {
		case err := <-result:
			return err
		case <-time.After(patience()):
			return errors.New("it still waits")
		}
	}
}

// interUntil polls until a condition holds.
func interUntil(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience()); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// TestInterleaveSameNode: a claim beside an open one of the same node is empty and does
// not wait; so is that of another node on the same shards (INV-1, INV-11).
func TestInterleaveSameNode(t *testing.T) {
	t.Parallel()
	db := interSetUp(t, longBacklog(2, 1, 10, 1))
	a, b := interBegin(t, interConnect(t, db)), interConnect(t, db)
	first := interClaim(t, a, "node", []int{0, 1, 2, 3, 4, 5, 6, 7}, 5)
	interWant(t, "first", first, 5)
	interWant(t, "the same node, other shards", interClaim(t, b, "node", []int{8, 9, 10, 11, 12, 13, 14, 15}, 20), 0)
	interWant(t, "another node, the same shards", interClaim(t, b, "other", []int{0, 1, 2, 3, 4, 5, 6, 7}, 20), 0)
	interCommit(t, a)
	rest := interClaim(t, b, "node", longShards(), 20)
	interWant(t, "after the commit", rest, 15)
	for _, id := range interIDs(rest) {
		if slices.Contains(interIDs(first), id) {
			t.Errorf("INV-1: message %d was claimed twice", id)
		}
	}
}

// TestInterleaveOverlap: shards that another claim holds are left out, of the rows and
// of the ceiling (INV-4).
func TestInterleaveOverlap(t *testing.T) {
	t.Parallel()
	db := interSetUp(t, `select outbox.configure('{"default_quota": 16}');`+longBacklog(1, 1, 400, 1))
	a, b := interBegin(t, interConnect(t, db)), interConnect(t, db)
	interWant(t, "8 of 16 shards", interClaim(t, a, "a", []int{0, 1, 2, 3, 4, 5, 6, 7}, 100), 8)
	rows := interClaim(t, b, "b", []int{4, 5, 6, 7, 8, 9, 10, 11}, 100)
	interWant(t, "4 of 16 shards", rows, 4)
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
	db := interSetUp(t, `select outbox.configure('{"default_quota": 5}');`+longBacklog(1, 1, 400, 1))
	sum := 0
	for n := range 4 {
		tx := interBegin(t, interConnect(t, db))
		rows := interClaim(t, tx, fmt.Sprint("node", n), []int{4 * n, 4*n + 1, 4*n + 2, 4*n + 3}, 100)
		interWant(t, "a quarter of 5, rounded up", rows, 2)
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
	db := interSetUp(t, `select outbox.set_quota('ns1', 2, true);`+longBacklog(2, 1, 400, 1))
	a, b := interBegin(t, interConnect(t, db)), interConnect(t, db)
	count := func(rows []modelClaimed) (n int) {
		for _, r := range rows {
			if r.Namespace == "ns1" {
				n++
			}
		}
		return n
	}
	if n := count(interClaim(t, a, "a", []int{0, 1, 2, 3, 4, 5, 6, 7}, 10)); n != 1 {
		t.Errorf("%d rows of the strict one on half of the shards, want 1", n)
	}
	rows := interClaim(t, b, "b", []int{8, 9, 10, 11, 12, 13, 14, 15}, 10)
	interWant(t, "the other namespace", rows, 10)
	if n := count(rows); n != 0 {
		t.Errorf("%d rows of a strict namespace that another claim counts", n)
	}
	interCommit(t, a)
	if n := count(interClaim(t, b, "b", []int{8, 9, 10, 11, 12, 13, 14, 15}, 10)); n != 1 {
		t.Errorf("%d rows of the strict one after the commit, want 1", n)
	}
	if n := count(interClaim(t, b, "c", longShards(), 10)); n != 0 {
		t.Errorf("%d rows of the strict one at its quota", n)
	}
}

// TestInterleaveBegunBefore: a transaction that began before others committed sees what
// they claimed and what they enqueued (INV-4, INV-15).
func TestInterleaveBegunBefore(t *testing.T) {
	t.Parallel()
	db := interSetUp(t, `select outbox.set_quota('ns1', 5);`+longBacklog(1, 1, 4, 1))
	a, other := interBegin(t, interConnect(t, db)), interConnect(t, db)
	interScan[int](t, a, `select count(*)::int from outbox.pending as p`)
	interWant(t, "the other's", interClaim(t, other, "other", longShards(), 3), 3)
	interExec(t, other, `select outbox.enqueue('ns1', 'q1', 'new' || k, '') from generate_series(1, 9) as k`)
	interWant(t, "what is left of the quota", interClaim(t, a, "a", longShards(), 10), 2)
}

// TestInterleaveLockedRows: rows that somebody has locked cost no place and no wait,
// wherever they stand (INV-6, INV-11); INV-8: they are what they were.
func TestInterleaveLockedRows(t *testing.T) {
	t.Parallel()
	db := interSetUp(t, longBacklog(2, 4, 10, 1))
	locker, b := interBegin(t, interConnect(t, db)), interConnect(t, db)
	interScan[int](t, locker, `with l as (
		select p.id from outbox.pending as p where p.namespace = 'ns1' and p.task_queue <> 'q4' or p.id % 2 = 0 for update)
		select count(*)::int from l`)
	for _, batch := range []int{1, 2, 5} {
		interWant(t, "what is not locked", interClaim(t, b, "b", longShards(), batch), batch)
	}
	free := interScan[int](t, b, `select count(*)::int from (select from outbox.pending as p for update skip locked) as x`)
	interWant(t, "all that is not locked", interClaim(t, b, "b", longShards(), 100), free)
	interCommit(t, locker)
	interWant(t, "the rest", interClaim(t, b, "b", longShards(), 100), 80-8-free)
}

// TestInterleaveRescheduled: a claim passes a row that is being moved to the future,
// and does not take it after the commit; one that is moved to the past it takes then.
func TestInterleaveRescheduled(t *testing.T) {
	t.Parallel()
	db := interSetUp(t, longBacklog(1, 1, 2, 1)+`select outbox.enqueue('ns1', 'q1', 'late', '', delay => '1 h')`)
	operator, b := interBegin(t, interConnect(t, db)), interConnect(t, db)
	if _, err := operator.Exec(t.Context(), `update outbox.pending as p
		set visible_after = case when p.id = 1 then 'infinity' else '-infinity' end::timestamptz where p.id in (1, 3)`); err != nil {
		t.Fatal(err)
	}
	if got := interIDs(interClaim(t, b, "b", longShards(), 10)); !slices.Equal(got, []int64{2}) {
		t.Errorf("claimed %v while 1 and 3 are locked", got)
	}
	interCommit(t, operator)
	if got := interIDs(interClaim(t, b, "b", longShards(), 10)); !slices.Equal(got, []int64{3}) {
		t.Errorf("claimed %v after 1 went to the future and 3 to the past", got)
	}
}

// TestInterleaveSavepoint: a claim that is rolled back to a savepoint never was, its
// locks neither (INV-2, INV-8).
func TestInterleaveSavepoint(t *testing.T) {
	t.Parallel()
	db := interSetUp(t, longBacklog(1, 1, 5, 1))
	a, b := interBegin(t, interConnect(t, db)), interConnect(t, db)
	inner, err := a.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	interWant(t, "inner", interClaim(t, inner, "node", longShards(), 3), 3)
	interWant(t, "beside it", interClaim(t, b, "other", longShards(), 3), 0)
	if err := inner.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	rows := interClaim(t, b, "node", longShards(), 10)
	interWant(t, "after the rollback", rows, 5)
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
	db := interSetUp(t, `select outbox.set_quota('ns1', 5, true);`+longBacklog(1, 1, 10, 1))
	a := interBegin(t, interConnect(t, db))
	first := interClaim(t, a, "node", longShards(), 3)
	second := interClaim(t, a, "other", longShards(), 9)
	interWant(t, "first", first, 3)
	interWant(t, "second", second, 2)
	if ids := slices.Compact(slices.Sorted(slices.Values(slices.Concat(interIDs(first), interIDs(second))))); len(ids) != 5 {
		t.Errorf("INV-1: %v and %v", interIDs(first), interIDs(second))
	}
	if first[0].Token >= second[0].Token {
		t.Errorf("INV-9: tokens %d, then %d", first[0].Token, second[0].Token)
	}
}

// TestInterleaveIsolation: a snapshot that may be old is refused (INV-4).
func TestInterleaveIsolation(t *testing.T) {
	t.Parallel()
	db := interSetUp(t, longBacklog(1, 1, 5, 1))
	for level, works := range map[pgx.TxIsoLevel]bool{
		pgx.ReadCommitted: true, pgx.ReadUncommitted: true, pgx.RepeatableRead: false, pgx.Serializable: false,
	} {
		tx, err := interConnect(t, db).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
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
