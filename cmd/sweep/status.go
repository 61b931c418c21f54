package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/overview"
)

type statusCmd struct {
	Top      int      `default:"20" env:"SWEEP_STATUS_TOP" help:"How many namespaces to show: the first by --sort (default ${default})."`
	Sort     string   `default:"wait" enum:"wait,backlog" env:"SWEEP_STATUS_SORT" help:"Which namespaces come first: wait, those whose oldest due message has waited longest; backlog, those with the most messages that are pending, claimed or failed (default ${default})."`
	Scan     int      `default:"1000" env:"SWEEP_STATUS_SCAN" help:"How many namespaces to read, in the order of their names (default ${default})."`
	ScanTime duration `default:"10s" env:"SWEEP_STATUS_SCAN_TIME" help:"How long to read namespaces; fewer than --scan are read in time where many have hundreds of task queues (default ${default})."`
	tableFlags
}

// sortWait is the value of --sort by which the longest wait comes first.
const sortWait = "wait"

func (statusCmd) Help() string {
	return `The command is quick however large the backlog is: it reads --scan namespaces, for at most --scan-time, and the counts of a namespace stop at the setting count_cap ("1000+"). Where it leaves something out, it says so.

Of the PENDING messages, those that are NOT DUE wait for their time: for a delay, or a backoff after a failed attempt. OLDEST DUE is how long ago the oldest of the others came due: so long it waits to be claimed.

STATE says what keeps claims from a namespace as a whole, or in part: paused; held by its quota, which is 0; at its quota, with as many messages claimed as may be; N routes held, so many of its task queues as destinations, by failures or by an operator ("sweep holds"). Where it is empty, nothing of these does. A pause of a single task queue is in the table of pauses only.

The last table shows what keeps vacuum from removing dead rows: sessions, prepared transactions and replication slots, the oldest first.

Examples:

    sweep status
    sweep status --top 5
    sweep status --sort backlog
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
	if c.ScanTime < 0 {
		return fmt.Errorf("--scan-time must be 0 or more, not %v", time.Duration(c.ScanTime))
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
	if err := c.readNamespaces(ctx, tx, s); err != nil {
		return err
	}
	s.sort, s.wide = c.Sort, c.Wide
	slices.SortStableFunc(s.Namespaces, func(a, b namespaceRow) int {
		wait := 0
		if c.Sort == sortWait {
			wait = cmp.Compare(b.waited(), a.waited())
		}
		return cmp.Or(wait, cmp.Compare(b.backlog(), a.backlog()))
	})
	s.Namespaces = s.Namespaces[:min(len(s.Namespaces), c.Top)]

	if s.Cluster, err = overview.ReadNodes(ctx, tx, listRows); err != nil {
		return err
	}
	if s.Pauses, err = readPauses(ctx, tx, pauseTarget{}); err != nil {
		return err
	}
	if s.Holds, err = readHolds(ctx, tx, nil); err != nil {
		return err
	}
	err = tx.QueryRow(ctx, `select outbox.count_expired($1::int)`, s.CountCap).Scan(&s.ExpiredLeases)
	if err != nil {
		return fmt.Errorf("count expired leases: %w", err)
	}
	s.Horizon, err = overview.ReadHolders(ctx, tx, horizonRows)
	return err
}

// scanChunk is how many namespaces are read before the clock is looked at.
const scanChunk = 50

// readNamespaces reads --scan namespaces, or what --scan-time is enough for: one of a thousand lanes
// takes some 25 ms. The view walks the namespaces in the order of their names, and a cursor computes those
// only that are fetched.
func (c *statusCmd) readNamespaces(ctx context.Context, tx pgx.Tx, s *status) error {
	_, err := tx.Exec(ctx, `
		declare sweep_status no scroll cursor for
		select n.namespace, n.pending, n.unripe,
		       -- an infinite time is none of Go and of JSON
		       case when n.oldest_due_at is not null then greatest(n.oldest_due_at, '0001-01-01 00:00:00+00') end,
		       case when n.oldest_due_at is not null
		            then extract(epoch from clock_timestamp() - greatest(n.oldest_due_at, '0001-01-01 00:00:00+00')) end::double precision,
		       n.claimed, n.failed, n.quota, n.strict, n.paused,
		       (select count(*) from (select from outbox.holds as h where h.namespace = n.namespace and h.state <> 'recovering' limit 100) as h)
		from outbox.namespaces as n`)
	if err != nil {
		return fmt.Errorf("read the namespaces: %w", err)
	}
	s.Namespaces = []namespaceRow{} // not null in JSON
	for began := time.Now(); ; {
		most := min(scanChunk, c.Scan+1-len(s.Namespaces))
		rows, err := rowsOf[namespaceRow](ctx, tx, "read the namespaces", fmt.Sprintf("fetch %d from sweep_status", most))
		if err != nil {
			return err
		}
		s.Namespaces = append(s.Namespaces, rows...)
		if s.More = len(s.Namespaces) > c.Scan; s.More || len(rows) < most {
			break
		}
		if time.Since(began) >= time.Duration(c.ScanTime) {
			s.More, s.late = true, true
			break
		}
	}
	s.Namespaces = s.Namespaces[:min(len(s.Namespaces), c.Scan)]
	s.Scanned = len(s.Namespaces)
	return nil
}
