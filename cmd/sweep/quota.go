package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

type quotaCmd struct {
	Namespace string `arg:"" help:"The namespace."`
	Quota     *int32 `arg:"" optional:"" name:"n" help:"How many messages of the namespace may be claimed at a time; 0 holds all of them. Without <n>, --strict and --default, the quota is shown."`
	Strict    *bool  `negatable:"" env:"SWEEP_QUOTA_STRICT" help:"Never exceed the quota, however many nodes claim. Claims then serve the namespace one after the other."`
	Default   bool   `env:"SWEEP_QUOTA_DEFAULT" help:"Return to the default quota, not strict."`
	jsonFlag
}

func (quotaCmd) Help() string {
	return `A quota limits how many messages of a namespace are claimed at a time, over all nodes together. A change counts from the next claim on. Where n nodes claim, they may exceed a quota that is not strict by up to n - 1 messages.

Examples:

    sweep quota acme
    sweep quota acme 50
    sweep quota acme 10 --strict
    sweep quota acme --default`
}

// Validate checks the quota.
func (c *quotaCmd) Validate() error {
	switch {
	case c.Namespace == "":
		return errors.New("<namespace> is missing or empty")
	case c.Quota != nil && *c.Quota < 0:
		return fmt.Errorf("<n> must be 0 or more, not %d", *c.Quota)
	case c.Default && (c.Quota != nil || c.Strict != nil):
		return errors.New("--default excludes <n> and --strict: give one or the other")
	}
	return nil
}

type quotaRow struct {
	Namespace string `json:"namespace"`
	Quota     int32  `json:"quota"`
	Strict    bool   `json:"strict"`
	Claimed   int64  `json:"claimed"`
}

// Run sets the quota where one is given, and shows the quota in force.
func (c *quotaCmd) Run(ctx context.Context, a *app) error {
	var r quotaRow
	err := a.withConn(ctx, func(conn *pgx.Conn) error {
		if err := a.warnUnknown(ctx, conn, c.Namespace); err != nil {
			return err
		}
		if err := c.set(ctx, conn); err != nil {
			return err
		}
		return inReadTx(ctx, conn, func(tx pgx.Tx) (err error) {
			r, err = readQuota(ctx, tx, c.Namespace)
			return err
		})
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(r)
	}
	strict := ""
	if r.Strict {
		strict = ", strict"
	}
	return a.printf("%s: quota %d%s; claimed %d", visible(r.Namespace), r.Quota, strict, r.Claimed)
}

// set changes the quota as the command line asks. To show a quota it writes nothing, so
// that showing works on a standby.
func (c *quotaCmd) set(ctx context.Context, conn *pgx.Conn) error {
	if c.Quota == nil && c.Strict == nil && !c.Default {
		return nil
	}
	return inLockTx(ctx, conn, func(tx pgx.Tx) (err error) {
		if c.Default {
			_, err = tx.Exec(ctx, `select outbox.clear_quota($1::text)`, c.Namespace)
		} else {
			_, err = tx.Exec(ctx, `select outbox.set_quota($1::text, $2::int, $3::boolean)`, c.Namespace, c.Quota, c.Strict)
		}
		if err != nil {
			return fmt.Errorf("set the quota: %w", err)
		}
		return nil
	})
}

// readQuota reads the quota in force for a namespace, also for a namespace without
// messages and settings.
func readQuota(ctx context.Context, tx pgx.Tx, namespace string) (quotaRow, error) {
	return rowOf[quotaRow](ctx, tx, "read the quota",
		`select $1::text, q.quota, q.strict, q.claimed from outbox.quota($1::text) as q`, namespace)
}
