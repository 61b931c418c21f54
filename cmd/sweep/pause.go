package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// pauseTarget is what to pause or resume. The zero value is everything.
type pauseTarget struct {
	Namespace *string `arg:"" optional:"" help:"The namespace."`
	Queue     *string `placeholder:"TASK_QUEUE" env:"SWEEP_PAUSE_QUEUE" help:"Only this task queue."`
	All       bool    `env:"SWEEP_PAUSE_ALL" help:"All namespaces; with --queue, that task queue in all of them."`
}

// Validate demands --all where no namespace is named.
func (t pauseTarget) Validate() error {
	switch {
	case t.Namespace != nil && t.All:
		return errors.New("<namespace> and --all exclude each other: give one of them")
	case t.Namespace == nil && !t.All:
		return errors.New("name a <namespace>, or --all for all of them")
	case t.Namespace != nil && *t.Namespace == "":
		return errors.New("<namespace> must not be empty")
	case t.Queue != nil && *t.Queue == "":
		return errors.New("--queue must not be empty")
	}
	return nil
}

func (t pauseTarget) String() string {
	switch {
	case t.Namespace != nil && t.Queue != nil:
		return fmt.Sprintf("route %q of namespace %q", *t.Queue, *t.Namespace)
	case t.Namespace != nil:
		return fmt.Sprintf("namespace %q", *t.Namespace)
	case t.Queue != nil:
		return fmt.Sprintf("route %q of all namespaces", *t.Queue)
	}
	return "everything"
}

type pauseCmd struct {
	pauseTarget
	Note  *string   `env:"SWEEP_PAUSE_NOTE" help:"Why it is paused, for whoever is on duty next."`
	For   *duration `placeholder:"DURATION" env:"SWEEP_PAUSE_FOR" help:"The pause ends by itself after this time: 30m, 2h, 1d."`
	Until *instant  `placeholder:"INSTANT" env:"SWEEP_PAUSE_UNTIL" help:"The pause ends by itself at this time: 2026-01-31T03:00:00Z, or of this machine's time zone: '2026-01-31 03:00'."`
	jsonFlag
}

func (pauseCmd) Help() string {
	return `From the next claim on, no message of what is paused is claimed. Messages that are claimed already are delivered. Pending messages stay exactly as they are, and producers can enqueue more.

The pause lasts until "sweep resume" with the same arguments, or ends by itself with --for or --until. Of what is paused already, the last call counts: without --for and --until, the pause has no end any more.

Examples:

    sweep pause acme --note "provider down"
    sweep pause acme --for 2h --note "provider's maintenance"
    sweep pause acme --queue mail
    sweep pause --all --queue mail
    sweep pause --all`
}

// Validate checks what to pause, and the end.
func (c *pauseCmd) Validate() error {
	switch {
	case c.For != nil && c.Until != nil:
		return errors.New("--for and --until exclude each other: give one of them")
	case c.For != nil && *c.For <= 0:
		return fmt.Errorf("--for must be more than 0, not %v", *c.For)
	}
	return c.pauseTarget.Validate()
}

type pauseRow struct {
	Namespace *string    `json:"namespace"`  // null: all
	TaskQueue *string    `json:"task_queue"` // null: all
	Since     time.Time  `json:"since"`
	By        string     `json:"by"`
	Note      *string    `json:"note"`
	Until     *time.Time `json:"until"` // null: until somebody resumes it
}

type pauseResult struct {
	Changed bool       `json:"changed"`
	Pauses  []pauseRow `json:"pauses"` // all pauses in force for some of the target's messages
	former  pauseRow   // of the target itself, before
}

// Run pauses. A target that is paused already stays paused and gets the new note and the new end. How
// long --for is counts from the database's clock.
func (c *pauseCmd) Run(ctx context.Context, a *app) error {
	var length *string
	if c.For != nil {
		text := c.For.interval()
		length = &text
	}
	r, err := a.setPause(ctx, c.pauseTarget, `
		select outbox.pause($1::text, $2::text, $3::text, coalesce($4::timestamptz, clock_timestamp() + $5::interval), $6::boolean)`,
		c.Namespace, c.Queue, c.Note, (*time.Time)(c.Until), length, c.All && c.Queue == nil)
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(r)
	}
	now := c.pauseTarget.of(r.Pauses)
	switch {
	case r.Changed:
		return a.printf("paused %s%s", c.pauseTarget, now.untilText())
	case !r.former.end().Equal(now.end()):
		return a.printf("%s was paused already%s; now%s", c.pauseTarget, cmp.Or(r.former.untilText(), " without an end"), cmp.Or(now.untilText(), " without an end"))
	}
	return a.printf("%s was paused already%s", c.pauseTarget, now.untilText())
}

