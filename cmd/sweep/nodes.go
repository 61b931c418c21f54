package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/overview"
	"github.com/fairclaim/fairclaim/cmd/sweep/internal/shards"
	"github.com/fairclaim/fairclaim/driver"
)

type nodesCmd struct {
	tableFlags
}

func (nodesCmd) Help() string {
	return `Prints a row for each node: first the nodes that are alive, then those whose last heartbeat is longer ago than the setting node_lapse (their rows go after a day), then names under which somebody claims without heartbeats (sweep once, psql). Ages are by the database's clock.

KIND says who chose the shards of a node: the node itself (fixed, by --shards), or the database (auto). The shards that no live node owns stand below the table; only 'sweep once' claims from them.

Examples:

    sweep nodes
    sweep nodes --json | jq '.unowned_shards'`
}

// nodesRows is how many nodes the command shows.
const nodesRows = 1000

// Run prints the nodes.
func (c *nodesCmd) Run(ctx context.Context, a *app) error {
	var r struct {
		At     time.Time `json:"at"` // on the database's clock
		Shards int32     `json:"shard_count"`
		overview.Cluster
	}
	err := a.withConn(ctx, func(conn *pgx.Conn) error {
		return inReadTx(ctx, conn, func(tx pgx.Tx) (err error) {
			err = tx.QueryRow(ctx, `
				select clock_timestamp(), g.shard_count, set_config('statement_timeout', $1::text, true)
				from outbox.settings() as g`, fmt.Sprint(showTimeout.Milliseconds())).Scan(&r.At, &r.Shards, nil)
			if err != nil {
				return fmt.Errorf("read the settings: %w", err)
			}
			r.Cluster, err = overview.ReadNodes(ctx, tx, nodesRows)
			return err
		})
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(r)
	}
	if len(r.Nodes) > 0 {
		t := newTable(a.stdout, c.Wide, "NODE", "STATE", "SHARDS", "KIND", "HEARTBEAT", "IN FLIGHT", "LAST CLAIM", "ROWS")
		for _, n := range r.Nodes {
			t.row(n.Node, n.State(), shards.Format(n.Shards), kind(n), ago(r.At, n.HeartbeatAt), inFlight(n), ago(r.At, n.LastClaimAt), n.LastClaimed)
		}
		if err := t.flush(); err != nil {
			return err
		}
		if err := printCut(a, len(r.Nodes), nodesRows); err != nil {
			return err
		}
	}
	return printOwners(a, r.Cluster, r.Shards)
}

// standsStill says what waits for somebody who holds locks.
func standsStill(o driver.Obstacle) string {
	var waits []string
	if len(o.Shards) > 0 {
		waits = append(waits, "nothing is claimed from its shards")
	}
	if o.Others > 0 {
		waits = append(waits, `what needs the other locks stands still, which are of nodes, heartbeats, cancels or destinations: "sweep check" says what`)
	}
	return strings.Join(waits, "; ")
}

func kind(n overview.Node) string {
	switch {
	case n.HeartbeatAt == nil:
		return ""
	case n.Auto:
		return "auto"
	}
	return "fixed"
}

func inFlight(n overview.Node) string {
	if n.InFlight == nil {
		return ""
	}
	return plural(*n.InFlight, "byte")
}

// printOwners prints names that two processes use, who holds locks of claims, and shards
// without an owner.
func printOwners(a *app, n overview.Cluster, count int32) error {
	for _, row := range n.Nodes {
		if row.Live && len(row.Processes) > 1 {
			if err := a.printf("Two processes use the name %q: %s. Give each a name of its own.",
				row.Node, visible(strings.Join(row.Processes, ", "))); err != nil {
				return err
			}
		}
	}
	if err := printObstacles(a, n); err != nil {
		return err
	}
	switch len(n.Unowned) {
	case 0:
		return a.printf("unowned shards: none")
	case int(count):
		return a.printf("unowned shards: all; no live node has any, only 'sweep once' claims from them")
	}
	return a.printf("unowned shards: %s; only 'sweep once' claims from them until a node has them", shards.Format(n.Unowned))
}

func printObstacles(a *app, n overview.Cluster) error {
	for _, o := range n.Obstacles {
		held := plural(int64(o.Others), "other lock")
		if len(o.Shards) > 0 {
			held = "those of shards " + shards.Format(o.Shards) + ", " + held
		}
		if err := a.printf("%s holds locks of the outbox (%s) and is not claiming: %s. To end it: %s",
			visible(o.Session), held, standsStill(o), visible(o.Remedy)); err != nil {
			return err
		}
	}
	return nil
}
