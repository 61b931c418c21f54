// Package overview reads what the commands and the pages both show of an outbox as a whole: its nodes,
// and what keeps dead rows alive.
package overview

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/driver"
)

// Cluster is the nodes of an outbox, and the shards that none of them owns.
type Cluster struct {
	Nodes   []Node  `json:"nodes"`
	Unowned []int32 `json:"unowned_shards"` // no live node owns them

	Obstacles []driver.Obstacle `json:"obstacles"` // who holds locks of claims and is not claiming
}

// Node is a row of outbox.nodes.
type Node struct {
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

// ReadNodes reads at most limit nodes.
func ReadNodes(ctx context.Context, tx pgx.Tx, limit int) (n Cluster, err error) {
	n.Nodes, err = rowsOf[Node](ctx, tx, "read the nodes", `
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

// State says in words what the node is doing.
func (n Node) State() string {
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

// rowsOf reads rows into structs, field by column. The result is never nil. An error begins with what.
func rowsOf[T any](ctx context.Context, tx pgx.Tx, what, sql string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err == nil {
		var list []T
		if list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[T]); err == nil {
			return list, nil
		}
	}
	return nil, fmt.Errorf("%s: %w", what, err)
}
