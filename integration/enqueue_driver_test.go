package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fairclaim/fairclaim/driver"
)

// INV-3: what goes in is what stands in the tables, and a second time it is a
// duplicate, on every way in.
func TestDriverEnqueueEveryWay(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	for _, by := range enqueuers(t, db.DSN) {
		singles, batch := oddMessages(by.name+"/1/"), oddMessages(by.name+"/n/")
		for _, m := range singles {
			first, err := by.one(t.Context(), m)
			if err != nil || first.Duplicate || first.ID < 1 {
				t.Fatalf("%s: %q: %+v, %v", by.name, m.DispatchKey, first, err)
			}
			again, err := by.one(t.Context(), m)
			if err != nil || again != (driver.Enqueued{Duplicate: true}) {
				t.Fatalf("%s: %q again: %+v, %v", by.name, m.DispatchKey, again, err)
			}
			wantStored(t, db.Pool, m)
		}

		twice := batch[3]
		twice.Payload = []byte("second in the batch")
		given := append(batch[:len(batch):len(batch)], twice)
		found, err := by.batch(t.Context(), given)
		if err != nil || len(found) != len(given) {
			t.Fatalf("%s: %d results, %v", by.name, len(found), err)
		}
		for i, m := range batch {
			if id := one[int64](t, db.Pool, `select id from outbox.message where dispatch_key = $1`, m.DispatchKey); found[i] != (driver.Enqueued{ID: id}) {
				t.Errorf("%s: result %d is %+v, want id %d", by.name, i, found[i], id)
			}
			wantStored(t, db.Pool, m)
		}
		if last := found[len(batch)]; last != (driver.Enqueued{Duplicate: true}) {
			t.Errorf("%s: a key twice in a batch: %+v", by.name, last)
		}
		again, err := by.batch(t.Context(), given)
		if err != nil {
			t.Fatalf("%s: again: %v", by.name, err)
		}
		for i, e := range again {
			if e != (driver.Enqueued{Duplicate: true}) {
				t.Errorf("%s: message %d again: %+v", by.name, i, e)
			}
		}
		plain := oddMessages(by.name + "/plain/")
		plain = plain[len(plain)-3:] // nothing but defaults
		if found, err := by.batch(t.Context(), plain); err != nil || len(found) != 3 || found[0].ID < 1 {
			t.Fatalf("%s: without headers: %+v, %v", by.name, found, err)
		}
		for _, m := range plain {
			wantStored(t, db.Pool, m)
		}
		if none, err := by.batch(t.Context(), nil); err != nil || len(none) != 0 {
			t.Errorf("%s: no messages: %v, %v", by.name, none, err)
		}
	}
	if n := one[int](t, db.Pool, `select count(*) from outbox.message as m full join outbox.pending as p using (id, namespace, task_queue)
		where m.id is null or p.id is null or p.payload_bytes <> octet_length(m.payload)`); n != 0 {
		t.Errorf("%d messages without their pending row, or the other way round", n)
	}
}

func TestDriverEnqueueDelay(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	for _, style := range []string{"postgres", "postgres_verbose", "sql_standard", "iso_8601"} {
		run(t, db.Pool, fmt.Sprintf("alter role %s in database %s set IntervalStyle = %s", db.Owner, db.Name, style))
		for _, by := range enqueuers(t, db.DSN)[:3] {
			for _, delay := range []time.Duration{-time.Hour, 0, 1, 1500 * time.Microsecond, 36 * time.Hour, math.MaxInt64} {
				key := fmt.Sprint(style, by.name, delay)
				m := driver.Message{Namespace: "n", TaskQueue: "q", DispatchKey: key, Delay: delay}
				if _, err := by.one(t.Context(), m); err != nil {
					t.Fatal(err)
				}
				m.DispatchKey += "/batch"
				at := driver.Message{Namespace: "n", TaskQueue: "q", DispatchKey: key + "/at once"}
				if _, err := by.batch(t.Context(), []driver.Message{at, m}); err != nil {
					t.Fatal(err)
				}
				want := (max(delay, 0) + 999) / 1000
				if delay == math.MaxInt64 {
					want = math.MaxInt64/1000 + 1
				}
				for k, want := range map[string]time.Duration{key: want, m.DispatchKey: want, at.DispatchKey: 0} {
					if got := one[int64](t, db.Pool, `select (extract(epoch from p.visible_after - m.created_at) * 1e6)::bigint
						from outbox.message as m join outbox.pending as p using (id) where m.dispatch_key = $1`, k); got != int64(want) {
						t.Errorf("%s: due after %d us, want %d", k, got, want)
					}
				}
			}
		}
	}
}

