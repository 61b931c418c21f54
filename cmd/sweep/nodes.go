package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/shards"
	"github.com/fairclaim/fairclaim/driver"
)

type nodesCmd struct {
	jsonFlag
}

func (nodesCmd) Help() string {
	return `Prints a row for each node: first the nodes that are alive, then those whose last heartbeat is longer ago than the setting node_lapse (their rows go after a day), then names under which somebody claims without heartbeats (sweep once, psql). Ages are by the database's clock.

KIND says who chose the shards of a node: the node itself (fixed, by --shards), or the database (auto). The shards that no live node owns stand below the table; only 'sweep once' claims from them.

Examples:

    sweep nodes
    sweep nodes --json | jq '.unowned_shards'`
}

// nodes are the nodes of an outbox, and the shards that none of them owns.
type nodes struct {
	Nodes   []nodeRow `json:"nodes"`
	Unowned []int32   `json:"unowned_shards"` // no live node owns them

	Obstacles []driver.Obstacle `json:"obstacles"` // who holds locks of claims and is not claiming
}

type nodeRow struct {
	Node        string     `json:"node"`
	Live        bool       `json:"live"`
	HeartbeatAt *time.Time `json:"heartbeat_at"`
	Auto        bool       `json:"auto"`
	Shards      []int32    `json:"shards"`
	Paused      *string    `json:"paused"`
	InFlight    *int64     `json:"in_flight_bytes"`
	Processes   []string   `json:"processes"` // two or more, where they use the same name
	LastClaimAt *time.Time `json:"last_claim_at"`
	LastClaimed *int32     `json:"last_claimed"`
}

// nodesRows is how many nodes the command shows.
const nodesRows = 1000

// readNodes reads at most limit nodes.
func readNodes(ctx context.Context, tx pgx.Tx, limit int) (n nodes, err error) {
	n.Nodes, err = rowsOf[nodeRow](ctx, tx, "read the nodes", `
		select n.node, n.live, n.heartbeat_at, n.auto, n.shards, n.paused, n.in_flight_bytes, n.processes,
		       n.last_claim_at, n.last_claimed
		from outbox.nodes as n order by n.live desc, n.heartbeat_at is null, n.node limit $1::int`, limit)
	if err != nil {
		return n, err
	}
	if err := tx.QueryRow(ctx, `select outbox.unowned_shards()`).Scan(&n.Unowned); err != nil {
		return n, fmt.Errorf("read which shards have no owner: %w", err)
	}
	n.Obstacles, err = driver.Obstacles(ctx, tx, false)
	return n, err
}

// Run prints the nodes.
func (c *nodesCmd) Run(ctx context.Context, a *app) error {
	var r struct {
		At     time.Time `json:"at"` // on the database's clock
		Shards int32     `json:"shard_count"`
		nodes
	}
	err := a.withConn(ctx, func(conn *pgx.Conn) error {
		return inReadTx(ctx, conn, func(tx pgx.Tx) (err error) {
			err = tx.QueryRow(ctx, `
				select clock_timestamp(), g.shard_count, set_config('statement_timeout', $1::text, true)
				from outbox.settings() as g`, fmt.Sprint(showTimeout.Milliseconds())).Scan(&r.At, &r.Shards, nil)
			if err != nil {
				return fmt.Errorf("read the settings: %w", err)
			}
			r.nodes, err = readNodes(ctx, tx, nodesRows)
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
		t := newTable(a.stdout, "NODE", "STATE", "SHARDS", "KIND", "HEARTBEAT", "IN FLIGHT", "LAST CLAIM", "ROWS")
		for _, n := range r.Nodes {
			t.row(n.Node, n.state(), shards.Format(n.Shards), n.kind(), ago(r.At, n.HeartbeatAt), n.inFlight(), ago(r.At, n.LastClaimAt), n.LastClaimed)
		}
		if err := t.flush(); err != nil {
			return err
		}
		if err := printCut(a, len(r.Nodes), nodesRows); err != nil {
			return err
		}
	}
	return r.printOwners(a, r.Shards)
}

// state says in words what the node is doing.
func (n nodeRow) state() string {
	switch {
	case n.HeartbeatAt == nil:
		return "not running, or run by cron" // it claims, and sends no heartbeat
	case !n.Live:
		return "lapsed"
	case n.Paused != nil:
		return "paused: " + *n.Paused
	case len(n.Shards) == 0:
		return "standby: no shard is left for it"
	}
	return "live"
}

func (n nodeRow) kind() string {
	switch {
	case n.HeartbeatAt == nil:
		return ""
	case n.Auto:
		return "auto"
	}
	return "fixed"
}

func (n nodeRow) inFlight() string {
	if n.InFlight == nil {
		return ""
	}
	return plural(*n.InFlight, "byte")
}

// printOwners prints names that two processes use, who holds locks of claims, and shards
// without an owner.
func (n nodes) printOwners(a *app, count int32) error {
	for _, row := range n.Nodes {
		if row.Live && len(row.Processes) > 1 {
			if err := a.printf("Two processes use the name %q: %s. Give each a name of its own.",
				row.Node, visible(strings.Join(row.Processes, ", "))); err != nil {
				return err
			}
		}
	}
	for _, o := range n.Obstacles {
		held := plural(int64(o.Others), "other lock")
		if len(o.Shards) > 0 {
			held = "those of shards " + shards.Format(o.Shards) + ", " + held
		}
		if err := a.printf("%s holds locks of claims (%s) and is not claiming: nothing is claimed from its shards. To end it: %s",
			visible(o.Session), held, visible(o.Remedy)); err != nil {
			return err
		}
	}
	switch len(n.Unowned) {
	case 0:
		return a.printf("unowned shards: none")
	case int(count):
		return a.printf("unowned shards: all; no live node has any, only 'sweep once' claims from them")
	}
	return a.printf("unowned shards: %s; only 'sweep once' claims from them until a node has them", shards.Format(n.Unowned))
}
