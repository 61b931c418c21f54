package ui

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/overview"
	"github.com/fairclaim/fairclaim/driver"
)

const (
	pageTimeout = 10 * time.Second // for a page to read what it shows
	maxTries    = 5
	listNodes   = 200
	listPauses  = 200
)

// read runs do in a transaction that writes nothing and has one snapshot. The planner does not read
// tables as a whole there, or sort what an index has in order, whatever its statistics say.
func (s *Server) read(ctx context.Context, do func(context.Context, pgx.Tx) error) error {
	return s.readPlain(ctx, pageTimeout, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			select set_config(s.name, 'off', true)
			from unnest(array['enable_seqscan', 'enable_hashjoin', 'enable_mergejoin', 'enable_sort', 'jit']) as s(name)`)
		if err != nil {
			return fmt.Errorf("set up the transaction: %w", err)
		}
		return do(ctx, tx)
	})
}

// readPlain is read without the settings for the planner.
func (s *Server) readPlain(ctx context.Context, long time.Duration, do func(context.Context, pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	return pgx.BeginTxFunc(ctx, s.Pool, s.Read, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `select set_config('statement_timeout', $1::text, true)`, fmt.Sprint(long.Milliseconds()))
		if err != nil {
			return fmt.Errorf("set up the transaction: %w", err)
		}
		return do(ctx, tx)
	})
}

// write runs do in a transaction that writes: again where other transactions were in its way.
func (s *Server) write(ctx context.Context, do func(context.Context, pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	for try := 1; ; try++ {
		err := pgx.BeginTxFunc(ctx, s.Pool, s.Write, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `select set_config('statement_timeout', $1::text, true), set_config('lock_timeout', $2::text, true)`,
				fmt.Sprint(pageTimeout.Milliseconds()), fmt.Sprint(pageTimeout.Milliseconds()/2)); err != nil {
				return err
			}
			return do(ctx, tx)
		})
		var pg *pgconn.PgError
		locked := errors.As(err, &pg) && pg.Code == "55P03" // lock_not_available: there is no time to wait as long again
		if err == nil || try == maxTries || locked || !driver.TryAgain(err) {
			return err
		}
	}
}

// rowsOf reads rows into structs, field by column.
func rowsOf[T any](ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

// rowOf reads the only row; found is false where there is none.
func rowOf[T any](ctx context.Context, tx pgx.Tx, sql string, args ...any) (row T, found bool, err error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return row, false, err
	}
	row, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[T])
	if errors.Is(err, pgx.ErrNoRows) {
		return row, false, nil
	}
	return row, err == nil, err
}

// outbox is what every page says of the outbox as a whole.
type outbox struct {
	At           time.Time // on the database's clock
	Shards       int32
	DefaultQuota int32
	CountCap     int64

	overview.Cluster
	AllPaused *pauseRow
	Shared    []holdRow // routes of all tenants that are held
}

// pauseRow is a row of outbox.pauses; null stands for any.
type pauseRow struct {
	Namespace *string
	TaskQueue *string
	Since     time.Time
	By        string
	Note      *string
	Until     *time.Time // it ends by itself then
}

// holdRow is a row of outbox.holds; a null namespace stands for any.
type holdRow struct {
	Namespace *string
	TaskQueue string
	State     string // held, probing, recovering
	Since     *time.Time
	Until     *time.Time // null: until somebody lifts it
	Failures  int32
	By        *string
	Reason    *string
}

const holdColumns = `
	select h.namespace, h.task_queue, h.state, h.since, case when isfinite(h.until) then h.until end, coalesce(h.failures, 0), h.by, h.reason
	from outbox.holds as h `

// What is held, in words.
func (h holdRow) What() string {
	return pauseRow{Namespace: h.Namespace, TaskQueue: &h.TaskQueue}.What()
}

// What is paused, in words.
func (p pauseRow) What() string {
	switch {
	case p.Namespace != nil && p.TaskQueue != nil:
		return "route " + shown(*p.TaskQueue) + " of tenant " + shown(*p.Namespace)
	case p.Namespace != nil:
		return "tenant " + shown(*p.Namespace)
	case p.TaskQueue != nil:
		return "route " + shown(*p.TaskQueue) + " of all tenants"
	}
	return "everything"
}

func ending(until *time.Time) string {
	if until == nil {
		return "it is resumed"
	}
	return clock(*until)
}

// readOutbox reads what every page shows.
func readOutbox(ctx context.Context, tx pgx.Tx) (o outbox, err error) {
	err = tx.QueryRow(ctx, `
		select clock_timestamp(), g.shard_count, g.default_quota, g.count_cap
		from outbox.settings() as g`).Scan(&o.At, &o.Shards, &o.DefaultQuota, &o.CountCap)
	if err != nil {
		return o, fmt.Errorf("read the settings: %w", err)
	}
	if o.Cluster, err = overview.ReadNodes(ctx, tx, listNodes); err != nil {
		return o, err
	}
	all, found, err := rowOf[pauseRow](ctx, tx, `
		select p.namespace, p.task_queue, p.since, p.by, p.note, p.until from outbox.pauses as p where p.namespace is null and p.task_queue is null`)
	if err != nil {
		return o, fmt.Errorf("read the pauses: %w", err)
	}
	if found {
		o.AllPaused = &all
	}
	if o.Shared, err = rowsOf[holdRow](ctx, tx, holdColumns+`where h.namespace is null order by h.task_queue limit $1::int`, listPauses); err != nil {
		return o, fmt.Errorf("read the holds: %w", err)
	}
	return o, nil
}

// Live is how many nodes are alive.
func (o outbox) Live() (n int) {
	for _, node := range o.Nodes {
		if node.Live {
			n++
		}
	}
	return n
}

// claimedLately says whether somebody has claimed in the last minute: sweep once and consumers in SQL send
// no heartbeats.
func (o outbox) claimedLately() bool {
	for _, node := range o.Nodes {
		if node.LastClaimAt != nil && o.At.Sub(*node.LastClaimAt) < time.Minute {
			return true
		}
	}
	return false
}

// Troubles are what keeps all tenants, or many, from being served, in words.
func (o outbox) Troubles() []string {
	var list []string
	if o.AllPaused != nil {
		list = append(list, "Everything is paused by "+shown(o.AllPaused.By)+" since "+clock(o.AllPaused.Since)+noted(o.AllPaused.Note)+". Nothing is claimed until "+ending(o.AllPaused.Until)+".")
	}
	for _, h := range o.Shared {
		if h.State != "recovering" {
			list = append(list, "Route "+shown(h.TaskQueue)+" of all tenants is held: its endpoint does not answer, or somebody holds it. See Nodes.")
		}
	}
	paused := 0
	for _, node := range o.Nodes {
		if node.Live && node.Paused != nil {
			paused++
		}
	}
	switch live := o.Live(); {
	case live == 0 && !o.claimedLately():
		list = append(list, "No node is running: nothing is claimed until one starts, or “sweep once” runs.")
	case live > 0 && paused == live:
		list = append(list, "Every node has paused itself: each has as much in flight as it may, or cannot hand on what it has. See Nodes.")
	case live > 0 && len(o.Unowned) > 0:
		list = append(list, fmt.Sprintf("%s of %d have no node: the messages on them wait.", plural(int64(len(o.Unowned)), "shard"), o.Shards))
	}
	switch {
	case slices.ContainsFunc(o.Obstacles, func(o driver.Obstacle) bool { return len(o.Shards) > 0 }):
		list = append(list, "Somebody holds locks of claims and is not claiming: nothing is claimed from those shards. See Nodes.")
	case len(o.Obstacles) > 0:
		list = append(list, "Somebody who is not claiming holds locks of nodes, heartbeats, cancels or destinations: what needs them stands still. See Nodes.")
	}
	return list
}
