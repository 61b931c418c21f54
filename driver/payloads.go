package driver

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Payloads reads Payload and Headers of messages that were claimed without them
// ([ClaimRequest].WithoutPayloads). It returns the claims that were lost, as
// [Complete] does. Where it fails, some may have been read, and all may be read again.
func Payloads(ctx context.Context, db Querier, messages []*Delivery) (lost []Ref, err error) {
	return PayloadsEach(ctx, db, messages, func(int) {})
}

// PayloadsEach is [Payloads], and calls read for each message that is not lost, with its index, as soon as it has
// its payload: the others may still be on their way. The connection is in use until read returns.
func PayloadsEach(ctx context.Context, db Querier, messages []*Delivery, read func(i int)) (lost []Ref, err error) {
	missing := make(map[Ref]int, len(messages))
	refs := make([]Ref, len(messages))
	for i, m := range messages {
		refs[i] = m.Ref()
		missing[refs[i]] = i
	}
	ids, tokens := idsAndTokens(refs)
	rows, err := db.Query(ctx, `select p.id, p.claim_token, p.headers::pg_catalog.text, p.payload
from outbox.payloads($1::bigint[], $2::bigint[]) as p`, ids, tokens)
	if err != nil {
		return nil, wrap("read payloads", err)
	}
	var ref Ref
	var object headersText
	var payload bytea
	_, err = pgx.ForEachRow(rows, []any{&ref.ID, &ref.Token, &object, &payload}, func() error {
		if i, ok := missing[ref]; ok {
			messages[i].Headers, messages[i].Payload = object, payload
			delete(missing, ref)
			read(i)
		}
		payload = nil // the next one must not be scanned into the same bytes
		return nil
	})
	if err != nil {
		return nil, wrap("read payloads", err)
	}
	for _, r := range refs {
		if _, ok := missing[r]; ok {
			lost = append(lost, r)
		}
	}
	return lost, nil
}