// of is the target's own pause; the zero value where there is none.
func (t pauseTarget) of(pauses []pauseRow) pauseRow {
	for _, p := range pauses {
		if (pauseTarget{Namespace: p.Namespace, Queue: p.TaskQueue}).String() == t.String() {
			return p
		}
	}
	return pauseRow{}
}

// end is when the pause ends; the zero value: when somebody resumes it.
func (p pauseRow) end() time.Time {
	if p.Until == nil {
		return time.Time{}
	}
	return *p.Until
}

func (p pauseRow) untilText() string {
	if p.Until == nil {
		return ""
	}
	return " until " + timeText(*p.Until)
}

type resumeCmd struct {
	pauseTarget
	jsonFlag
}

func (resumeCmd) Help() string {
	return `Ends the pause that was made with the same arguments; "sweep status" lists all pauses. Where other pauses still hold some of these messages, it prints them.

Examples:

    sweep resume acme
    sweep resume --all --queue mail`
}

// Run resumes. A target that is not paused is no error.
func (c *resumeCmd) Run(ctx context.Context, a *app) error {
	r, err := a.setPause(ctx, c.pauseTarget, `select outbox.resume($1::text, $2::text)`, c.Namespace, c.Queue)
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(r)
	}
	text := "resumed %s"
	if !r.Changed {
		text = "%s was not paused"
	}
	if err := a.printf(text, c.pauseTarget); err != nil {
		return err
	}
	for _, p := range r.Pauses {
		still := pauseTarget{Namespace: p.Namespace, Queue: p.TaskQueue}
		if err := a.printf("still paused: %s, by %s since %s%s%s", still, visible(p.By), timeText(p.Since), p.untilText(), noteText(p.Note)); err != nil {
			return err
		}
	}
	return nil
}

func noteText(note *string) string {
	if note == nil {
		return ""
	}
	return fmt.Sprintf(", %q", *note)
}

// setPause runs a statement that returns whether it changed something, and reads the
// pauses that hold the target as a whole or in part, before and after.
func (a *app) setPause(ctx context.Context, t pauseTarget, sql string, args ...any) (r pauseResult, err error) {
	err = a.withConn(ctx, func(conn *pgx.Conn) error {
		if t.Namespace != nil {
			if err := a.warnUnknown(ctx, conn, *t.Namespace); err != nil {
				return err
			}
			if t.Queue != nil {
				if err := a.warnUnknownQueue(ctx, conn, *t.Namespace, *t.Queue); err != nil {
					return err
				}
			}
		}
		return inLockTx(ctx, conn, func(tx pgx.Tx) (err error) {
			before, err := readPauses(ctx, tx, t)
			if err != nil {
				return err
			}
			r.former = t.of(before)
			if err := tx.QueryRow(ctx, sql, args...).Scan(&r.Changed); err != nil {
				return fmt.Errorf("%s: %w", a.command, err)
			}
			r.Pauses, err = readPauses(ctx, tx, t)
			return err
		})
	})
	return r, err
}

// readPauses reads the pauses that hold the target as a whole or in part, listRows at
// most.
func readPauses(ctx context.Context, tx pgx.Tx, t pauseTarget) ([]pauseRow, error) {
	return rowsOf[pauseRow](ctx, tx, "read the pauses", `
		select p.namespace, p.task_queue, p.since, p.by, p.note, p.until from outbox.pauses as p
		where ($1::text is null or p.namespace is null or p.namespace = $1)
		  and ($2::text is null or p.task_queue is null or p.task_queue = $2)
		order by p.namespace nulls first, p.task_queue nulls first limit $3::int`, t.Namespace, t.Queue, listRows)
}