// INV-3: a key of another namespace is an error that says so, on every way in.
func TestDriverEnqueueErrors(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	if _, err := driver.Enqueue(t.Context(), db.Pool, driver.Message{Namespace: "other", TaskQueue: "q", DispatchKey: "theirs"}); err != nil {
		t.Fatal(err)
	}
	good := driver.Message{Namespace: "n", TaskQueue: "q", DispatchKey: "k"}
	tests := []struct {
		name   string
		change func(*driver.Message)
		want   error
		code   string // "": found before the database is asked
		text   string
	}{
		{"no namespace", func(m *driver.Message) { m.Namespace = "" }, driver.ErrBadArgument, "", "namespace has 0 bytes"},
		{"long queue", func(m *driver.Message) { m.TaskQueue = strings.Repeat("ü", 257) }, driver.ErrBadArgument, "", "task_queue has 514 bytes"},
		{"NUL in key", func(m *driver.Message) { m.DispatchKey = "a\x00b" }, driver.ErrBadArgument, "", "dispatch_key has a NUL byte"},
		{"Latin-1 namespace", func(m *driver.Message) { m.Namespace = "caf\xe9" }, driver.ErrBadArgument, "", "namespace is not valid UTF-8"},
		{"NUL in header", func(m *driver.Message) { m.Headers = map[string]string{"X": "\x00"} }, driver.ErrBadArgument, "", `header "X" has a NUL byte`},
		{"Latin-1 header name", func(m *driver.Message) { m.Headers = map[string]string{"\xe9": ""} }, driver.ErrBadArgument, "", `header "\xe9" is not valid UTF-8`},
		{"long content type", func(m *driver.Message) { m.ContentType = strings.Repeat("x", 257) }, driver.ErrBadArgument, "", "content_type has 257 bytes"},
		{"key taken", func(m *driver.Message) { m.DispatchKey = "theirs" }, driver.ErrKeyTaken, "OB003", "another namespace"},
		{"large", func(m *driver.Message) { m.Payload = make([]byte, 1<<20+1) }, driver.ErrPayloadTooLarge, "OB004", "1048577 bytes, the limit is 1048576"},
	}
	for _, by := range enqueuers(t, db.DSN) {
		for _, tt := range tests {
			m := good
			tt.change(&m)
			_, one := by.one(t.Context(), m)
			_, batch := by.batch(t.Context(), []driver.Message{good, m})
			for verb, err := range map[string]error{"enqueue: ": one, "enqueue batch: ": batch} {
				var pgErr *pgconn.PgError
				code := ""
				if errors.As(err, &pgErr) {
					code = pgErr.Code
				}
				if !errors.Is(err, tt.want) || code != tt.code || !strings.HasPrefix(err.Error(), verb) || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("%s: %s: %v (code %q)", by.name, tt.name, err, code)
				}
			}
			if batch != nil && tt.code == "" && !strings.Contains(batch.Error(), "message 1: ") {
				t.Errorf("%s: %s: %v names no message", by.name, tt.name, batch)
			}
		}
	}
	if n := one[int](t, db.Pool, `select count(*) from outbox.message where dispatch_key <> 'theirs'`); n != 0 {
		t.Errorf("%d messages were written beside errors", n)
	}

	// Of several statements it is said which one was refused.
	many := make([]driver.Message, 6000)
	for i := range many {
		many[i] = driver.Message{Namespace: "n", TaskQueue: "q", DispatchKey: fmt.Sprintf("u%05d", i)}
	}
	many[7].DispatchKey = "theirs"
	_, err := driver.EnqueueBatch(t.Context(), db.Pool, many)
	if !errors.Is(err, driver.ErrKeyTaken) || !strings.Contains(err.Error(), `keys "theirs" to "u04999": `) || !strings.Contains(err.Error(), "positions 8 ") {
		t.Errorf("several statements: %v", err)
	}
}

