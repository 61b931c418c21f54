package driver

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// OutboxSurvey is an outbox as a whole at one moment, as outbox.survey says. Of Due, Unripe, Claimed and
// Failed, what is above ExactTo is an estimate by what the server's statistics say; the other
// counts stop there.
type OutboxSurvey struct {
	Due        int64  // pending messages that are due
	Unripe     int64  // pending messages that wait for their time
	Claimed    int64  // messages
	Failed     int64  // dead letters
	ExactTo    int64  // ten times the setting count_cap
	Expired    *int64 // claims whose lease has expired; nil: not known, too many dead rows stand in the way
	Failing    int    // destinations that have failed, and are not held
	Held       int    // destinations that are held
	Recovering int    // destinations whose flow grows again
	Pauses     int    // that are in force
	ShardCount int
	Unowned    int // shards that no live node owns
	HeldOfAll  int // of Held, the routes of all namespaces
}

// Survey reads how the outbox is as a whole. What it reads is bounded.
func Survey(ctx context.Context, db Querier) (s OutboxSurvey, err error) {
	rows, err := db.Query(ctx, `select s.due, s.unripe, s.claimed, s.failed, s.exact_to::bigint, s.expired,
       s.failing, s.held, s.recovering, s.pauses, s.shard_count, s.unowned, s.held_of_all from outbox.survey() as s`)
	if err != nil {
		return s, wrap("survey", err)
	}
	s, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[OutboxSurvey])
	return s, wrap("survey", err)
}

// Horizon is what keeps vacuum from removing dead rows, as outbox.horizon says.
type Horizon struct {
	Age          time.Duration // how long ago the oldest open transaction of the database began; 0: there is none
	Transactions int64         // how many transactions ago the oldest one began that anything holds back, a replication slot too
	SeesAll      bool          // false: the role sees its own sessions only; pg_read_all_stats or pg_monitor lets it see those of others
}

// ReadHorizon reads how old the oldest transaction is that keeps dead rows from being removed.
func ReadHorizon(ctx context.Context, db Querier) (h Horizon, err error) {
	rows, err := db.Query(ctx, `select coalesce((extract(epoch from h.age) operator(pg_catalog.*) 1000000)::bigint, 0), h.transactions, h.sees_all
from outbox.horizon() as h`)
	if err != nil {
		return h, wrap("read the horizon", err)
	}
	_, err = pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (struct{}, error) {
		return struct{}{}, row.Scan((*micros)(&h.Age), &h.Transactions, &h.SeesAll)
	})
	return h, wrap("read the horizon", err)
}

// NamespaceSurvey is how a namespace is at one moment. The counts stop at the setting count_cap.
type NamespaceSurvey struct {
	Namespace string
	At        time.Time // the moment, by the database's clock
	OldestDue time.Time // when the oldest due message came due; no meaning where Due is 0
	Due       int64     // pending messages that are due
	Unripe    int64     // pending messages that wait for their time
	Claimed   int64     // messages
	Failed    int64     // dead letters
	Quota     int       // in force: its own, or the default
	Strict    bool      // the quota is never exceeded
	Paused    bool      // it, or everything, is paused
	FreeDue   time.Time // as OldestDue, of the messages whose destination is not held; zero: there are none
	Partial   bool      // it has more than count_cap lanes (a route on a shard): an older message than OldestDue may stand in one of the others
}

// Waited is how long the oldest due message had waited at the moment; 0: none is due.
func (n *NamespaceSurvey) Waited() time.Duration {
	if n.Due == 0 {
		return 0
	}
	return max(n.At.Sub(n.OldestDue), 0)
}

// WaitedFree is Waited of the messages whose destination is not held.
func (n *NamespaceSurvey) WaitedFree() time.Duration {
	if n.Due == 0 || n.FreeDue.IsZero() {
		return 0
	}
	return max(n.At.Sub(n.FreeDue), 0)
}

// WaitedHeld is how long the oldest due message has waited where its destination is held, and 0 where it is not.
func (n *NamespaceSurvey) WaitedHeld() time.Duration {
	if n.OldestDue.Equal(n.FreeDue) {
		return 0
	}
	return n.Waited()
}

// SurveyPage asks for a page of namespaces.
type SurveyPage struct {
	After   string        // the last namespace of the page before; empty: the first page
	Size    int           // most namespaces
	MaxTime time.Duration // after which the page ends early; never without a namespace if there is one
}

