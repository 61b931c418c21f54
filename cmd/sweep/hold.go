package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
	Until  *instant  `placeholder:"INSTANT" env:"SWEEP_HOLD_UNTIL" help:"Until when, as 2026-01-31T03:00:00Z, or of this machine's time zone: '2026-01-31 03:00': then one message is tried."`
	Reason *string   `env:"SWEEP_HOLD_REASON" help:"Why it is held, for whoever is on duty next."`
	jsonFlag
}

func (holdCmd) Help() string {
	return `From the next claim on, no message of the destination is claimed. Those that are claimed already are delivered. Pending messages stay exactly as they are, their attempts are not charged, and producers can enqueue more. A hold that is there already gets longer, never shorter.

The outbox holds destinations by itself when they fail; "sweep holds" shows them. A pause is something else: it is never lifted by a delivery.

Examples:

    sweep hold acme --queue webhooks --for 2h --reason "their maintenance"
    sweep hold acme --queue webhooks --until '2026-01-31 03:00'
    sweep hold --all --queue mail --reason "provider down"`
}

// maxHold is the longest hold with an end, as hold() has it.
const maxHold = duration(366 * 24 * time.Hour)

// Validate checks the end.
func (c *holdCmd) Validate() error {
	switch {
	case c.For != nil && c.Until != nil:
		return errors.New("--for and --until exclude each other: give one of them")
	case c.For != nil && (*c.For <= 0 || *c.For > maxHold):
		return fmt.Errorf("--for must be more than 0, and %v at most, not %v; without it, the hold has no end", maxHold, *c.For)
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
			if err := c.checkUntil(ctx, tx); err != nil {
				return err
			}
			err := tx.QueryRow(ctx, `select nullif(outbox.hold($1::text, $2::text, coalesce($3::interval, $5::timestamptz - clock_timestamp()), $4::text), 'infinity')`,
				c.Namespace, c.Queue, length, c.Reason, (*time.Time)(c.Until)).Scan(&r.Until)
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

// checkUntil refuses an end that is past, or too far, by the database's clock.
func (c *holdCmd) checkUntil(ctx context.Context, tx pgx.Tx) error {
	if c.Until == nil {
		return nil
	}
	var fits bool
	err := tx.QueryRow(ctx, `select $1::timestamptz > t.now and $1::timestamptz <= t.now + $2::interval from clock_timestamp() as t(now)`,
		(*time.Time)(c.Until), maxHold.interval()).Scan(&fits)
	switch {
	case err != nil:
		return fmt.Errorf("hold: %w", err)
	case !fits:
		return usage("--until is %s: give a time to come, %v from now at most; without it, the hold has no end", timeText(time.Time(*c.Until)), maxHold)
	}
	return nil
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
	return `From the next claim on, messages of the destination are claimed again, on all nodes: few in the first seconds, twice as many each second. What held it, the outbox or an operator, does not matter. Where the route of all namespaces is held too, the command says so; "sweep why KEY" tells of other reasons why a message waits.

Examples:

    sweep lift acme --queue webhooks
    sweep lift --all --queue mail`
}

// Run lifts a hold. A destination that is not held is no error.
func (c *liftCmd) Run(ctx context.Context, a *app) error {
	var lifted, common bool
	err := a.withConn(ctx, func(conn *pgx.Conn) error {
		err := inLockTx(ctx, conn, func(tx pgx.Tx) error {
			if err := tx.QueryRow(ctx, `select outbox.lift($1::text, $2::text)`, c.Namespace, c.Queue).Scan(&lifted); err != nil {
				return fmt.Errorf("lift: %w", err)
			}
			if c.Namespace == nil {
				return nil
			}
			err := tx.QueryRow(ctx, `select exists (select from outbox.holds as h
				where h.namespace is null and h.task_queue = $1::text and h.state in ('held', 'probing'))`, c.Queue).Scan(&common)
			if err != nil {
				return fmt.Errorf("read the holds: %w", err)
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
			Lifted    bool `json:"lifted"`
			HeldOfAll bool `json:"held_of_all"` // the route of all is held: the messages of this namespace wait for that
		}{lifted, common})
	}
	text := "lifted the hold of %s"
	if !lifted {
		text = "%s was not held"
	}
	if err := a.printf(text, c.destination); err != nil || !common {
		return err
	}
	return a.printf("still held: %s; to lift that: sweep lift --all --queue %s", destination{Queue: c.Queue, All: true}, quoteShell(c.Queue))
}

// quoteShell is a word of a command line for a shell: in quotes where it has other characters than those of plain names.
func quoteShell(word string) string {
	if !strings.ContainsFunc(word, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./", r)
	}) {
		return word
	}
	return "'" + strings.ReplaceAll(visible(word), "'", `'\''`) + "'"
}
