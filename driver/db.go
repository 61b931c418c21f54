package driver

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Querier runs a query: a *pgxpool.Pool, a *pgx.Conn or a pgx.Tx, in whatever
// query execution mode.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// DB is what [Claim], [Heartbeat] and [Leave] need: a [Querier] that can begin a
// transaction. A *pgxpool.Pool and a *pgx.Conn are.
type DB interface {
	Querier
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// rollbackTimeout is how long a rollback may take after the caller's context has ended.
const rollbackTimeout = 5 * time.Second

// readCommitted runs do in a transaction and commits it. The transaction is read committed,
// whatever the role's default: functions that take a lock and then count must see what was
// committed before they had the lock.
//
// A rollback is sent also after ctx has ended, so that the connection is fit for its next
// use. Its own error is dropped: the error of do is the cause, and a broken connection
// rolls back by itself.
func readCommitted(ctx context.Context, db DB, do func(tx pgx.Tx) error) error {
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_ = tx.Rollback(late)
		return err
	}
	return tx.Commit(ctx)
}

// queryOne runs a query that returns one row of one column.
func queryOne[T any](ctx context.Context, db Querier, sql string, args ...any) (T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		var zero T
		return zero, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
}
