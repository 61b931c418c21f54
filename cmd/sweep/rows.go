package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// showTimeout is how long each statement of a command that shows something may take.
const showTimeout = 30 * time.Second

// rowsOf reads rows into structs, by position; never nil.
func rowsOf[T any](ctx context.Context, tx pgx.Tx, what, sql string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("read the %s: %w", what, err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	if err != nil {
		return nil, fmt.Errorf("read the %s: %w", what, err)
	}
	if all == nil {
		all = []T{}
	}
	return all, nil
}

// byIndex keeps the planner, for the rest of the transaction, from reading tables as a
// whole, or from sorting what an index has in order, whatever its statistics say.
func byIndex(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `
		select set_config(s.name, 'off', true)
		from unnest(array['enable_seqscan', 'enable_hashjoin', 'enable_mergejoin', 'enable_sort', 'jit']) as s(name)`)
	if err != nil {
		return fmt.Errorf("set up the transaction: %w", err)
	}
	return nil
}
