package driver

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Payloads reads Payload and Headers of messages that were claimed without them
// ([ClaimRequest].WithoutPayloads). It returns the claims that were lost, as
// [Complete] does. Where it fails, some may have been read, and all may be read again.
func Payloads(ctx context.Context, db Querier, messages []*Delivery) (lost []Ref, err error) {
	missing := make(map[Ref]*Delivery, len(messages))
	refs := make([]Ref, len(messages))
	for i, m := range messages {
		refs[i] = m.Ref()
		missing[refs[i]] = m
	}
	ids, tokens := idsAndTokens(refs)
	rows, err := db.Query(ctx, `select p.id, p.claim_token, p.headers::pg_catalog.text, p.payload
from outbox.payloads($1::bigint[], $2::bigint[]) as p`, ids, tokens)
	if err != nil {
		return nil, wrap("read payloads", err)
	}
	var ref Ref
	var headers string
	var payload bytea
	_, err = pgx.ForEachRow(rows, []any{&ref.ID, &ref.Token, &headers, &payload}, func() error {
		if m := missing[ref]; m != nil {
			m.Headers, m.Payload = parseHeaders(headers), payload
			delete(missing, ref)
		}
		payload = nil // the next one must not be scanned into the same bytes
		return nil
	})
	if err != nil {
		return nil, wrap("read payloads", err)
	}
	for _, r := range refs {
		if missing[r] != nil {
			lost = append(lost, r)
		}
	}
	return lost, nil
}
