package driver

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Rescue takes up to limit messages whose leases have expired back from nodes that are
// dead or stuck, and returns how many are pending again, and how many have failed
// because their attempts were used up.
func Rescue(ctx context.Context, db Querier, limit int) (pending, failed int, err error) {
	rows, err := db.Query(ctx, `select pg_catalog.count(*) filter (where r.state operator(pg_catalog.=) 'pending'),
       pg_catalog.count(*) filter (where r.state operator(pg_catalog.=) 'failed')
from outbox.rescue($1::int) as r`, limit)
	if err != nil {
		return 0, 0, wrap("rescue", err)
	}
	_, err = pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (struct{}, error) {
		return struct{}{}, row.Scan(&pending, &failed)
	})
	return pending, failed, wrap("rescue", err)
}
