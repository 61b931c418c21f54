// Package deadletters reads the messages that have failed, groups them by what went wrong, and redrives
// those that somebody has chosen: what the commands and the pages have in common.
//
//	deadletters.go  Filter, which chooses; Pages, which reads
//	fold.go         Grouper, which counts by route and folded error
//	rate.go         Rate, so many in a time
//	redrive.go      Redrive, in chunks
package deadletters

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Filter chooses dead letters. The zero value chooses all.
type Filter struct {
	Namespace string
	TaskQueue string
	Error     string     // a text in the last error, in capital or small letters
	Since     *time.Time // failed at this time or later
	Until     *time.Time // failed before this time
}

// Narrows says whether something beside the namespace is chosen by.
func (f Filter) Narrows() bool {
	return f.TaskQueue != "" || f.Error != "" || f.Since != nil || f.Until != nil
}

// Names is in words what the filter names; times are left out.
func (f Filter) Names() string {
	var parts []string
	for _, p := range []struct{ format, value string }{
		{"namespace %q", f.Namespace}, {"task queue %q", f.TaskQueue}, {"an error with %q", f.Error},
	} {
		if p.value != "" {
			parts = append(parts, fmt.Sprintf(p.format, p.value))
		}
	}
	return strings.Join(parts, ", ")
}

// Letter is a row of outbox.failed.
type Letter struct {
	ID        int64      `json:"id"`
	Namespace string     `json:"namespace"`
	TaskQueue string     `json:"task_queue"`
	Key       *string    `json:"dispatch_key"`
	Attempts  int32      `json:"attempts"`
	CreatedAt *time.Time `json:"created_at"`
	FailedAt  time.Time  `json:"failed_at"`
	Error     *string    `json:"error"`
	Matches   bool       `json:"-"`
}

// Cursor is the last dead letter that was looked at. It is written as its time and id.
type Cursor struct {
	At time.Time
	ID int64
}

// UnmarshalText reads what String has written.
func (c *Cursor) UnmarshalText(text []byte) error {
	at, id, _ := strings.Cut(string(text), "/")
	var err error
	if c.At, err = time.Parse(time.RFC3339Nano, at); err == nil {
		c.ID, err = strconv.ParseInt(id, 10, 64)
	}
	if err != nil {
		return errors.New("not a page: give what was printed after --page")
	}
	return nil
}

func (c *Cursor) String() string { return fmt.Sprint(c.At.UTC().Format(time.RFC3339Nano), "/", c.ID) }

// Pages looks at dead letters, some at a time.
type Pages struct {
	filter Filter
	newest bool
	After  *Cursor // nil: from the beginning
}

// Pages begins to look at dead letters. What fails after now is not among them, so that what is
// redriven and fails again does not come round.
func (f Filter) Pages(now time.Time, newest bool, after *Cursor) *Pages {
	if f.Until == nil && (f.Since == nil || f.Since.Before(now)) {
		f.Until = &now
	}
	return &Pages{filter: f, newest: newest, After: after}
}

// Read looks at the next most dead letters, and returns those that match, and where the next page
// begins; nil: there is none.
func (p *Pages) Read(ctx context.Context, tx pgx.Tx, most int64) ([]Letter, *Cursor, error) {
	var afterAt *time.Time
	var afterID *int64
	if p.After != nil {
		afterAt, afterID = &p.After.At, &p.After.ID
	}
	f := p.filter
	found, err := tx.Query(ctx, `
		select f.id, f.namespace, f.task_queue, f.dispatch_key, f.attempts, f.created_at, f.failed_at, f.error, f.matches
		from outbox.failed(nullif($1::text, ''), nullif($2::text, ''), nullif($3::text, ''), $4::timestamptz, $5::timestamptz,
		                   $6::int, $7::boolean, $8::timestamptz, $9::bigint) as f`,
		f.Namespace, f.TaskQueue, f.Error, f.Since, f.Until, most, p.newest, afterAt, afterID)
	if err != nil {
		return nil, nil, fmt.Errorf("read the dead letters: %w", err)
	}
	rows, err := pgx.CollectRows(found, pgx.RowToStructByPos[Letter])
	if err != nil {
		return nil, nil, fmt.Errorf("read the dead letters: %w", err)
	}
	if len(rows) == 0 {
		return nil, nil, nil
	}
	last := rows[len(rows)-1]
	if !last.Matches {
		rows = rows[:len(rows)-1]
	}
	return rows, &Cursor{last.FailedAt, last.ID}, nil
}