// SurveyNamespaces reads a page of the namespaces that have pending messages, in the order of the ring
// that claims walk. A page without namespaces is behind the last one.
func SurveyNamespaces(ctx context.Context, db Querier, p SurveyPage) ([]NamespaceSurvey, error) {
	return surveyed(ctx, db, `outbox.survey_namespaces($1::pg_catalog.text, $2::int, null, $3::pg_catalog.text::interval)`,
		orNull(p.After), p.Size, interval(p.MaxTime))
}

// SurveyNamed reads how these namespaces are, in their order, also where they have no messages.
func SurveyNamed(ctx context.Context, db Querier, names []string) ([]NamespaceSurvey, error) {
	return surveyed(ctx, db, `outbox.survey_namespaces(names => $1::pg_catalog.text[])`, append([]string{}, names...))
}

func surveyed(ctx context.Context, db Querier, from string, args ...any) ([]NamespaceSurvey, error) {
	rows, err := db.Query(ctx, `select s.namespace, (extract(epoch from s.at) operator(pg_catalog.*) 1000000)::bigint,
       case when s.oldest_due_at is not null then `+microsOf+`s.oldest_due_at`+endMicros+` end,
       case when s.free_due_at is not null then `+microsOf+`s.free_due_at`+endMicros+` end,
       s.due, s.unripe, s.claimed, s.failed, s.quota, s.strict, s.paused, s.partial from `+from+` as s`, args...)
	if err != nil {
		return nil, wrap("survey namespaces", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (n NamespaceSurvey, err error) {
		err = row.Scan(&n.Namespace, (*instant)(&n.At), (*instant)(&n.OldestDue), (*instant)(&n.FreeDue), &n.Due, &n.Unripe, &n.Claimed, &n.Failed,
			&n.Quota, &n.Strict, &n.Paused, &n.Partial)
		return n, err
	})
	return all, wrap("survey namespaces", err)
}

// HoldEvent is what became of the hold of a destination.
type HoldEvent struct {
	ID    int64     // unlike that of any other
	At    time.Time // by the database's clock
	Event string    // "held", "lifted", or "gave_up": it is tried no more until somebody lifts the hold
	Destination
	Since  time.Time // when the hold began
	By     string    // the node whose attempt failed, or the role that called the function; empty: a message came through
	Reason string    // of the hold, as the failure or the operator said; may be empty
}

// HoldEvents reads what became of holds since it was called last, by whomever: it returns each event once, the
// oldest first, up to most of them (1 to 10000), and none that is older than a day.
func HoldEvents(ctx context.Context, db Querier, most int) ([]HoldEvent, error) {
	rows, err := db.Query(ctx, `select e.id, `+microsOf+`e.at`+endMicros+`, e.event, coalesce(e.namespace, ''), e.task_queue,
       `+microsOf+`e.since`+endMicros+`, coalesce(e.by, ''), coalesce(e.reason, '') from outbox.hold_events($1::int) as e`, most)
	if err != nil {
		return nil, wrap("read events of holds", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e HoldEvent, err error) {
		err = row.Scan(&e.ID, (*instant)(&e.At), &e.Event, &e.Namespace, &e.TaskQueue, (*instant)(&e.Since), &e.By, &e.Reason)
		return e, err
	})
	return all, wrap("read events of holds", err)
}

// Violation is a row of outbox.check: a guarantee that is violated, or, where Guarantee is [Advice], something
// that could be safer.
type Violation struct {
	Guarantee string // "INV-4", "rights"
	Subject   string // what violates it
	Detail    string // what is wrong with it
	Hint      string // what to do
}

// Advice is the Guarantee of a [Violation] that is none.
const Advice = "advice"

// Check audits the outbox: the messages with the newest ids, so many of them, and all else but
// the indexes of large tables. Of each kind of violation the first few come, and the
// number of the others.
func Check(ctx context.Context, db Querier, newest int64) ([]Violation, error) {
	rows, err := db.Query(ctx, `select v.guarantee, v.subject, v.detail, v.hint from outbox.check($1::bigint, 10) as v`, newest)
	if err != nil {
		return nil, wrap("check", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Violation])
	return found, wrap("check", err)
}
