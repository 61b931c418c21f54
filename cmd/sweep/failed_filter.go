package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/deadletters"
)

// failedFilter are the flags that choose dead letters. What embeds it gives envprefix.
type failedFilter struct {
	Namespace filled  `placeholder:"NAMESPACE" env:"NAMESPACE" help:"Only dead letters of this namespace."`
	Route     filled  `placeholder:"QUEUE" env:"ROUTE" help:"Only dead letters of this task queue."`
	Error     filled  `placeholder:"TEXT" env:"ERROR" help:"Only dead letters whose last error contains this text, in capital or small letters."`
	Since     *moment `placeholder:"WHEN" env:"SINCE" help:"Only what failed at this time or later: an age such as 2h or 1d, or a time such as 2026-01-31T03:00:00Z."`
	Until     *moment `placeholder:"WHEN" env:"UNTIL" help:"Only what failed before this time: an age or a time."`
}

// filled is a flag's value that is not empty where the flag is given: --namespace "$NS" with a
// variable that is not set must not choose the dead letters of all.
type filled string

// UnmarshalText refuses the empty text.
func (f *filled) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return errors.New("must not be empty: leave the flag out to choose all")
	}
	*f = filled(text)
	return nil
}

// filter is what the flags choose, seen from now.
func (f *failedFilter) filter(now time.Time) deadletters.Filter {
	return deadletters.Filter{
		Namespace: string(f.Namespace), TaskQueue: string(f.Route), Error: string(f.Error),
		Since: f.Since.time(now), Until: f.Until.time(now),
	}
}

// checkWindow refuses two ages, or two times, between which nothing can lie. An age and a time are compared later,
// by the database.
func (f *failedFilter) checkWindow() error {
	if f.Since == nil || f.Until == nil || f.Since.at.IsZero() != f.Until.at.IsZero() {
		return nil
	}
	if w := f.filter(time.Unix(0, 0)); w.Since.Before(*w.Until) {
		return nil
	}
	return errors.New("--until must be later than --since: nothing lies between them; of two ages the larger one is for --since")
}

// narrows says whether a flag beside --namespace is given.
func (f *failedFilter) narrows() bool { return f.filter(time.Time{}).Narrows() }

// databaseTime is the time on the database's clock.
func databaseTime(ctx context.Context, conn *pgx.Conn) (now time.Time, err error) {
	err = inReadTx(ctx, conn, func(tx pgx.Tx) error { return tx.QueryRow(ctx, `select clock_timestamp()`).Scan(&now) })
	if err != nil {
		return now, fmt.Errorf("read the time: %w", err)
	}
	return now, nil
}
