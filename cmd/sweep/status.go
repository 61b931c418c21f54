package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

type statusCmd struct {
	Top  int `default:"20" env:"SWEEP_STATUS_TOP" help:"How many namespaces to show: those with the most messages that are pending, claimed or failed (default ${default})."`
	Scan int `default:"1000" env:"SWEEP_STATUS_SCAN" help:"How many namespaces to read, in the order of their names (default ${default})."`
	jsonFlag
}

func (statusCmd) Help() string {
	return `The command is quick however large the backlog is: it reads --scan namespaces, and the counts of a namespace stop at the setting count_cap ("1000+"). Where it leaves something out, it says so.

The last table shows what keeps vacuum from removing dead rows: sessions, prepared transactions and replication slots, the oldest first.

Examples:

    sweep status
    sweep status --top 5
    sweep status --json | jq '.namespaces[] | select(.paused)'`
}

// Validate checks the numbers.
func (c *statusCmd) Validate() error {
	if c.Top < 1 {
		return fmt.Errorf("--top must be 1 or more, not %d", c.Top)
	}
	if c.Scan < 1 {
		return fmt.Errorf("--scan must be 1 or more, not %d", c.Scan)
	}
	return nil
}

// Run prints the status.
func (c *statusCmd) Run(ctx context.Context, a *app) error {
	s := status{}
	err := a.withConn(ctx, func(conn *pgx.Conn) error {
		return inReadTx(ctx, conn, func(tx pgx.Tx) error { return c.read(ctx, tx, &s) })
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(s)
	}
	return s.print(a)
}

func (c *statusCmd) read(ctx context.Context, tx pgx.Tx, s *status) error {
	if err := byIndex(ctx, tx); err != nil {
		return err
	}
	err := tx.QueryRow(ctx, `
		select current_database(), current_setting('server_version'), clock_timestamp(),
		       g.shard_count, g.default_quota, g.count_cap,
		       set_config('statement_timeout', $1::text, true)
		from outbox.settings() as g`, fmt.Sprint(showTimeout.Milliseconds())).
		Scan(&s.Database, &s.Server, &s.At, &s.Shards, &s.DefaultQuota, &s.CountCap, nil)
	if err != nil {
		return fmt.Errorf("read the settings: %w", err)
	}
	// The view walks the namespaces in the order of their names, and stops at the limit.
	s.Namespaces, err = rowsOf[namespaceRow](ctx, tx, "read the namespaces", `
		select n.namespace, n.pending, n.claimed, n.failed, n.quota, n.strict, n.paused
		from outbox.namespaces as n limit $1::int`, c.Scan+1)
	if err != nil {
		return err
	}
	s.More = len(s.Namespaces) > c.Scan
	s.Namespaces = s.Namespaces[:min(len(s.Namespaces), c.Scan)]
	s.Scanned = len(s.Namespaces)
	slices.SortStableFunc(s.Namespaces, func(a, b namespaceRow) int {
		return cmp.Compare(b.Pending+b.Claimed+b.Failed, a.Pending+a.Claimed+a.Failed)
	})
	s.Namespaces = s.Namespaces[:min(len(s.Namespaces), c.Top)]

	if s.nodes, err = readNodes(ctx, tx, listRows); err != nil {
		return err
	}
	if s.Pauses, err = readPauses(ctx, tx, pauseTarget{}); err != nil {
		return err
	}
	err = tx.QueryRow(ctx, `select outbox.count_expired($1::int)`, s.CountCap).Scan(&s.ExpiredLeases)
	if err != nil {
		return fmt.Errorf("count expired leases: %w", err)
	}
	s.Horizon, err = rowsOf[horizonHolder](ctx, tx, "read what holds the horizon", horizonQuery, horizonRows)
	return err
}
