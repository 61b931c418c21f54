package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// querier is what a pool, a connection and a transaction have in common.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// run executes a statement that must succeed.
func run(t testing.TB, q querier, sql string, args ...any) {
	t.Helper()
	if _, err := q.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%v in: %s", err, sql)
	}
}

// one returns the only value of the only row.
func one[T any](t testing.TB, q querier, sql string, args ...any) T {
	t.Helper()
	rows, _ := q.Query(t.Context(), sql, args...)
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%v in: %s", err, sql)
	}
	return v
}

// list returns the first column.
func list[T any](t testing.TB, q querier, sql string, args ...any) []T {
	t.Helper()
	rows, _ := q.Query(t.Context(), sql, args...)
	v, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%v in: %s", err, sql)
	}
	return v
}

// wantError fails unless err is the server's, has the code, and says each part in
// its message, detail, hint or constraint.
func wantError(t testing.TB, err error, code string, parts ...string) {
	t.Helper()
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		t.Errorf("got %v, want error %s", err, code)
		return
	}
	text := strings.Join([]string{pgErr.Message, pgErr.Detail, pgErr.Hint, pgErr.ConstraintName}, "\n")
	if pgErr.Code != code {
		t.Errorf("got error %s (%s), want %s", pgErr.Code, text, code)
	}
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("error %s does not say %q: %s", code, part, text)
		}
	}
}

// setUp makes a database and runs statements in it.
func setUp(t testing.TB, sql string) *pgtest.DB {
	t.Helper()
	db := pg.New(t)
	run(t, db.Pool, sql)
	return db
}

// begin opens a read committed transaction that is rolled back at cleanup unless
// it ended before.
func begin(t testing.TB, conn *pgx.Conn) pgx.Tx {
	t.Helper()
	return beginAt(t, conn, pgx.ReadCommitted)
}

