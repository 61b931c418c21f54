package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/deadletters"
)

type failedCmd struct {
	failedFilter `embed:"" envprefix:"SWEEP_FAILED_"`
	Group        bool        `env:"SWEEP_FAILED_GROUP" help:"Count by task queue and error, numbers and ids in errors folded to #, in place of a list."`
	Limit        int64       `default:"100" placeholder:"N" env:"SWEEP_FAILED_LIMIT" help:"Most rows to print; 0 for all. Default: ${default}."`
	Scan         int64       `default:"100000" placeholder:"N" env:"SWEEP_FAILED_SCAN" help:"Most dead letters to look at; 0 for all. Default: ${default}."`
	Page         *failedPage `placeholder:"PAGE" env:"SWEEP_FAILED_PAGE" help:"Go on where a list ended: the page that it printed."`
	tableFlags
}

func (failedCmd) Help() string {
	return `Lists the dead letters: messages that were given up. The newest ones come first: of all namespaces by when they failed, of one namespace by when they were enqueued. --group shows at a glance what went wrong: how many, from when to when, in how many namespaces.

The command looks at the dead letters page by page, and keeps no transaction open. It ends at --limit rows, and after --scan dead letters, of which few may match.

Examples:

    sweep failed --group
    sweep failed --group --since 2h
    sweep failed --namespace acme --error 'connection refused'
    sweep failed --route email --since '2026-01-31 03:00' --until '2026-01-31 04:00'
    sweep failed --json --limit 0 | jq -r '.failed[].dispatch_key'`
}

// Validate checks the values.
func (c *failedCmd) Validate() error {
	switch {
	case c.Limit < 0:
		return fmt.Errorf("--limit must be 0 (no limit) or more, not %d", c.Limit)
	case c.Scan < 0:
		return fmt.Errorf("--scan must be 0 (no limit) or more, not %d", c.Scan)
	case c.Group && c.Page != nil:
		return errors.New("--page goes without --group")
	case c.Page != nil && c.Page.list != c.list():
		return errors.New("--page is of another list: give the same --namespace, --route and --error as for that, or begin without --page")
	}
	return c.checkWindow()
}

// failedResult is what the command prints.
type failedResult struct {
	At     time.Time            `json:"at"` // on the database's clock
	Failed []deadletters.Letter `json:"failed,omitzero"`
	Groups []deadletters.Group  `json:"groups,omitzero"`
	Next   *string              `json:"next"` // for --page; null: there are no more
	Cut    bool                 `json:"scan_ended"`
}

// Run lists or counts.
func (c *failedCmd) Run(ctx context.Context, a *app) error {
	var r failedResult
	if !c.Group {
		r.Failed = []deadletters.Letter{}
	}
	var groups deadletters.Grouper
	err := a.withConn(ctx, func(conn *pgx.Conn) (err error) {
		if r.At, err = databaseTime(ctx, conn); err != nil {
			return err
		}
		var after *deadletters.Cursor
		if c.Page != nil {
			after = &c.Page.cursor
		}
		pages := c.filter(r.At).Pages(r.At, true, after)
		for looked := int64(0); ; {
			most := c.most(looked)
			var rows []deadletters.Letter
			var next *deadletters.Cursor
			err := inReadTx(ctx, conn, func(tx pgx.Tx) (err error) {
				if _, err = tx.Exec(ctx, `select set_config('statement_timeout', $1::text, true)`, fmt.Sprint(showTimeout.Milliseconds())); err != nil {
					return fmt.Errorf("set up the transaction: %w", err)
				}
				rows, next, err = pages.Read(ctx, tx, most)
				return err
			})
			if err != nil {
				return err
			}
			looked += most
			if c.take(rows, next, &r, &groups) {
				if len(r.Failed) == 0 && !c.Group && c.Namespace != "" {
					return a.warnUnknown(ctx, conn, string(c.Namespace))
				}
				return nil
			}
			pages.After = next
			if c.Scan > 0 && looked >= c.Scan {
				r.Cut = true
				text := failedPage{*next, c.list()}.String()
				r.Next = &text
				return nil
			}
		}
	})
	if err != nil {
		return err
	}
	if c.Group {
		r.Groups, r.Next = groups.Largest(c.Limit), nil
	}
	if c.JSON {
		return a.printJSON(r)
	}
	return c.print(a, r, int64(groups.Len()))
}

// most is how many dead letters to look at next.
func (c *failedCmd) most(looked int64) int64 {
	most := int64(chunkRows)
	if c.Scan > 0 {
		most = min(most, c.Scan-looked)
	}
	if !c.Group && !c.narrows() && c.Limit > 0 { // each one matches, and one more tells whether there are more
		most = min(most, c.Limit+1)
	}
	return most
}

// take adds a page to the result, and says whether the command has all that it is to print.
func (c *failedCmd) take(rows []deadletters.Letter, next *deadletters.Cursor, r *failedResult, groups *deadletters.Grouper) (done bool) {
	if c.Group {
		for _, row := range rows {
			groups.Add(row)
		}
		return next == nil
	}
	for _, row := range rows {
		if c.Limit > 0 && int64(len(r.Failed)) == c.Limit { // and there is another one
			last := r.Failed[len(r.Failed)-1]
			text := failedPage{deadletters.Cursor{At: last.FailedAt, ID: last.ID}, c.list()}.String()
			r.Next = &text
			return true
		}
		r.Failed = append(r.Failed, row)
	}
	return next == nil
}

func (c *failedCmd) print(a *app, r failedResult, groups int64) error {
	var t *table
	switch {
	case len(r.Failed)+len(r.Groups) == 0:
		if err := a.printf("no dead letters"); err != nil {
			return err
		}
	case c.Group:
		t = newTable(a.stdout, c.Wide, "COUNT", "ROUTE", "NAMESPACES", "FIRST", "LAST", "EXAMPLE", "ERROR")
		for _, g := range r.Groups {
			t.row(g.Count, g.TaskQueue, g.Namespaces, g.First, g.Last, g.Example, g.Error)
		}
	default:
		t = newTable(a.stdout, c.Wide, "KEY", "NAMESPACE", "ROUTE", "ATTEMPTS", "FAILED", "ERROR")
		for _, d := range r.Failed {
			t.row(d.Key, d.Namespace, d.TaskQueue, d.Attempts, d.FailedAt, d.Error)
		}
	}
	if t != nil {
		if err := t.flush(); err != nil {
			return err
		}
	}
	if shown := int64(len(r.Groups)); shown < groups {
		if err := a.printf("The largest %d of %s; --limit 0 shows all.", shown, plural(groups, "group")); err != nil {
			return err
		}
	}
	switch {
	case r.Cut && c.Group:
		return a.printf("Counted are the newest %d dead letters; --scan 0 counts all.", c.Scan)
	case r.Cut:
		return a.printf("Looked at %d dead letters; to go on: --page %s", c.Scan, *r.Next)
	case r.Next != nil:
		return a.printf("There are more: --page %s, or --limit 0 for all.", *r.Next)
	}
	return nil
}
