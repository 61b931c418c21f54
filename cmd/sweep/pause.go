package main

import (
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
	Note *string `env:"SWEEP_PAUSE_NOTE" help:"Why it is paused, for whoever is on duty next."`
	jsonFlag
}

func (pauseCmd) Help() string {
	return `From the next claim on, no message of what is paused is claimed. Messages that are claimed already are delivered. Pending messages stay exactly as they are, and producers can enqueue more.

Examples:

    sweep pause acme --note "provider down"
    sweep pause acme --queue mail
    sweep pause --all --queue mail
    sweep pause --all`
}

type pauseRow struct {
	Namespace *string   `json:"namespace"`  // null: all
	TaskQueue *string   `json:"task_queue"` // null: all
	Since     time.Time `json:"since"`
	By        string    `json:"by"`
	Note      *string   `json:"note"`
}

type pauseResult struct {
	Changed bool       `json:"changed"`
	Pauses  []pauseRow `json:"pauses"` // all pauses in force for some of the target's messages
}

// Run pauses. A target that is paused already stays paused and gets the new note.
func (c *pauseCmd) Run(ctx context.Context, a *app) error {
	r, err := a.setPause(ctx, c.pauseTarget, `select outbox.pause($1::text, $2::text, $3::text)`, c.Namespace, c.Queue, c.Note)
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(r)
	}
	if !r.Changed {
		return a.printf("%s was paused already", c.pauseTarget)
	}
	return a.printf("paused %s", c.pauseTarget)
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
		if err := a.printf("still paused: %s, by %s since %s%s", still, visible(p.By), timeText(p.Since), noteText(p.Note)); err != nil {
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

// setPause runs a statement that returns whether it changed something, and then reads the
// pauses that hold the target as a whole or in part.
func (a *app) setPause(ctx context.Context, t pauseTarget, sql string, args ...any) (r pauseResult, err error) {
	err = a.withConn(ctx, func(conn *pgx.Conn) error {
		return inTx(ctx, conn, func(tx pgx.Tx) (err error) {
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
		select p.namespace, p.task_queue, p.since, p.by, p.note from outbox.pauses as p
		where ($1::text is null or p.namespace is null or p.namespace = $1)
		  and ($2::text is null or p.task_queue is null or p.task_queue = $2)
		order by p.namespace nulls first, p.task_queue nulls first limit $3::int`, t.Namespace, t.Queue, listRows)
}
