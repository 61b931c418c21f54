package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

type whyCmd struct {
	Key string `arg:"" help:"The dispatch key of the message."`
	jsonFlag
}

func (whyCmd) Help() string {
	return `Shows the state of a message, its attempts and last failures, what holds it back, and when it can next be claimed. The exit code is 1 when no message has the key.

Examples:

    sweep why acme/1
    sweep why acme/1 --json | jq .state`
}

type whyRow struct {
	ID        *int64     `json:"id"`
	Namespace *string    `json:"namespace"`
	TaskQueue *string    `json:"task_queue"`
	Shard     *int32     `json:"shard"`
	State     string     `json:"state"` // unknown, pending, claimed, done, failed, cancelled; for a moment, moving
	Attempts  *int32     `json:"attempts"`
	Reason    string     `json:"reason"`
	NextAt    *time.Time `json:"next_at"`
	Failures  []string   `json:"failures"` // the last one first
}

// Run prints where the message stands.
func (c *whyCmd) Run(ctx context.Context, a *app) error {
	var r whyRow
	err := a.withConn(ctx, func(conn *pgx.Conn) error {
		return inReadTx(ctx, conn, func(tx pgx.Tx) (err error) {
			r, err = rowOf[whyRow](ctx, tx, "why", `
				select w.id, w.namespace, w.task_queue, w.shard, w.state, w.attempts, w.reason,
				       case when isfinite(w.next_at) then w.next_at end, w.failures
				from outbox.why($1::text) as w`, c.Key)
			return err
		})
	})
	if err != nil {
		return err
	}
	if c.JSON {
		if r.Failures == nil {
			r.Failures = []string{}
		}
		err = a.printJSON(r)
	} else {
		err = c.print(a, r)
	}
	if err == nil && r.State == "unknown" {
		return fmt.Errorf("no message has the key %q", c.Key)
	}
	return err
}

func (c *whyCmd) print(a *app, r whyRow) error {
	if r.ID == nil {
		return a.printf("%s: %s", r.State, visible(r.Reason))
	}
	t := newTable(a.stdout, true, "state", r.State)
	t.row("reason", r.Reason)
	if r.NextAt != nil {
		t.row("next", r.NextAt)
	}
	t.row("attempts", r.Attempts)
	t.row("namespace", r.Namespace)
	t.row("task queue", r.TaskQueue)
	t.row("id", r.ID)
	t.row("shard", r.Shard)
	for i, f := range r.Failures {
		name := ""
		if i == 0 {
			name = "failures"
		}
		t.row(name, f)
	}
	return t.flush()
}
