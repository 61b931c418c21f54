package driver

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Failure is a failed attempt at a claimed message.
type Failure struct {
	Ref
	Reason string         // what went wrong; may hold anything, it is cleaned, and cut in the middle
	Delay  *time.Duration // due again after this; nil: the policy's backoff
}

// Complete settles delivered messages as done. With the transaction in which a consumer does
// its work as db, the work and the settling are one.
//
// It returns the claims that were lost: their messages have been claimed anew, were cancelled, or are
// settled already, and stay as they are. A consumer that finds its claim among them rolls its
// transaction back. All other refs were settled.
//
// A call is one statement. Where it fails, nothing was settled, or, if the connection broke
// during the commit, everything; made again, it reports as lost what it had settled. (Refs in
// which one id comes with several claim tokens take a statement each.)
func Complete(ctx context.Context, db Querier, refs []Ref) (lost []Ref, err error) {
	return settle(ctx, db, "complete", `select outbox.complete($1::bigint[], $2::bigint[])`, refs, noArgs)
}

// Retry gives messages back after a failed attempt: due again after their delay, or
// failed where their attempts are used up. It returns the claims that were lost, as [Complete]
// does.
func Retry(ctx context.Context, db Querier, failures []Failure) (lost []Ref, err error) {
	return settle(ctx, db, "retry",
		`select outbox.retry($1::bigint[], $2::bigint[], $3::pg_catalog.text[], $4::pg_catalog.text[]::interval[])`,
		refsOf(failures), func(part []int) []any {
			delays := make([]*string, len(part))
			for i, at := range part {
				if delay := failures[at].Delay; delay != nil {
					text := interval(*delay)
					delays[i] = &text
				}
			}
			return []any{reasonsOf(failures, part), delays}
		})
}

// Fail settles messages as failed, whatever attempts they have left. It returns the claims
// that were lost, as [Complete] does.
func Fail(ctx context.Context, db Querier, failures []Failure) (lost []Ref, err error) {
	return settle(ctx, db, "fail", `select outbox.fail($1::bigint[], $2::bigint[], $3::pg_catalog.text[])`,
		refsOf(failures), func(part []int) []any { return []any{reasonsOf(failures, part)} })
}

// Release gives back messages that were claimed and not tried: due as they were, the
// attempt not charged (INV-10). It returns the claims that were lost, as [Complete] does.
func Release(ctx context.Context, db Querier, refs []Ref) (lost []Ref, err error) {
	return settle(ctx, db, "release", `select outbox.release($1::bigint[], $2::bigint[])`, refs, noArgs)
}

// Extend lets claims run on for so long from now, rounded up to microseconds; 0 stands for the
// outbox's lease. It returns the claims that were lost, as [Complete] does; whoever works on their
// messages should stop. A row that another transaction has locked is not waited for: it is not extended,
// and not lost.
func Extend(ctx context.Context, db Querier, refs []Ref, lease time.Duration) (lost []Ref, err error) {
	var text *string
	if lease > 0 {
		t := interval(lease)
		text = &t
	}
	return settle(ctx, db, "extend", `select outbox.extend($1::bigint[], $2::bigint[], $3::pg_catalog.text::interval)`,
		refs, func([]int) []any { return []any{text} })
}

// settle calls a function that takes ids and tokens first, then args, and returns the ids that
// it settled. Without refs it does nothing. args has the further arguments for those of the
// refs that are in one statement.
//
// The function answers by id. So an id that comes with several claim tokens, because the
// message was claimed again, or because a database that went back in time has given the id to
// another message, goes with each token into a statement of its own: an answer for two would
// say nothing of either.
func settle(ctx context.Context, db Querier, verb, sql string, refs []Ref, args func(part []int) []any) (lost []Ref, err error) {
	return settleEach(ctx, db, verb, sql, refs, args, nil, func(Ref) {})
}

// settleEach is settle for a function that answers more than an id: it scans that, too, and is told each that
// was settled.
func settleEach(ctx context.Context, db Querier, verb, sql string, refs []Ref, args func(part []int) []any, more []any, settled func(Ref)) (lost []Ref, err error) {
	left := make([]int, len(refs))
	for i := range left {
		left[i] = i
	}
	for len(left) > 0 {
		var part, later []int
		token := make(map[int64]int64, len(left))
		for _, at := range left {
			if other, found := token[refs[at].ID]; found && other != refs[at].Token {
				later = append(later, at)
				continue
			}
			token[refs[at].ID] = refs[at].Token
			part = append(part, at)
		}
		asked := make([]Ref, len(part))
		for i, at := range part {
			asked[i] = refs[at]
		}
		ids, tokens := idsAndTokens(asked)
		rows, err := db.Query(ctx, sql, append([]any{ids, tokens}, args(part)...)...)
		if err != nil {
			return nil, wrap(verb, err)
		}
		var id int64
		_, err = pgx.ForEachRow(rows, append([]any{&id}, more...), func() error {
			settled(Ref{ID: id, Token: token[id]})
			delete(token, id)
			return nil
		})
		if err != nil {
			return nil, wrap(verb, err)
		}
		for _, ref := range asked {
			if _, unsettled := token[ref.ID]; unsettled {
				lost = append(lost, ref)
			}
		}
		left = later
	}
	return lost, nil
}

func noArgs([]int) []any { return nil }

func refsOf(failures []Failure) []Ref {
	refs := make([]Ref, len(failures))
	for i, f := range failures {
		refs[i] = f.Ref
	}
	return refs
}

func reasonsOf(failures []Failure, part []int) []string {
	reasons := make([]string, len(part))
	for i, at := range part {
		reasons[i] = CleanReason(failures[at].Reason)
	}
	return reasons
}
