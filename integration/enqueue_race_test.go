package integration

import (
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestEnqueueRace: two sessions enqueue one key. The second waits for the first; it
// is a duplicate if the first commits, and gets the key if the first rolls back
// (INV-2, INV-3).
func TestEnqueueRace(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	first, second, watch := db.Connect(t), db.Connect(t), db.Connect(t)
	for _, call := range []string{
		"select outbox.enqueue($1, 'q', $2, '')",
		"select id from outbox.enqueue_batch(array[$1], '{q}', array[$2], '{x}')",
	} {
		for _, c := range []struct {
			name, namespace string
			commits         bool
			wantNew         bool
			wantCode        string
		}{
			{"committed", "n", true, false, ""},
			{"rolled back", "n", false, true, ""},
			{"committed by another namespace", "other", true, false, "OB003"},
			{"rolled back by another namespace", "other", false, true, ""},
		} {
			t.Run(c.name, func(t *testing.T) {
				key := fmt.Sprint(call, c.name)
				tx := begin(t, first)
				put(t, tx, "n", "q", key)
				done := async(t, second, call, c.namespace, key)
				awaitBlocked(t, watch, second.PgConn().PID())
				if c.commits {
					commit(t, tx)
				} else if err := tx.Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
				got := <-done
				if c.wantCode != "" {
					wantError(t, got.err, c.wantCode)
				} else if got.err != nil || (got.value != nil) != c.wantNew {
					t.Errorf("the second got %v, %v", got.value, got.err)
				}
			})
		}
	}
}

// TestEnqueueRaceSerializable: where a stricter isolation forbids the look at the
// message that came first, the caller gets the serialization error that it retries,
// never a false answer (INV-2).
func TestEnqueueRaceSerializable(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	first, second := db.Connect(t), db.Connect(t)
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		tx := beginAt(t, second, level)
		run(t, tx, "select count(*) from outbox.message") // takes the snapshot
		put(t, first, "n", "q", string(level))
		_, err := tx.Exec(t.Context(), "select outbox.enqueue('n', 'q', $1, '')", string(level))
		wantError(t, err, "40001")
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEnqueuePrunedMeanwhile: the message that the insert ran into is pruned before
// enqueue can look at it; then the key is free, and it is written after all (INV-2).
func TestEnqueuePrunedMeanwhile(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	pruner, writer, watch := db.Connect(t), db.Connect(t), db.Connect(t)
	// A statement's trigger fires also where nothing was inserted: it holds the writer
	// between its insert and its look.
	run(t, pruner, `create function pg_temp.gate() returns trigger language plpgsql as $$
		begin perform pg_advisory_xact_lock_shared(1); return null; end $$`)
	run(t, pruner, "create trigger gate after insert on outbox.message for each statement execute function pg_temp.gate()")
	for _, call := range []string{
		"select outbox.enqueue('n', 'q', $1, '')",
		"select id from outbox.enqueue_batch('{n,n}', '{q,q}', array['before ' || $1, $1], '{x,x}') order by ord desc limit 1",
	} {
		put(t, writer, "n", "q", call)
		row := claimOne(t, writer, "n1")
		settle(t, writer, "complete", row.ID, row.Token)

		tx := begin(t, pruner)
		run(t, tx, "select pg_advisory_xact_lock(1)")
		done := async(t, writer, call, call)
		awaitBlocked(t, watch, writer.PgConn().PID())
		run(t, tx, "select outbox.prune('0', 10)")
		commit(t, tx)
		if got := <-done; got.err != nil || got.value == nil {
			t.Errorf("%s: got %v, %v, want a new message", call, got.value, got.err)
		}
		run(t, writer, "delete from outbox.pending")
	}
}

// TestEnqueueBatchOrder: batches with the same keys in opposite orders wait for each
// other and do not deadlock.
func TestEnqueueBatchOrder(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	first, second, watch := db.Connect(t), db.Connect(t), db.Connect(t)
	const call = `select count(id) from outbox.enqueue_batch(array_fill('n'::text, array[500]), array_fill('q'::text, array[500]),
		array(select 'key ' || g from generate_series(1, 500) as g order by g * $1), array_fill(''::bytea, array[500]))`
	tx := begin(t, first)
	// The first holds a key in the middle, and then asks for more, while the second,
	// whose array runs the other way, waits for that one.
	put(t, tx, "n", "q", "key 250")
	done := async(t, second, call, -1)
	awaitBlocked(t, watch, second.PgConn().PID())
	if got := one[int](t, tx, "select count(id) from outbox.enqueue_batch('{n,n}', '{q,q}', '{key 499,key 300}', '{x,x}')"); got != 2 {
		t.Errorf("the first wrote %d", got)
	}
	commit(t, tx)
	got := <-done
	if got.err != nil || *got.value != 497 {
		t.Errorf("the second wrote %v, %v, want 497", got.value, got.err)
	}
}

// TestEnqueueBatchPrunedOrder: a key that a batch ran into is pruned while the batch waits for a
// greater one, and written by somebody who then waits for the batch. The batch gives its
// keys back, and begins again in their order: no deadlock, and each key is written once.
func TestEnqueueBatchPrunedOrder(t *testing.T) {
	t.Parallel()
	const call = "select count(id) from outbox.enqueue_batch(array_fill('n'::text, array[cardinality($1::text[])]), " +
		"array_fill('q'::text, array[cardinality($1)]), $1, array_fill('x'::bytea, array[cardinality($1)]))"
	for name, write := range map[string]func(t *testing.T, tx pgx.Tx) <-chan answer{
		"beside a batch": func(t *testing.T, tx pgx.Tx) <-chan answer {
			return async(t, tx, call, []string{"b", "c"})
		},
		"beside enqueue": func(t *testing.T, tx pgx.Tx) <-chan answer {
			put(t, tx, "n", "q", "b")
			return async(t, tx, "select count(outbox.enqueue('n', 'q', 'c', ''))")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pg.New(t)
			first, second, third, watch := db.Connect(t), db.Connect(t), db.Connect(t), db.Connect(t)
			put(t, watch, "n", "q", "b")
			row := claimOne(t, watch, "n1")
			settle(t, watch, "complete", row.ID, row.Token)

			holder := begin(t, third)
			put(t, holder, "n", "q", "d")
			batch := async(t, first, call, []string{"b", "c", "d"})
			awaitBlocked(t, watch, first.PgConn().PID()) // has run into b, written c, waits for d
			if n := one[int](t, watch, "select outbox.prune('0')"); n != 1 {
				t.Fatalf("pruned %d messages, want 1", n)
			}
			tx := begin(t, second)
			other := write(t, tx) // has written b
			awaitBlocked(t, watch, second.PgConn().PID())
			commit(t, holder)
			if got := <-other; got.err != nil || *got.value == 0 {
				t.Errorf("the other wrote %v, %v, want c", got.value, got.err)
			}
			commit(t, tx)
			if got := <-batch; got.err != nil || *got.value != 0 {
				t.Errorf("the batch wrote %v, %v, want nothing: all three are there", got.value, got.err)
			}
			if keys := list[string](t, watch, "select m.dispatch_key || ' ' || m.status from outbox.messages as m order by 1"); !slices.Equal(keys, []string{"b pending", "c pending", "d pending"}) {
				t.Errorf("the messages are %q, want b, c and d, all pending", keys)
			}
		})
	}
}

// TestEnqueueBatchOldSnapshot: under repeatable read, a key that was pruned meanwhile is in
// the snapshot still, beside the message that the batch has written.
func TestEnqueueBatchOldSnapshot(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn, other := db.Connect(t), db.Connect(t)
	put(t, other, "n", "q", "k")
	run(t, other, "select outbox.cancel('{k}')")
	tx := beginAt(t, conn, pgx.RepeatableRead)
	run(t, tx, "select count(*) from outbox.message")
	run(t, other, "select outbox.prune('0')")
	if ids := list[*int64](t, tx, "select id from outbox.enqueue_batch('{n,n}', '{q,q}', '{k,k}', '{x,x}') order by ord"); len(ids) != 2 || ids[0] == nil || ids[1] != nil {
		t.Errorf("%v, want an id and a duplicate", ids)
	}
	commit(t, tx)
}
