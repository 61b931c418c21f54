package driver

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Obstacle is a session, or a prepared transaction, that holds locks of the outbox. Nothing is claimed
// from its shards until it ends.
type Obstacle struct {
	Session string  `json:"session"` // who it is, in words
	Shards  []int32 `json:"shards"`  // the shards whose locks it holds
	Others  int32   `json:"others"`  // how many other locks it holds: of nodes, heartbeats, cancels and destinations
	Remedy  string  `json:"remedy"`  // the SQL that ends it
}

// Obstacles lists who holds locks of the outbox and is not claiming, or was prepared with a claim
// and forgotten; usually nobody. With claims, it lists those who claim at this moment, too.
func Obstacles(ctx context.Context, db Querier, claims bool) ([]Obstacle, error) {
	rows, err := db.Query(ctx, `select o.session, o.shards, o.others, o.remedy from outbox.claim_obstacles($1::boolean) as o`, claims)
	if err != nil {
		return nil, wrap("look for obstacles", err)
	}
	obstacles, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Obstacle])
	return obstacles, wrap("look for obstacles", err)
}
