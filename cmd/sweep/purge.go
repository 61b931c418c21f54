package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/internal/grace"
)

type purgeCmd struct {
	Namespace string `arg:"" help:"The namespace of which nothing is to be left."`
	Yes       bool   `short:"y" env:"SWEEP_PURGE_YES" help:"Delete without asking."`
	jsonFlag
}

func (purgeCmd) Help() string {
	return `Deletes all there is of a namespace, for good: its messages in every state with their payloads and failures, its quota and its pauses. What is pending or claimed is cancelled first: a delivery that is under way may go on, its outcome no longer counts. The dispatch keys are free again. Stop the producers of the namespace first. The exit code is 1 when messages were enqueued meanwhile.

The command asks first, and shows what there is; without a terminal it needs --yes. It works in chunks, each in a transaction of its own, and looks at every message of the outbox once. Where it is interrupted, run it again.

Examples:

    sweep purge acme
    sweep purge acme --yes --json`
}

// Validate checks the namespace.
func (c *purgeCmd) Validate() error {
	if c.Namespace == "" {
		return errors.New("<namespace> is missing or empty")
	}
	return nil
}

type purgeResult struct {
	Purged   int64 `json:"purged"`   // messages
	Enqueued bool  `json:"enqueued"` // there are messages again
}

// Run purges.
func (c *purgeCmd) Run(ctx context.Context, a *app) error {
	return a.withConn(ctx, func(conn *pgx.Conn) error {
		if err := a.warnUnknown(ctx, conn, c.Namespace); err != nil {
			return err
		}
		if !c.Yes {
			what, err := c.found(ctx, conn)
			if err != nil {
				return err
			}
			if err := a.confirm(ctx, false, what); err != nil {
				return err
			}
		}
		r, err := c.purge(ctx, a, conn)
		if err == nil && r.Enqueued {
			err = withHint(fmt.Errorf("messages of namespace %q were enqueued meanwhile", c.Namespace), "Stop its producers, and purge again.")
		}
		return a.printCount(c.JSON, r, "purged", r.Purged, err)
	})
}

// found says what there is of the namespace, as far as that can be counted at once.
func (c *purgeCmd) found(ctx context.Context, conn *pgx.Conn) (string, error) {
	var pending, claimed, failed, limit, pauses int64
	err := inReadTx(ctx, conn, func(tx pgx.Tx) error {
		if err := byIndex(ctx, tx); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `
			select coalesce(n.pending, 0), coalesce(n.claimed, 0), coalesce(n.failed, 0), g.count_cap,
			       (select count(*) from outbox.pauses as p where p.namespace = $1::text)
			from outbox.settings() as g
			left join outbox.namespaces as n on n.namespace = $1::text`, c.Namespace).Scan(&pending, &claimed, &failed, &limit, &pauses)
	})
	if err != nil {
		return "", fmt.Errorf("count what there is: %w", err)
	}
	counts := []string{counted(pending, limit) + " pending", counted(claimed, limit) + " claimed", counted(failed, limit) + " failed"}
	what := fmt.Sprintf("delete all there is of namespace %q: %s messages, all that are done or cancelled, and its quota", c.Namespace, strings.Join(counts, ", "))
	if pauses > 0 {
		what += " and " + plural(pauses, "pause")
	}
	return what, nil
}

// purge deletes in chunks. What it has deleted is returned beside an error too.
func (c *purgeCmd) purge(ctx context.Context, a *app, conn *pgx.Conn) (r purgeResult, err error) {
	working, stop := grace.Context(ctx, stopGrace)
	defer stop()
	after, reported := int64(0), time.Now()
	for {
		if ctx.Err() != nil {
			return r, withHint(fmt.Errorf("%w; %s purged", context.Cause(ctx), plural(r.Purged, "message")), "Run it again for the rest.")
		}
		var purged int64
		var next *int64
		var enqueued *bool
		err := inLockTx(working, conn, func(tx pgx.Tx) error {
			err := tx.QueryRow(working, `select p.purged, p.next, p.enqueued from outbox.purge($1::text, $2::int, $3::bigint) as p`,
				c.Namespace, chunkRows, after).Scan(&purged, &next, &enqueued)
			if err != nil {
				return fmt.Errorf("purge: %w", err)
			}
			return nil
		})
		if err != nil {
			return r, err
		}
		r.Purged += purged
		if next == nil {
			r.Enqueued = *enqueued
			return r, nil
		}
		after = *next
		if time.Since(reported) >= progressEvery {
			reported = time.Now()
			a.log.Info(a.command, "purged", r.Purged, "up_to_id", after)
		}
	}
}
