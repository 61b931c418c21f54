package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

type holdsCmd struct {
	Namespace *string `arg:"" optional:"" help:"Only this namespace, and the routes of all."`
	tableFlags
}

func (holdsCmd) Help() string {
	return `Destinations are held when they fail: their messages wait, uncharged, and one is tried from time to time. STATE is held; probing, when the time of the hold is over and one message is tried; or recovering, in the first ten seconds after the hold, when few messages are claimed. FAILURES is how many messages had failed in a row when the hold began; those that are tried since and fail, too, do not count there, but make the hold longer ("step" in JSON: how often).

"sweep lift" ends a hold, "sweep hold" makes one.

Examples:

    sweep holds
    sweep holds acme`
}

type holdRow struct {
	Namespace *string    `json:"namespace"` // null: the route of all
	TaskQueue string     `json:"task_queue"`
	State     string     `json:"state"`
	Since     *time.Time `json:"since"`
	Until     *time.Time `json:"until"`    // null while it is held: until it is lifted
	Failures  int32      `json:"failures"` // in a row, when it was held
	Step      int32      `json:"step"`     // how often the hold was made longer
	By        *string    `json:"by"`
	Reason    *string    `json:"reason"`
	ProbeID   *int64     `json:"probe_id"`
	ProbedBy  *string    `json:"probed_by"`
}

// Run shows the holds.
func (c *holdsCmd) Run(ctx context.Context, a *app) error {
	var rows []holdRow
	err := a.withConn(ctx, func(conn *pgx.Conn) error {
		return inReadTx(ctx, conn, func(tx pgx.Tx) (err error) {
			rows, err = readHolds(ctx, tx, c.Namespace)
			return err
		})
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(struct {
			Holds []holdRow `json:"holds"`
		}{rows})
	}
	if len(rows) == 0 {
		return a.printf("no destination is held")
	}
	return printHolds(a, c.Wide, rows)
}

// readHolds reads the holds that a namespace's messages may be under (nil: all holds), those first that have
// lasted longest, listRows at most. Where there are more than a thousand, it looks at any thousand of them.
func readHolds(ctx context.Context, tx pgx.Tx, namespace *string) ([]holdRow, error) {
	return rowsOf[holdRow](ctx, tx, "read the holds", `
		select h.namespace, h.task_queue, h.state, h.since, nullif(h.until, 'infinity'), h.failures, h.step, h.by, h.reason, h.probe_id, h.probed_by
		from (select h.* from outbox.holds as h
		      where $1::text is null or h.namespace is null or h.namespace = $1 limit 1000) as h
		order by h.since nulls last, h.namespace nulls first, h.task_queue limit $2::int`, namespace, listRows)
}

func printHolds(a *app, wide bool, rows []holdRow) error {
	t := newTable(a.stdout, wide, "NAMESPACE", "TASK QUEUE", "STATE", "SINCE", "UNTIL", "FAILURES", "BY", "REASON")
	for _, h := range rows {
		namespace, until := any(h.Namespace), any(h.Until)
		if h.Namespace == nil {
			namespace = "(all)"
		}
		if h.State == "held" && h.Until == nil {
			until = "it is lifted"
		}
		if h.ProbeID != nil {
			until = fmt.Sprintf("message %d is tried by %s", *h.ProbeID, *h.ProbedBy)
		}
		failures := any(h.Failures)
		if h.Failures == 0 {
			failures = nil
		}
		t.row(namespace, h.TaskQueue, h.State, h.Since, until, failures, h.By, h.Reason)
	}
	if err := t.flush(); err != nil {
		return err
	}
	return printCut(a, len(rows), listRows)
}
