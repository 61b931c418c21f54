package driver

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Destination is where messages go: a route of a namespace, or, without a namespace, the route of all.
type Destination struct {
	Namespace string // empty: of all
	TaskQueue string
}

// Destination returns where the message goes.
func (d *Delivery) Destination() Destination { return Destination{d.Namespace, d.TaskQueue} }

// Trouble is what an attempt found to be wrong with a destination.
type Trouble string

const (
	Unreachable Trouble = "unreachable" // there is no connection, or an answer that whoever calls would get
	Broken      Trouble = "broken"      // it broke on the message, perhaps on this one alone
	Busy        Trouble = "busy"        // it asked for time
	Gone        Trouble = "gone"        // it is no more
)

// Reached says who got through to a destination after an attempt there had failed, and before that is reported. A call
// reports many attempts at once; what keeps failing is told from what fails now and then by this.
type Reached string

const (
	ReachedByNone      Reached = ""          // nobody, as far as is known
	ReachedByNamespace Reached = "namespace" // a message of the same namespace: what was Unreachable or Broken counts as any failed attempt
	ReachedByOthers    Reached = "others"    // one of another namespace: the attempt does not count for the route of all
)

// DestinationFailure is an attempt at a claimed message that failed by its destination's doing.
type DestinationFailure struct {
	Ref
	Kind    Trouble
	Reason  string         // what went wrong; may hold anything, it is cleaned, and cut in the middle
	Hold    *time.Duration // of Busy: how much time it asked for; nil: it did not say
	Shared  bool           // the messages of other namespaces, of the same task queue, go to the same endpoint
	Reached Reached        // who got through there since
}

// FailDestination gives messages back whose destination failed, and reports that to the outbox, which
// holds what goes there once enough of them have failed in a row. They are due again as after [Retry];
// where their destination is held by then, no attempt is charged. It returns the claims that were lost, as
// [Complete] does, and those that were not charged: for all others it may have been the last attempt.
func FailDestination(ctx context.Context, db Querier, failures []DestinationFailure) (lost, uncharged []Ref, err error) {
	refs := make([]Ref, len(failures))
	for i, f := range failures {
		refs[i] = f.Ref
	}
	var charged bool
	lost, err = settleEach(ctx, db, "fail destination",
		`select f.id, f.charged from outbox.fail_destination($1::bigint[], $2::bigint[], $3::pg_catalog.text[], $4::pg_catalog.text[],
       $5::pg_catalog.text[]::interval[], $6::boolean[], $7::pg_catalog.text[]) as f`,
		refs, func(part []int) []any {
			kinds, reasons := make([]string, len(part)), make([]string, len(part))
			holds, shared, reached := make([]*string, len(part)), make([]bool, len(part)), make([]*string, len(part))
			for i, at := range part {
				f := failures[at]
				kinds[i], reasons[i], shared[i], reached[i] = string(f.Kind), CleanReason(f.Reason), f.Shared, orNull(string(f.Reached))
				if f.Hold != nil {
					text := interval(*f.Hold)
					holds[i] = &text
				}
			}
			return []any{kinds, reasons, holds, shared, reached}
		}, []any{&charged}, func(ref Ref) {
			if !charged {
				uncharged = append(uncharged, ref)
			}
		})
	return lost, uncharged, err
}

// Health is how a destination is.
type Health string

const (
	Well       Health = "well"       // nothing is known against it
	Failing    Health = "failing"    // messages in a row failed by its doing; a few more, and it is held
	Held       Health = "held"       // no claim takes what goes there, but one message at a time, as a probe
	Recovering Health = "recovering" // a probe has come through a moment ago: more and more goes there
	Unknown    Health = "unknown"    // somebody else reads at this moment what settles have reported: ask again
)

// DestinationHealth is what [Observe] knows of a destination.
type DestinationHealth struct {
	Health Health
	Until  time.Time // of Held: when a message is tried, by the database's clock; the year 9999: not before somebody lifts the hold
	Reason string    // of Held: what the failure said that held it
}

// Observe says how destinations are, in their order. For a node that has messages for them: of
// what is held all but the probe is better given back, with [Release]. Of a route of a namespace it is the worse of how
// that is and how the route of all is. It waits for nobody.
func Observe(ctx context.Context, db DB, destinations []Destination) ([]DestinationHealth, error) {
	namespaces, taskQueues := make([]*string, len(destinations)), make([]string, len(destinations))
	for i, d := range destinations {
		namespaces[i], taskQueues[i] = orNull(d.Namespace), d.TaskQueue
	}
	known := make([]DestinationHealth, 0, len(destinations))
	err := readCommitted(ctx, db, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `select o.state, case when o.held_until is not null then `+microsOf+`o.held_until`+endMicros+` end,
       coalesce(o.reason, '')
from outbox.observe($1::pg_catalog.text[], $2::pg_catalog.text[]) as o order by o.n`, namespaces, taskQueues)
		if err != nil {
			return err
		}
		var d DestinationHealth
		_, err = pgx.ForEachRow(rows, []any{(*string)(&d.Health), (*instant)(&d.Until), &d.Reason}, func() error {
			known = append(known, d)
			return nil
		})
		return err
	})
	if err != nil {
		return nil, wrap("observe destinations", err)
	}
	return known, nil
}