func beginAt(t testing.TB, conn *pgx.Conn, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func commit(t testing.TB, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// patience is how long a test waits for what must come before it says that it never
// will. Only a test that fails waits so long, so a busy machine costs nothing.
func patience() time.Duration { return scaled(2 * time.Minute) }

// scaled is d, longer or shorter by FAIRCLAIM_TEST_PATIENCE. A limit shorter than patience
// goes through it: the time within which something must have happened, the lease that a
// node must extend.
func scaled(d time.Duration) time.Duration { return pgtest.Scaled(d) }

// await polls until the query, which gives one boolean, says true.
func await(t testing.TB, q querier, sql string, args ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience())
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !one[bool](t, q, sql, args...) {
		select {
		case <-ctx.Done():
			t.Fatalf("waited for %v, and it never came true: %s", patience(), sql)
		case <-tick.C:
		}
	}
}

// impatient makes a session fail, rather than hang, where it waits for a lock that
// nobody releases. A session that may not wait at all is made by withoutWaiting.
func impatient(t testing.TB, conn *pgx.Conn) *pgx.Conn {
	t.Helper()
	run(t, conn, fmt.Sprintf("set lock_timeout = %d", patience().Milliseconds()))
	return conn
}

// withoutWaiting makes a session fail where it would have to wait for a lock. Whoever holds
// the lock holds it until the test says otherwise, so that a second is as good as a
// millisecond, and leaves a busy machine its time.
func withoutWaiting(t testing.TB, conn *pgx.Conn) *pgx.Conn {
	t.Helper()
	run(t, conn, "set lock_timeout = '1 s'")
	return conn
}

// whileWaiting calls do in another goroutine and returns once its session, conn, waits for
// a lock. The function that it returns waits for the end of do and gives its error.
func whileWaiting(t testing.TB, db *pgtest.DB, conn *pgx.Conn, do func() error) (done func() error) {
	t.Helper()
	result := make(chan error, 1)
	go func() { result <- do() }()
	await(t, db.Connect(t), "select exists (select from pg_stat_activity as a where a.pid = $1 and a.wait_event_type = 'Lock')", conn.PgConn().PID())
	return func() error {
		select {
		case err := <-result:
			return err
		case <-time.After(patience()):
			return errors.New("the session still waits for a lock")
		}
	}
}

// awaitBlocked polls until the session with this process id waits for a lock.
func awaitBlocked(t testing.TB, q querier, pid uint32) {
	t.Helper()
	await(t, q, "select cardinality(pg_blocking_pids($1)) > 0", pid)
}

// put enqueues one empty message and returns its id.
func put(t testing.TB, q querier, namespace, queue, key string) int64 {
	t.Helper()
	return one[int64](t, q, "select outbox.enqueue($1, $2, $3, '')", namespace, queue, key)
}

// claimRow is a row of claim_fair, by the columns that tests look at.
type claimRow struct {
	ID         int64     `db:"id"`
	Token      int64     `db:"claim_token"`
	Namespace  string    `db:"namespace"`
	Queue      string    `db:"task_queue"`
	Key        string    `db:"dispatch_key"`
	Shard      int       `db:"shard"`
	Attempt    int       `db:"attempt"`
	Payload    []byte    `db:"payload"`
	LeaseUntil time.Time `db:"lease_until"`
	Pass       int       `db:"pass"`
}

const claimColumns = "id, claim_token, namespace, task_queue, dispatch_key, shard, attempt, payload, lease_until, pass"

// claim claims up to batch rows on all shards.
func claim(t testing.TB, q querier, node string, batch int) []claimRow {
	t.Helper()
	rows, _ := q.Query(t.Context(), "select "+claimColumns+" from outbox.claim_fair($1, outbox.all_shards(), $2)", node, batch)
	got, err := pgx.CollectRows(rows, pgx.RowToStructByName[claimRow])
	if err != nil {
		t.Fatalf("claim: %v", err)
	}
	return got
}

// claimOn claims up to batch rows on these shards.
func claimOn(t testing.TB, q querier, node string, shards []int, batch int) []modelClaimed {
	t.Helper()
	rows, err := modelClaimRows(t.Context(), q, node, shards, batch, 0)
	if err != nil {
		t.Fatalf("claim: %v", err)
	}
	return rows
}

// wantClaimed fails unless a claim has brought so many rows.
func wantClaimed(t testing.TB, what string, rows []modelClaimed, want int) {
	t.Helper()
	if len(rows) != want {
		t.Fatalf("%s: %d rows, want %d", what, len(rows), want)
	}
}

// idsOf are the ids of claimed rows, in ascending order.
func idsOf(rows []modelClaimed) []int64 {
	var ids []int64
	for _, r := range rows {
		ids = append(ids, r.ID)
	}
	slices.Sort(ids)
	return ids
}

// claimOne claims the one message that is due.
func claimOne(t testing.TB, q querier, node string) claimRow {
	t.Helper()
	got := claim(t, q, node, 100)
	if len(got) != 1 {
		t.Fatalf("claimed %d rows, want 1", len(got))
	}
	return got[0]
}

// settle calls complete, retry, fail, release or extend on one message and says
// whether it was settled rather than lost.
func settle(t testing.TB, q querier, how string, id, token int64) bool {
	t.Helper()
	got := list[int64](t, q, "select * from outbox."+how+"(array[$1::bigint], array[$2::bigint])", id, token)
	if len(got) > 1 || len(got) == 1 && got[0] != id {
		t.Fatalf("%s of %d gave %v", how, id, got)
	}
	return len(got) == 1
}

// settleAll settles rows by the function of that name, and returns how many were settled
// rather than lost.
func settleAll(t testing.TB, q querier, how string, rows []modelClaimed) int {
	t.Helper()
	var ids, tokens []int64
	for _, r := range rows {
		ids = append(ids, r.ID)
		tokens = append(tokens, r.Token)
	}
	return one[int](t, q, fmt.Sprintf("select count(*)::int from outbox.%s($1, $2) as x", how), ids, tokens)
}

// wantEachOnce fails unless each message stands in exactly one table (INV-2).
func wantEachOnce(t testing.TB, db *pgtest.DB) {
	t.Helper()
	if err := hammerAccount(t.Context(), db.Connect(t)); err != nil {
		t.Error(err)
	}
}

// status is a message's status in the view, "" where it is gone.
func status(t testing.TB, q querier, id int64) string {
	t.Helper()
	return one[string](t, q, "select coalesce((select m.status from outbox.messages as m where m.id = $1), '')", id)
}

// expire makes the leases of all claims of the namespace end a second ago.
func expire(t testing.TB, q querier, namespace string) {
	t.Helper()
	run(t, q, "update outbox.claimed set lease_until = clock_timestamp() - interval '1 s' where namespace = $1", namespace)
}

// answer is what a call in another goroutine came back with; value is nil for a
// null.
type answer struct {
	value *int64
	err   error
}

// async runs a query that gives one number, and may have to wait for it, in another
// goroutine. The caller reads the channel before its test ends.
func async(t testing.TB, q querier, sql string, args ...any) <-chan answer {
	done := make(chan answer, 1)
	ctx := t.Context()
	go func() {
		rows, _ := q.Query(ctx, sql, args...)
		v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[*int64])
		done <- answer{v, err}
	}()
	return done
}

// ringByName makes claims of an outbox without messages walk in the order of names, which a person
// can foretell: all names stand at one place of the ring, where their own order decides.
const ringByName = `create or replace function outbox.ring(name text) returns int language sql immutable parallel safe begin atomic select 0; end;`
