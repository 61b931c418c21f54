package integration

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestShardCountUnderOlderSnapshot: a producer whose snapshot is older than a change of
// shard_count is told to try again, in place of writing to shards that nobody claims from; where
// the change was rolled back, and in a new transaction, it enqueues.
func TestShardCountUnderOlderSnapshot(t *testing.T) {
	t.Parallel()
	for _, call := range []string{
		"select outbox.enqueue('n', 'q', 'k', 'x')", "select outbox.enqueue_json('n', 'q', 'k', '{}')",
		"select outbox.enqueue_batch('{n}', '{q}', '{k}', '{x}')",
	} {
		for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
			for _, count := range []int{4, 64} {
				t.Run(fmt.Sprint(call[14:24], " ", level, " ", count), func(t *testing.T) {
					t.Parallel()
					db := pg.New(t)
					conn, other := db.Connect(t), db.Connect(t)
					change := fmt.Sprintf(`select outbox.configure('{"shard_count": %d}')`, count)

					tx := beginAt(t, conn, level)
					run(t, tx, "select 1") // takes the snapshot
					undone := begin(t, other)
					run(t, undone, change)
					if err := undone.Rollback(t.Context()); err != nil {
						t.Fatal(err)
					}
					run(t, tx, "savepoint before")
					run(t, tx, call)
					run(t, tx, "rollback to before")
					if err := tx.Rollback(t.Context()); err != nil {
						t.Fatal(err)
					}

					tx = beginAt(t, conn, level)
					run(t, tx, "select 1")
					run(t, other, change)
					_, err := tx.Exec(t.Context(), call)
					wantError(t, err, "40001")
					if err := tx.Rollback(t.Context()); err != nil {
						t.Fatal(err)
					}

					tx = beginAt(t, conn, level)
					run(t, tx, call)
					commit(t, tx)
					wantSound(t, conn)
				})
			}
		}
	}
}
