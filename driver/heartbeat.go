package driver

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// HeartbeatRequest is what a node tells the outbox about itself.
type HeartbeatRequest struct {
	Node          string
	Process       string  // tells apart processes that use one name; empty: they are not told apart
	Shards        []int32 // its own; nil: those that the outbox gives it; empty, not nil: none, it stops
	Paused        string  // why it does not claim; empty: it claims
	InFlightBytes int64   // payload bytes claimed and not settled
	SeenToken     int64   // the largest claim token that the process has got; 0: none
}

// Ownership is what the outbox answers to a heartbeat.
type Ownership struct {
	Shards     []int32       // those that the node owns now, in their order; empty, not nil: none
	AgainIn    time.Duration // send the next heartbeat after this at the latest, 0: at once (another node may have lapsed by then), and within a third of the setting node_lapse
	SharedName bool          // another process sends heartbeats under the same name
	WentBack   bool          // the database had not drawn SeenToken yet: it went back in time
}

// Heartbeat makes the node a live one, until [Leave], or until the outbox has not heard of
// it for the setting node_lapse. Who owns which shards is advice, and may be
// out of date: claims exclude each other whatever they name (INV-1, INV-4).
func Heartbeat(ctx context.Context, db DB, h HeartbeatRequest) (o Ownership, err error) {
	err = readCommitted(ctx, db, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `select h.owned, (extract(epoch from h.again_in) operator(pg_catalog.*) 1000000)::bigint, h.shared_name, h.went_back
from outbox.heartbeat($1::pg_catalog.text, $2::int[], $3::pg_catalog.text, $4::bigint, $5::pg_catalog.text, $6::bigint) as h`,
			h.Node, h.Shards, orNull(h.Paused), h.InFlightBytes, orNull(h.Process), h.SeenToken).Scan(&o.Shards, (*micros)(&o.AgainIn), &o.SharedName, &o.WentBack)
		o.Shards = append([]int32{}, o.Shards...) // none is not nil
		return err
	})
	return o, wrap("heartbeat", err)
}

// Leave ends a node that stops cleanly; its shards go to others. Where another process
// than this one has the name by now, or process is empty and there is no such node, it
// does nothing.
func Leave(ctx context.Context, db DB, node, process string) error {
	err := readCommitted(ctx, db, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `select outbox.leave($1::pg_catalog.text, $2::pg_catalog.text)`, node, orNull(process))
		return err
	})
	return wrap("leave", err)
}

// NodeProcesses returns the live nodes and the processes that sent their heartbeats, by the
// node's name: a process that starts can look there for processes of its own machine that
// are gone, and [Leave] for them.
func NodeProcesses(ctx context.Context, db Querier) (map[string]string, error) {
	rows, err := db.Query(ctx, `select p.node, p.process from outbox.node_processes() as p`)
	if err != nil {
		return nil, wrap("node processes", err)
	}
	processes := map[string]string{}
	var node, process string
	_, err = pgx.ForEachRow(rows, []any{&node, &process}, func() error {
		processes[node] = process
		return nil
	})
	return processes, wrap("node processes", err)
}
