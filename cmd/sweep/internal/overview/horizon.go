package overview

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Holder is something for which the server must keep dead rows. Until it has gone,
// vacuum cannot remove the dead rows of claims and settles.
type Holder struct {
	Kind string `json:"kind"`            // "session", "prepared transaction" or "replication slot"
	Name string `json:"name"`            // by which it can be ended or dropped
	Who  string `json:"who"`             // its owner: application and role
	Xids int64  `json:"xids"`            // age of the oldest transaction that it holds back, in transactions
	Secs *int64 `json:"seconds"`         // how long it has been there; null for a replication slot
	What string `json:"state,omitempty"` // of a session or a slot: "active", "idle in transaction", "not active"
}

// ReadHolders finds the oldest holders, limit at most: sessions with a snapshot in this database,
// prepared transactions in this database, and replication slots (also those of standbys
// with hot_standby_feedback).
func ReadHolders(ctx context.Context, tx pgx.Tx, limit int) ([]Holder, error) {
	return rowsOf[Holder](ctx, tx, "read what holds the horizon", `
	select x.kind, x.name, x.who, x.xids, x.seconds, x.state
	from (
		select 'session' as kind, 'pid ' || a.pid as name,
		       concat_ws(', ', nullif(a.application_name, ''), a.usename) as who,
		       age(coalesce(a.backend_xmin, a.backend_xid))::bigint as xids,
		       extract(epoch from clock_timestamp() - a.xact_start)::bigint as seconds,
		       coalesce(a.state, a.backend_type, '') as state
		from pg_catalog.pg_stat_activity as a
		where a.pid <> pg_backend_pid() and (a.datname = current_database() or a.datname is null)
		  and coalesce(a.backend_xmin, a.backend_xid) is not null
		union all
		select 'prepared transaction', quote_literal(p.gid), p.owner::text, age(p.transaction)::bigint,
		       extract(epoch from clock_timestamp() - p.prepared)::bigint, ''
		from pg_catalog.pg_prepared_xacts as p
		where p.database = current_database()
		union all
		select 'replication slot', s.slot_name::text, coalesce(s.database::text, ''),
		       greatest(age(s.xmin), age(s.catalog_xmin))::bigint, null,
		       case when s.active then 'active' else 'not active' end
		from pg_catalog.pg_replication_slots as s
		where s.xmin is not null or s.catalog_xmin is not null
	) as x
	order by x.xids desc, x.seconds desc nulls last limit $1::int`, limit)
}
