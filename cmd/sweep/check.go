package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

type checkCmd struct {
	Newest  *int64        `placeholder:"N" env:"SWEEP_CHECK_NEWEST" help:"Check only the messages with the last N ids, and skip the indexes of the large tables."`
	Max     int           `default:"100" env:"SWEEP_CHECK_MAX" help:"Most violations of each kind to list (default ${default})."`
	Timeout time.Duration `default:"10m" env:"SWEEP_CHECK_TIMEOUT" help:"Give up after this long (default ${default})."`
	jsonFlag
}

func (checkCmd) Help() string {
	return `Audits the outbox: checks every guarantee that SQL can check, in one snapshot. It can run under traffic and on a standby. Prints a row for each violation; the exit code is 1 when there is one, 0 when there is none. A row whose guarantee is "advice" is no violation: all holds, but could be safer.

The audit reads every table and index from end to end, except payloads, and while it runs vacuum cannot remove rows that died since it began. On a large backlog --newest is quicker.

Examples:

    sweep check
    sweep check --newest 100000
    sweep check --json | jq '.[] | select(.guarantee == "INV-4")'`
}

// Validate checks the values.
func (c *checkCmd) Validate() error {
	switch {
	case c.Newest != nil && *c.Newest < 1:
		return fmt.Errorf("--newest must be 1 or more, not %d", *c.Newest)
	case c.Max < 1 || c.Max > 1_000_000:
		return fmt.Errorf("--max must be 1 to 1000000, not %d", c.Max)
	case c.Timeout < time.Millisecond || c.Timeout > 24*time.Hour:
		return fmt.Errorf("--timeout must be 1ms to 24h, not %v", c.Timeout)
	}
	return nil
}

type violation struct {
	Guarantee string `json:"guarantee"` // "INV-4", "rights", "advice"
	Subject   string `json:"subject"`
	Detail    string `json:"detail"`
	Hint      string `json:"hint"`
}

// advice is the guarantee of a row that is no violation: all holds, but could be safer.
const advice = "advice"

// Run prints the violations, and returns an error where there is one.
func (c *checkCmd) Run(ctx context.Context, a *app) error {
	var found []violation
	err := a.withConn(ctx, func(conn *pgx.Conn) error {
		return inReadTx(ctx, conn, func(tx pgx.Tx) (err error) {
			_, err = tx.Exec(ctx, `select set_config('statement_timeout', $1::text, true)`, fmt.Sprint(c.Timeout.Milliseconds()))
			if err != nil {
				return fmt.Errorf("set the timeout: %w", err)
			}
			found, err = rowsOf[violation](ctx, tx, "check", `
				select v.guarantee, v.subject, v.detail, v.hint from outbox.check($1::bigint, $2::int) as v`, c.Newest, c.Max)
			return err
		})
	})
	if err != nil {
		return c.explain(ctx, err)
	}
	if c.JSON {
		err = a.printJSON(found)
	} else {
		err = printViolations(a, found)
	}
	if err == nil && slices.ContainsFunc(found, func(v violation) bool { return v.Guarantee != advice }) {
		return errors.New("the outbox violates its guarantees")
	}
	return err
}

// explain adds a hint to the error of an audit that took too long.
func (c *checkCmd) explain(ctx context.Context, err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "57014" && ctx.Err() == nil { // query_canceled
		return withHint(err, "The audit reads whole tables: give it a longer --timeout, or check only the newest messages with --newest.")
	}
	return err
}

// printViolations prints a table, with each hint once below the rows that it is for.
func printViolations(a *app, found []violation) error {
	if len(found) == 0 {
		return a.printf("No violation found.")
	}
	t := newTable(a.stdout, true, "guarantee", "subject", "detail")
	for i, v := range found {
		t.row(v.Guarantee, v.Subject, v.Detail)
		if i == len(found)-1 || found[i+1].Guarantee != v.Guarantee || found[i+1].Hint != v.Hint {
			t.row("", "", "-> "+v.Hint)
		}
	}
	return t.flush()
}
