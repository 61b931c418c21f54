package driver

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// BeginDelivery tells the outbox, before it happens, that the delivery of suspects (messages with
// Suspect above 0) begins, and how many of them the caller delivers at once at most. The smaller
// that number, the better a rescue can tell which of them killed the node (INV-10). A node delivers
// up to 16 together that are suspect for the first time, up to 4 for the second, then one
// by one. Call it, committed, before their payloads are read. It returns the refs of those that may
// begin. The others must not: their claims were lost, or their rows are locked by another transaction.
func BeginDelivery(ctx context.Context, db Querier, refs []Ref, together int) ([]Ref, error) {
	ids, tokens := idsAndTokens(refs)
	rows, err := db.Query(ctx, `select b.id, b.claim_token from outbox.begin_delivery($1::bigint[], $2::bigint[], $3::int) as b`,
		ids, tokens, together)
	if err != nil {
		return nil, wrap("begin delivery", err)
	}
	noted, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Ref])
	return noted, wrap("begin delivery", err)
}
