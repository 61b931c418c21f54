package driver

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Cancelled is a message that [Cancel] has settled as cancelled.
type Cancelled struct {
	DispatchKey string
	Was         string // pending, or claimed: its delivery may go on, but the settle of it is then lost
}

// Cancel settles pending and claimed messages as cancelled, and returns those that it
// cancelled. Keys that do not exist, or whose messages were settled already, are left out.
func Cancel(ctx context.Context, db Querier, dispatchKeys []string) ([]Cancelled, error) {
	if len(dispatchKeys) == 0 {
		return nil, nil
	}
	rows, err := db.Query(ctx, `select c.dispatch_key, c.was from outbox.cancel($1::pg_catalog.text[]) as c`, dispatchKeys)
	if err != nil {
		return nil, wrap("cancel", err)
	}
	cancelled, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Cancelled])
	return cancelled, wrap("cancel", err)
}

// Redrive brings failed and cancelled messages back: pending, due now, their attempts counted
// from 0 again. It returns the ids of those that it brought back; the others do not exist,
// or are in another state.
func Redrive(ctx context.Context, db Querier, ids []int64) ([]int64, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	rows, err := db.Query(ctx, `select outbox.redrive($1::bigint[])`, ids)
	if err != nil {
		return nil, wrap("redrive", err)
	}
	redriven, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	return redriven, wrap("redrive", err)
}

// Prune deletes up to limit messages that were done or cancelled longer ago than the
// configured retention, and returns how many. Their dispatch keys are free again.
func Prune(ctx context.Context, db Querier, limit int) (int, error) {
	n, err := queryOne[int](ctx, db, `select outbox.prune(null, $1::int)`, limit)
	return n, wrap("prune", err)
}
