package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// showTimeout is how long each statement of a command that shows something may take.
const showTimeout = 30 * time.Second

// listRows is how many rows a command shows of a list that may be longer.
const listRows = 100

// rowsOf reads rows into structs, field by column, in their order. The result is never
// nil, so that JSON has [] and not null. An error begins with what.
func rowsOf[T any](ctx context.Context, tx pgx.Tx, what, sql string, args ...any) ([]T, error) {
	return collect(ctx, tx, pgx.CollectRows[T], what, sql, args)
}

// rowOf reads exactly one row into a struct.
func rowOf[T any](ctx context.Context, tx pgx.Tx, what, sql string, args ...any) (T, error) {
	return collect(ctx, tx, pgx.CollectExactlyOneRow[T], what, sql, args)
}

func collect[T, R any](ctx context.Context, tx pgx.Tx, read func(pgx.Rows, pgx.RowToFunc[T]) (R, error), what, sql string, args []any) (R, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err == nil {
		var result R
		if result, err = read(rows, pgx.RowToStructByPos[T]); err == nil {
			return result, nil
		}
	}
	var none R
	return none, fmt.Errorf("%s: %w", what, err)
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
