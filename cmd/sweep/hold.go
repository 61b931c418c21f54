package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// destination is what to hold or lift: a route of a namespace, or the route of all.
type destination struct {
	Namespace *string `arg:"" optional:"" help:"The namespace."`
	Queue     string  `placeholder:"TASK_QUEUE" env:"SWEEP_HOLD_QUEUE" help:"The task queue."`
	All       bool    `env:"SWEEP_HOLD_ALL" help:"The task queue in all namespaces, whose endpoint they share."`
}

// Validate demands a task queue, and --all where no namespace is named.
func (d destination) Validate() error {
	return d.check("to hold back a whole namespace, use sweep pause")
}

// check is Validate, with what to do where somebody means a whole namespace.
func (d destination) check(whole string) error {
	switch {
	case d.Queue == "":
		return errors.New("name the route's --queue; " + whole)
	case d.Namespace != nil && d.All:
		return errors.New("<namespace> and --all exclude each other: give one of them")
	case d.Namespace == nil && !d.All:
		return errors.New("name a <namespace>, or --all for the route of all of them")
	case d.Namespace != nil && *d.Namespace == "":
		return errors.New("<namespace> must not be empty")
	}
	return nil
}

// warnUnknown says so on standard error where the namespace or its task queue may be mistyped.
func (d destination) warnUnknown(ctx context.Context, a *app, conn *pgx.Conn) error {
	if d.Namespace == nil {
		return nil
	}
	if err := a.warnUnknown(ctx, conn, *d.Namespace); err != nil {
		return err
	}
	return a.warnUnknownQueue(ctx, conn, *d.Namespace, d.Queue)
}

func (d destination) String() string {
	return pauseTarget{Namespace: d.Namespace, Queue: &d.Queue}.String()
}

type holdCmd struct {
	destination
	For    *duration `placeholder:"DURATION" env:"SWEEP_HOLD_FOR" help:"For how long, as 30m or 2h: then one message is tried, and if it is delivered, the rest follow. Without it, until \"sweep lift\"."`
	Reason *string   `env:"SWEEP_HOLD_REASON" help:"Why it is held, for whoever is on duty next."`
	jsonFlag
}

func (holdCmd) Help() string {
	return `From the next claim on, no message of the destination is claimed. Those that are claimed already are delivered. Pending messages stay exactly as they are, their attempts are not charged, and producers can enqueue more. A hold that is there already gets longer, never shorter.

The outbox holds destinations by itself when they fail; "sweep holds" shows them. A pause is something else: it is never lifted by a delivery.

Examples:

    sweep hold acme --queue webhooks --for 2h --reason "their maintenance"
    sweep hold --all --queue mail --reason "provider down"`
}

// Validate checks the duration.
func (c *holdCmd) Validate() error {
	if c.For != nil && *c.For <= 0 {
		return fmt.Errorf("--for must be more than 0, not %v", time.Duration(*c.For))
	}
	return c.destination.Validate()
}

type holdResult struct {
	Namespace *string    `json:"namespace"` // null: the route of all
	TaskQueue string     `json:"task_queue"`
	Until     *time.Time `json:"until"` // null: until it is lifted
}

// Run holds a destination.
func (c *holdCmd) Run(ctx context.Context, a *app) error {
	r := holdResult{Namespace: c.Namespace, TaskQueue: c.Queue}
	var length *string
	if c.For != nil {
		text := c.For.interval()
		length = &text
	}
	err := a.withConn(ctx, func(conn *pgx.Conn) error {
		if err := c.warnUnknown(ctx, a, conn); err != nil {
			return err
		}
		return inLockTx(ctx, conn, func(tx pgx.Tx) error {
			err := tx.QueryRow(ctx, `select nullif(outbox.hold($1::text, $2::text, $3::text::interval, $4::text), 'infinity')`,
				c.Namespace, c.Queue, length, c.Reason).Scan(&r.Until)
			if err != nil {
				return fmt.Errorf("hold: %w", err)
			}
			return nil
		})
	})
	switch {
	case err != nil:
		return err
	case c.JSON:
		return a.printJSON(r)
	case r.Until == nil:
		return a.printf("%s is held until it is lifted", c.destination)
	}
	return a.printf("%s is held until %s, then one message is tried", c.destination, timeText(*r.Until))
}

type liftCmd struct {
	destination
	jsonFlag
}

// Validate is that of a destination.
func (c *liftCmd) Validate() error {
	return c.check(`"sweep holds" lists what is held, and "sweep resume" ends the pause of a whole namespace`)
}

func (liftCmd) Help() string {
	return `From the next claim on, messages of the destination are claimed again, on all nodes: few in the first seconds, twice as many each second. What held it, the outbox or an operator, does not matter. Where its messages are held for another reason too, "sweep why KEY" says so.

Examples:

    sweep lift acme --queue webhooks
    sweep lift --all --queue mail`
}

// Run lifts a hold. A destination that is not held is no error.
func (c *liftCmd) Run(ctx context.Context, a *app) error {
	var lifted bool
	err := a.withConn(ctx, func(conn *pgx.Conn) error {
		err := inLockTx(ctx, conn, func(tx pgx.Tx) error {
			if err := tx.QueryRow(ctx, `select outbox.lift($1::text, $2::text)`, c.Namespace, c.Queue).Scan(&lifted); err != nil {
				return fmt.Errorf("lift: %w", err)
			}
			return nil
		})
		if err == nil && !lifted {
			err = c.warnUnknown(ctx, a, conn)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case c.JSON:
		return a.printJSON(struct {
			Lifted bool `json:"lifted"`
		}{lifted})
	case !lifted:
		return a.printf("%s was not held", c.destination)
	}
	return a.printf("lifted the hold of %s", c.destination)
}
