package driver

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"
)

// ClaimRequest is what to claim. Node, Shards and Batch are required.
type ClaimRequest struct {
	Node     string  // who claims; a second claim under the same name is empty while one is under way
	Shards   []int32 // the shards to claim from
	Batch    int     // most rows; 1 to the setting max_batch
	MaxBytes int64   // of payloads: the claim ends with the row that reaches it; 0 or less: no limit

	// WithoutPayloads leaves Payload and Headers of the messages out, to be read with
	// [Payloads] when there is room for them. The claim holds its shards for a shorter time
	// then, and what it returns fits into memory whatever was enqueued. Small payloads come along
	// all the same, up to 1 MiB in all: Payload is nil where one was left out, and only there.
	WithoutPayloads bool
}

// Outcome is how a claim ended, beside what it brought.
type Outcome string

const (
	Served     Outcome = "served"       // it brought messages
	Cut        Outcome = "cut"          // it ended before it had looked at all: claim again at once, the next walk goes on there
	CutPastEnd Outcome = "cut_past_end" // likewise, and the walk came past the end of the ring: once in each round
	AllRound   Outcome = "all_round"    // it brought none: nothing is due that it may claim
	ShutOut    Outcome = "shut_out"     // it brought none, and another claim has some of the shards, or the node's name
)

// Claimed is what a claim brought, in the order of service, and how it ended.
type Claimed struct {
	Deliveries []Delivery
	Outcome    Outcome
}

// Claim claims due messages, fairly over namespaces, and commits. It never waits for another
// claim. Where it fails, nothing was claimed, or, if the connection broke during the commit,
// what was claimed is due again when its lease has expired.
//
// The transaction is begun read committed, whatever the role's default: the counting
// of quotas needs it. Where sessions are read only by default it fails: what settles the
// messages would fail too.
func Claim(ctx context.Context, db DB, r ClaimRequest) (Claimed, error) {
	var c Claimed
	err := readCommitted(ctx, db, func(tx pgx.Tx) (err error) {
		if c.Deliveries, err = claim(ctx, tx, r); err != nil {
			return err
		}
		if c.Outcome = Served; len(c.Deliveries) == r.Batch {
			return nil
		}
		outcome, err := queryOne[*Outcome](ctx, tx, `select pg_catalog.current_setting('outbox.claim_outcome', true)`)
		if c.Outcome = AllRound; outcome != nil && *outcome != "" { // else the function is of a version that does not say
			c.Outcome = *outcome
		}
		return err
	})
	if err != nil {
		return Claimed{}, wrap("claim", err)
	}
	return c, nil
}

// claimSQL has a message's due_at where it is finite, else created_at: what has always been due has
// been so since it was there. (No message is claimed before it is due, so it is never 'infinity'.)
const claimSQL = `select c.id, c.claim_token, c.namespace, c.task_queue, c.dispatch_key, c.shard, c.attempt,
       c.content_type, c.headers::pg_catalog.text, c.payload,
       (extract(epoch from c.lease_until) operator(pg_catalog.*) 1000000)::bigint, c.pass, c.payload_bytes, c.suspect,
       ` + microsOf + `c.created_at` + endMicros + `,
       ` + microsOf + `case when pg_catalog.isfinite(c.due_at) then c.due_at else c.created_at end` + endMicros + `,
       (extract(epoch from c.claimed_at) operator(pg_catalog.*) 1000000)::bigint
from outbox.claim_fair($1::pg_catalog.text, $2::int[], $3::int, $4::bigint, $5::boolean) as c`

func claim(ctx context.Context, q Querier, r ClaimRequest) ([]Delivery, error) {
	var maxBytes *int64
	if r.MaxBytes > 0 {
		maxBytes = &r.MaxBytes
	}
	rows, err := q.Query(ctx, claimSQL, r.Node, r.Shards, r.Batch, maxBytes, !r.WithoutPayloads)
	if err != nil {
		return nil, err
	}
	// All rows are scanned into the same variables: those of each row would be allocated.
	var deliveries []Delivery
	var d Delivery
	seen := map[string]string{}
	_, err = pgx.ForEachRow(rows, []any{
		&d.ID, &d.ClaimToken,
		interned{&d.Namespace, seen},
		interned{&d.TaskQueue, seen},
		&d.DispatchKey, &d.Shard, &d.Attempt,
		interned{&d.ContentType, seen},
		(*headersText)(&d.Headers), (*bytea)(&d.Payload), (*instant)(&d.LeaseUntil), &d.Pass, &d.PayloadBytes, &d.Suspect,
		(*instant)(&d.CreatedAt), (*instant)(&d.DueAt), (*instant)(&d.ClaimedAt),
	}, func() error {
		d.Probe = d.Pass == 0
		if deliveries == nil {
			deliveries = make([]Delivery, 0, min(r.Batch, 128))
		}
		deliveries = append(deliveries, d)
		d = Delivery{} // the next one must not be scanned into the same bytes
		return nil
	})
	return deliveries, err
}

// parseHeaders reads the headers' JSON object. Values that are not strings, which only
// SQL can have written, become their JSON text. An object that Go cannot read (it nests
// deeper than encoding/json goes) comes whole, under an empty name: it must not be the
// reason that the claim, and with it every other message, is given up.
func parseHeaders(object []byte) map[string]string {
	if string(object) == "{}" {
		return nil
	}
	var raw map[string]json.RawMessage
	if json.Unmarshal(object, &raw) != nil {
		return map[string]string{"": string(object)}
	}
	headers := make(map[string]string, len(raw))
	for name, value := range raw {
		var text string
		if json.Unmarshal(value, &text) != nil || string(value) == "null" {
			text = string(value)
		}
		headers[name] = text
	}
	return headers
}
