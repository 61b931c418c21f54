package driver

import (
	"context"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// Ref names one claim of one message: what a settle call must show (INV-9).
type Ref struct {
	ID    int64
	Token int64
}

// Ref returns the reference to this claim of the message.
func (m *Message) Ref() Ref { return Ref{m.ID, m.ClaimToken} }

// Failure is a failed attempt at a claimed message.
type Failure struct {
	Ref
	Reason string         // what went wrong; may hold anything, it is cleaned, and cut in the middle
	Delay  *time.Duration // due again after this; nil: the policy's backoff
}

// Complete settles delivered messages as done and returns the ids settled; the others
// were lost: claimed anew, cancelled, or settled already. With the transaction in which
// a consumer does its work as db, the work and the settling are one.
func Complete(ctx context.Context, db Querier, refs []Ref) ([]int64, error) {
	return settle(ctx, db, "complete", `select outbox.complete($1::bigint[], $2::bigint[])`, refs)
}

// Retry gives messages back after a failed attempt: due again after their delay, or
// failed where their attempts are used up. It returns the ids settled, as [Complete].
func Retry(ctx context.Context, db Querier, failures []Failure) ([]int64, error) {
	delays := make([]*string, len(failures))
	for i, f := range failures {
		if f.Delay != nil {
			d := interval(*f.Delay)
			delays[i] = &d
		}
	}
	refs, reasons := split(failures)
	return settle(ctx, db, "retry",
		`select outbox.retry($1::bigint[], $2::bigint[], $3::pg_catalog.text[], $4::pg_catalog.text[]::interval[])`, refs, reasons, delays)
}

// Fail settles messages as failed, whatever attempts they have left. It returns the ids
// settled, as [Complete].
func Fail(ctx context.Context, db Querier, failures []Failure) ([]int64, error) {
	refs, reasons := split(failures)
	return settle(ctx, db, "fail", `select outbox.fail($1::bigint[], $2::bigint[], $3::pg_catalog.text[])`, refs, reasons)
}

// Release gives back messages that were claimed and not tried: due as they were, the
// attempt not charged (INV-10). It returns the ids released, as [Complete].
func Release(ctx context.Context, db Querier, refs []Ref) ([]int64, error) {
	return settle(ctx, db, "release", `select outbox.release($1::bigint[], $2::bigint[])`, refs)
}

// Extend lets claims run on for a lease from now, 0 for the configured one. It returns
// the ids extended; whoever works on the others should stop.
func Extend(ctx context.Context, db Querier, refs []Ref, lease time.Duration) ([]int64, error) {
	var text *string
	if lease > 0 {
		t := interval(lease)
		text = &t
	}
	return settle(ctx, db, "extend", `select outbox.extend($1::bigint[], $2::bigint[], $3::pg_catalog.text::interval)`, refs, text)
}

// BeginDelivery notes, before it is done, that the delivery of messages with Suspect above 0
// begins, and how many of them the caller has under way together at most: the smaller that
// is, the more a rescue knows of which of them killed the node (INV-10). A node delivers
// up to 16 together that are suspect for the first time, up to 4 for the second, then one
// by one. Call it, committed, before their payloads are read. Those that do not come back must not
// be begun: they were lost, or are locked by somebody.
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

// Rescue takes up to limit messages whose lease has run out back from nodes that are
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

// Prune deletes up to limit messages that were done or cancelled longer ago than the
// configured retention, and returns how many. Their dispatch keys are free again.
func Prune(ctx context.Context, db Querier, limit int) (int, error) {
	n, err := queryOne[int](ctx, db, `select outbox.prune(null, $1::int)`, limit)
	return n, wrap("prune", err)
}

// settle calls a function that takes ids and tokens first and returns ids. Without refs
// it does nothing.
func settle(ctx context.Context, db Querier, verb, sql string, refs []Ref, more ...any) ([]int64, error) {
	if len(refs) == 0 {
		return nil, nil
	}
	ids, tokens := idsAndTokens(refs)
	rows, err := db.Query(ctx, sql, append([]any{ids, tokens}, more...)...)
	if err != nil {
		return nil, wrap(verb, err)
	}
	settled, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	return settled, wrap(verb, err)
}

func idsAndTokens(refs []Ref) (ids, tokens []int64) {
	ids, tokens = make([]int64, len(refs)), make([]int64, len(refs))
	for i, r := range refs {
		ids[i], tokens[i] = r.ID, r.Token
	}
	return ids, tokens
}

func queryOne[T any](ctx context.Context, db Querier, sql string, args ...any) (T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		var zero T
		return zero, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
}

func split(failures []Failure) (refs []Ref, reasons []string) {
	refs, reasons = make([]Ref, len(failures)), make([]string, len(failures))
	for i, f := range failures {
		refs[i], reasons[i] = f.Ref, cleanReason(f.Reason)
	}
	return refs, reasons
}

// maxReason is the longest reason sent to the database, in bytes; SQL cuts again, to
// characters. Both take out the middle.
const maxReason = 8 << 10

// cleanReason makes a text from outside one that PostgreSQL takes and a terminal shows
// as it is: valid UTF-8 of bounded length, without control characters but for tabs and
// line ends.
func cleanReason(s string) string {
	if len(s) > maxReason {
		const half = (maxReason - len("…")) / 2
		head, tail := half, len(s)-half
		for i := 0; i < utf8.UTFMax && !utf8.RuneStart(s[head]); i++ {
			head--
		}
		for i := 0; i < utf8.UTFMax && !utf8.RuneStart(s[tail]); i++ {
			tail++
		}
		s = s[:head] + "…" + s[tail:]
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return '\uFFFD'
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

// interval writes a duration as PostgreSQL reads it, whatever its IntervalStyle.
func interval(d time.Duration) string {
	return strconv.FormatInt(d.Microseconds(), 10) + " microseconds"
}