// INV-2: a message exists if and when the caller's transaction commits, also when a
// batch takes several statements.
func TestDriverEnqueueInTransaction(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	big := make([]driver.Message, 12_000)
	for i := range big {
		big[i] = driver.Message{Namespace: "n", TaskQueue: "q", DispatchKey: fmt.Sprintf("%05d", (i*7919)%12_000), Payload: fmt.Append(nil, i)}
	}
	ctx := t.Context()
	tx, err := db.Pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := driver.EnqueueBatch(ctx, tx, big); err != nil {
		t.Fatal(err)
	}
	if n := one[int](t, db.Pool, `select count(*) from outbox.message`); n != 0 {
		t.Errorf("%d messages before the commit", n)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if n := one[int](t, db.Pool, `select count(*) from outbox.message`); n != 0 {
		t.Errorf("%d messages after the rollback", n)
	}

	found, err := driver.EnqueueBatch(ctx, db.Pool, big)
	if err != nil {
		t.Fatal(err)
	}
	for i, id := range list[int64](t, db.Pool, `select m.id from outbox.message as m order by convert_from(m.payload, 'utf8')::int`) {
		if found[i] != (driver.Enqueued{ID: id}) {
			t.Fatalf("result %d is %+v, want id %d", i, found[i], id)
		}
	}

	std := stdlib.OpenDBFromPool(db.Pool)
	defer std.Close()
	sqlTx, err := std.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	mixed := []driver.Message{{Namespace: "n", TaskQueue: "q", DispatchKey: "new"}, big[0]}
	again, err := driver.EnqueueBatchSQL(ctx, sqlTx, mixed)
	if err != nil || again[0].ID == 0 || !again[1].Duplicate {
		t.Fatalf("%+v, %v", again, err)
	}
	if err := sqlTx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if n := one[int](t, db.Pool, `select count(*) from outbox.message where dispatch_key = 'new'`); n != 0 {
		t.Error("a message that was rolled back exists")
	}
}

// Of two messages with one key the first is written, also when large payloads spread
// a batch over statements; and payloads of the largest size come through.
func TestDriverEnqueueLargePayloads(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	var ms []driver.Message
	for i := range 24 {
		ms = append(ms, driver.Message{
			Namespace: "n", TaskQueue: "q", DispatchKey: fmt.Sprint("k", i%12),
			Payload: bytes.Repeat([]byte{byte(i)}, 1<<20),
		})
	}
	for _, by := range []func() ([]driver.Enqueued, error){
		func() ([]driver.Enqueued, error) { return driver.EnqueueBatch(t.Context(), db.Pool, ms) },
		func() ([]driver.Enqueued, error) {
			std := stdlib.OpenDBFromPool(db.Pool)
			defer std.Close()
			return driver.EnqueueBatchSQL(t.Context(), std, ms)
		},
	} {
		found, err := by()
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range found {
			if e.Duplicate != (i >= 12) {
				t.Errorf("message %d: %+v", i, e)
			}
		}
		for i := range 12 {
			wantStored(t, db.Pool, ms[i])
		}
		run(t, db.Pool, `truncate outbox.message, outbox.pending`)
	}
}

// Two batches of several statements with the same keys, in opposite orders, in open
// transactions: one waits for the other, and neither deadlocks.
func TestDriverEnqueueBatchesDoNotDeadlock(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	const n = 11_000
	errs := make(chan error, 4)
	for g := range cap(errs) {
		go func() {
			ms := make([]driver.Message, n)
			for i := range ms {
				at := i
				if g%2 == 1 {
					at = n - 1 - i
				}
				ms[i] = driver.Message{Namespace: "n", TaskQueue: "q", DispatchKey: fmt.Sprintf("%06d", at)}
			}
			errs <- pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
				_, err := driver.EnqueueBatch(t.Context(), tx, ms)
				return err
			})
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if got := one[int](t, db.Pool, `select count(*) from outbox.pending`); got != n {
		t.Errorf("%d messages, want %d", got, n)
	}
}

// What a cancelled context or a broken connection leaves is an error, never a result.
func TestDriverEnqueueCancelled(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := driver.Message{Namespace: "n", TaskQueue: "q", DispatchKey: "k"}
	if _, err := driver.Enqueue(ctx, db.Pool, m); !errors.Is(err, context.Canceled) {
		t.Errorf("Enqueue: %v", err)
	}
	if found, err := driver.EnqueueBatch(ctx, db.Pool, []driver.Message{m}); found != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("EnqueueBatch: %v, %v", found, err)
	}
	std := stdlib.OpenDBFromPool(db.Pool)
	defer std.Close()
	if _, err := driver.EnqueueSQL(ctx, std, m); !errors.Is(err, context.Canceled) {
		t.Errorf("EnqueueSQL: %v", err)
	}
}
