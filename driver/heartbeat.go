package driver

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Heartbeat is how a node shows that it lives, and how it is.
type Heartbeat struct {
	Node          string
	Process       string  // tells apart processes that use one name; empty: they are not told apart
	Shards        []int32 // its own; nil: those that the outbox gives it; empty, not nil: none, it stops
	Paused        string  // why it does not claim; empty: it claims
	InFlightBytes int64
	SeenToken     int64 // the largest claim token that the process has got; 0: none
}

// Ownership is what a heartbeat comes back with.
type Ownership struct {
	Shards     []int32       // those that the node owns now
	Again      time.Duration // after this, at the latest, another node may have lapsed: ask again
	SharedName bool          // another process sends heartbeats under the same name
	WentBack   bool          // the database had not drawn SeenToken yet: it went back in time
}

// Beat sends the heartbeat: it makes the node a live one, until [Leave], or until the
// outbox has not heard of it for the setting node_lapse. Who owns which shards is advice,
// and may be out of date: claims exclude each other whatever they name (INV-1, INV-4).
func Beat(ctx context.Context, db DB, h Heartbeat) (o Ownership, err error) {
	err = readCommitted(ctx, db, func(tx pgx.Tx) error {
		var again int64 // microseconds
		err := tx.QueryRow(ctx, `select h.owned, (extract(epoch from h.again_in) operator(pg_catalog.*) 1000000)::bigint, h.shared_name, h.went_back
from outbox.heartbeat($1::pg_catalog.text, $2::int[], $3::pg_catalog.text, $4::bigint, $5::pg_catalog.text, $6::bigint) as h`,
			h.Node, h.Shards, orNull(h.Paused), h.InFlightBytes, orNull(h.Process), h.SeenToken).Scan(&o.Shards, &again, &o.SharedName, &o.WentBack)
		o.Shards = append([]int32{}, o.Shards...) // none is not nil
		o.Again = time.Duration(again) * time.Microsecond
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

// readCommitted runs do in a transaction, whatever the role's default isolation: sharing out
// must see what was committed before it had the lock.
func readCommitted(ctx context.Context, db DB, do func(tx pgx.Tx) error) error {
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		_ = tx.Rollback(late) // the first error is the one to tell
		return err
	}
	return tx.Commit(ctx)
}

// beat sends the loop's heartbeat and takes over what it says about shards.
func (l *loop) beat(ctx context.Context) error {
	h := Heartbeat{
		Node: l.config.Node, Process: l.process, Shards: l.shards, Paused: l.holding(), InFlightBytes: l.budget.Usage(),
		SeenToken: l.seenToken,
	}
	switch {
	case l.draining: // it claims no more: another node may
		h.Shards = []int32{}
	case l.auto:
		h.Shards = nil
	}
	o, err := Beat(ctx, l.db, h)
	if err != nil {
		return err
	}
	if o.SharedName && !l.twin {
		l.log.Warn("another process uses this node's name: they get the same shards and hinder each other; give each a name of its own",
			"process", l.process)
	}
	l.twin = o.SharedName
	if o.WentBack {
		l.log.Error("the database has gone back in time, by a fail-over or a restore: what it had committed last is lost, and what was settled then comes again; sweep check tells more",
			"seen_token", l.seenToken)
	}
	if l.auto && !l.draining && !slices.Equal(l.shards, o.Shards) {
		if l.shards != nil { // not at the start
			l.log.Info("shards have moved", "now", len(o.Shards), "gained", beyond(o.Shards, l.shards), "lost", beyond(l.shards, o.Shards))
		}
		l.shards = o.Shards
		l.again, l.some, l.sweepAt = false, false, 0 // what they hold may have waited
	}
	// A node that has lapsed is noticed within a part of a sweep, and not by all at once.
	pause := l.config.Tick / 4
	next := min(jitter(min(l.config.HeartbeatEvery, l.lapse/4)), max(o.Again, pause)+jitter(pause/4))
	l.duties.heartbeat = l.clock() + int64(next)
	return nil
}

// beyond counts the shards that are not among others; both are sorted.
func beyond(shards, others []int32) (n int) {
	for _, shard := range shards {
		if _, found := slices.BinarySearch(others, shard); !found {
			n++
		}
	}
	return n
}
