package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

type pruneCmd struct {
	OlderThan *duration `placeholder:"AGE" env:"SWEEP_PRUNE_OLDER_THAN" help:"Settled longer ago than this: 12h, 7d. Without it, the setting retention."`
	Failed    bool      `env:"SWEEP_PRUNE_FAILED" help:"Failed messages too. Without it, done and cancelled ones alone."`
	Max       int64     `placeholder:"N" env:"SWEEP_PRUNE_MAX" help:"At most so many."`
	Yes       bool      `short:"y" env:"SWEEP_PRUNE_YES" help:"Do it without asking."`
	jsonFlag
}

func (pruneCmd) Help() string {
	return `Deletes messages with their payloads and failures, in chunks, each a transaction. Their dispatch keys are free again: what is enqueued with one of them is a new message. Below the setting retention it asks first; without a terminal it needs --yes then.

Examples:

    sweep prune
    sweep prune --older-than 1h --yes
    sweep prune --older-than 30d --failed --max 100000`
}

// Validate refuses ages and numbers that mean nothing.
func (c *pruneCmd) Validate() error {
	if c.OlderThan != nil && *c.OlderThan < 0 {
		return errors.New("--older-than must not be negative")
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

// confirm asks where messages would go that the outbox is set to keep for longer.
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
