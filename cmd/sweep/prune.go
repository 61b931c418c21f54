package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

type pruneCmd struct {
	OlderThan *duration `placeholder:"AGE" env:"SWEEP_PRUNE_OLDER_THAN" help:"Delete messages that were settled longer ago than this: 12h, 7d. Without it, the setting retention counts."`
	Failed    bool      `env:"SWEEP_PRUNE_FAILED" help:"Delete failed messages too. Without it, only messages that are done or cancelled."`
	Max       int64     `placeholder:"N" env:"SWEEP_PRUNE_MAX" help:"Most messages to delete; without it, all."`
	Yes       bool      `short:"y" env:"SWEEP_PRUNE_YES" help:"Delete without asking."`
	jsonFlag
}

func (pruneCmd) Help() string {
	return `Deletes settled messages with their payloads and failures, in chunks, each in a transaction of its own. Their dispatch keys are free again: a message that is enqueued with such a key is a new message. Where --older-than is below the setting retention, the command asks first; without a terminal it then needs --yes.

Examples:

    sweep prune
    sweep prune --older-than 1h --yes
    sweep prune --older-than 30d --failed --max 100000`
}

// Validate checks the values.
func (c *pruneCmd) Validate() error {
	if c.OlderThan != nil && *c.OlderThan < 0 {
		return fmt.Errorf("--older-than must be 0 or more, not %v", time.Duration(*c.OlderThan))
	}
	return checkMax(c.Max)
}

type pruneResult struct {
	Pruned int64 `json:"pruned"`
}

// Run prunes.
func (c *pruneCmd) Run(ctx context.Context, a *app) error {
	var age *string
	if c.OlderThan != nil {
		text := c.OlderThan.interval()
		age = &text
	}
	return a.withConn(ctx, func(conn *pgx.Conn) error {
		if err := c.confirm(ctx, a, conn, age); err != nil {
			return err
		}
		done, err := a.inChunks(ctx, conn, c.Max, `select outbox.prune($2::text::interval, $1::int, $3::boolean)`, age, c.Failed)
		return a.printCount(c.JSON, pruneResult{Pruned: done}, "pruned", done, err)
	})
}

// confirm asks where messages would be deleted that the setting retention keeps.
func (c *pruneCmd) confirm(ctx context.Context, a *app, conn *pgx.Conn, age *string) error {
	if age == nil {
		return nil
	}
	var below bool
	var kept string
	err := inReadTx(ctx, conn, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `select $1::text::interval < s.retention, s.retention::text from outbox.settings() as s`, age).Scan(&below, &kept)
	})
	if err != nil {
		return fmt.Errorf("read the retention: %w", err)
	}
	if !below {
		return nil
	}
	return a.confirm(ctx, c.Yes, fmt.Sprintf("delete messages before their retention of %s is over", kept))
}
