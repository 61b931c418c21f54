package main

import (
	"context"
	"fmt"
	"time"
)

// claimFlatness times claim_fair while what it must not depend on grows: the backlog, the
// number of namespaces, and all that is in its way. Each case is timed beside an outbox
// that stays as it is, in the same rounds.
func claimFlatness(ctx context.Context, l *lab) error {
	for _, part := range []func(context.Context, *lab) error{growBacklog, growNamespaces, hostileShapes, statistics, callsOnAConnection} {
		if err := part(ctx, l); err != nil {
			return err
		}
	}
	return nil
}

// due is how the reference outboxes are filled: 32 namespaces, all on one node's shards.
const due = 32

// growBacklog: the backlog of 32 namespaces grows in place.
func growBacklog(ctx context.Context, l *lab) error {
	small := l.size.backlogs[0]
	reference, err := l.filled(ctx, "backlog_reference", backlog{to: due, rows: small})
	if err != nil {
		return err
	}
	db, err := l.outbox(ctx, "backlog")
	if err != nil {
		return err
	}
	written := 0
	for i, rows := range l.size.backlogs {
		if _, err := db.write(ctx, backlog{to: due, rows: rows - written}); err != nil {
			return err
		}
		written = rows
		l.say("a backlog of %s", count(rows))
		if err := l.settleDown(ctx, db); err != nil {
			return err
		}
		for _, batch := range batches() {
			f, err := l.flat(ctx, db, reference, flatCase{
				name: "backlog of " + count(rows), against: "a backlog of " + count(small), batch: batch,
			})
			if err != nil {
				return err
			}
			if i == len(l.size.backlogs)-1 {
				l.report.atMost("flatness", fmt.Sprintf("claim of %s, backlog of %s against %s", count(batch), count(rows), count(small)), f.Ratio, 1.2)
			}
		}
	}
	return l.dropAll(ctx, db, reference)
}

// growNamespaces: ten messages each, of more and more namespaces.
func growNamespaces(ctx context.Context, l *lab) error {
	const each = 10
	reference, err := l.filled(ctx, "namespaces_reference", backlog{to: 100, rows: l.size.backlogs[0]})
	if err != nil {
		return err
	}
	db, err := l.outbox(ctx, "namespaces")
	if err != nil {
		return err
	}
	from := 0
	for i, to := range l.size.namespaces {
		rows := max((to-from)*each, l.size.backlogs[0])
		if _, err := db.write(ctx, backlog{from: from, to: to, rows: rows}); err != nil {
			return err
		}
		from = to
		if err := l.settleDown(ctx, db); err != nil {
			return err
		}
		for _, batch := range batches() {
			f, err := l.flat(ctx, db, reference, flatCase{
				name: count(to) + " active namespaces", against: "100 active namespaces", batch: batch,
			})
			if err != nil {
				return err
			}
			if i == len(l.size.namespaces)-1 {
				l.report.atMost("flatness", fmt.Sprintf("claim of %s, %s active namespaces against 100", count(batch), count(to)), f.Ratio, 1.5)
			}
		}
	}
	return l.dropAll(ctx, db, reference)
}

// shape is something in the way of the messages that are due.
type shape struct {
	name   string
	in     backlog // the way
	also   string
	shards []int32
	some   bool // so many are in the way that a claim may end before its batch is full
	goal   bool
}

// shapes are what hundreds of thousands of messages, crowd many, can be in the way with.
func shapes(crowd int) []shape {
	const many = 10_000
	half := []int32{0, 1, 2, 3, 4, 5, 6, 7} // of 16 shards
	dead := []int32{8, 9, 10, 11, 12, 13, 14, 15}
	return []shape{
		{name: "one namespace holds most of the backlog", in: backlog{group: "big", rows: crowd}},
		{name: "others' shards hold %s older ones", in: backlog{to: due, rows: crowd, dueIn: -time.Hour, shards: dead}, shards: half, goal: true},
		{name: "%s are due tomorrow", in: backlog{to: due, rows: crowd, dueIn: 24 * time.Hour}, goal: true},
		{
			name: "10,000 namespaces at their ceiling hold %s", in: backlog{group: "full", to: many, rows: crowd}, goal: true, some: true,
			also: `insert into outbox.namespace (namespace, quota) select distinct p.namespace, 1 from outbox.pending as p;
				insert into outbox.message (namespace, task_queue, dispatch_key, content_type, headers, payload)
				select n.namespace, 'route-0', 'held/' || n.namespace, 'text/plain', '{}', '' from outbox.namespace as n;
				insert into outbox.claimed (id, namespace, task_queue, shard, visible_after, attempt, payload_bytes, claim_token, claimed_by, claimed_at, lease_until)
				select m.id, m.namespace, m.task_queue, outbox.shard_of(m.dispatch_key, 16), now(), 1, 0, nextval('outbox.claim_token'), 'another', now(), now() + interval '1 day'
				from outbox.message as m where starts_with(m.dispatch_key, 'held/')`,
		},
		{
			name: "10,000 paused namespaces hold %s", in: backlog{group: "paused", to: many, rows: crowd}, goal: true, some: true,
			also: `insert into outbox.pause (namespace, task_queue, since, by) select distinct p.namespace, null, now(), 'bench' from outbox.pending as p`,
		},
	}
}

// hostileShapes: what is in the way of 32 namespaces with messages that are due.
func hostileShapes(ctx context.Context, l *lab) error {
	base := backlog{to: due, rows: l.size.base}
	reference, err := l.filled(ctx, "hostile_reference", base)
	if err != nil {
		return err
	}
	db, err := l.outbox(ctx, "hostile")
	if err != nil {
		return err
	}
	for _, c := range shapes(l.size.crowd) {
		if err := db.empty(ctx); err != nil {
			return err
		}
		written, err := db.write(ctx, c.in)
		if err != nil {
			return err
		}
		if err := db.exec(ctx, c.also); err != nil {
			return err
		}
		if _, err := db.write(ctx, base); err != nil {
			return err
		}
		if err := l.settleDown(ctx, db); err != nil {
			return err
		}
		name := c.name
		if c.goal {
			name = fmt.Sprintf(c.name, count(written/1000*1000))
		}
		for _, batch := range batches() {
			f, err := l.flat(ctx, db, reference, flatCase{name: name, against: "nothing in the way", batch: batch, shards: c.shards, some: c.some})
			if err != nil {
				return err
			}
			if c.goal {
				l.report.atMost("flatness", fmt.Sprintf("claim of %s, %s", count(batch), name), f.Ratio, 1.5)
			}
		}
	}
	return l.dropAll(ctx, db, reference)
}

// statistics: what the planner knows about the tables, from nothing to all.
func statistics(ctx context.Context, l *lab) error {
	base := backlog{to: due, rows: l.size.base}
	reference, err := l.filled(ctx, "statistics_reference", base)
	if err != nil {
		return err
	}
	for i, c := range []struct{ name, before, after string }{
		{"statistics empty", "", ""},
		{"statistics of before the load", "analyze", ""},
		{"statistics fresh", "", "analyze"},
	} {
		db, err := l.outbox(ctx, fmt.Sprint("statistics_", i))
		if err != nil {
			return err
		}
		for _, table := range []string{"message", "pending", "claimed", "settled"} {
			if err := db.exec(ctx, "alter table outbox."+table+" set (autovacuum_enabled = off)"); err != nil {
				return err
			}
		}
		if err := db.exec(ctx, c.before); err != nil {
			return err
		}
		if _, err := db.write(ctx, base); err != nil {
			return err
		}
		if err := db.exec(ctx, c.after); err != nil {
			return err
		}
		if err := l.checkpoint(ctx); err != nil {
			return err
		}
		for _, batch := range batches() {
			if _, err := l.flat(ctx, db, reference, flatCase{name: c.name, against: "statistics up to date", batch: batch}); err != nil {
				return err
			}
		}
		if err := l.drop(ctx, db); err != nil {
			return err
		}
	}
	return l.drop(ctx, reference)
}

// callsOnAConnection: the first call plans, the sixth could plan otherwise, and nothing
// piles up in a session that lives long.
func callsOnAConnection(ctx context.Context, l *lab) error {
	const batch = 100
	db, err := l.filled(ctx, "connection", backlog{to: due, rows: l.size.base})
	if err != nil {
		return err
	}
	c, err := newClaimer(ctx, db, fair)
	if err != nil {
		return err
	}
	defer c.close()
	steady := func(ctx context.Context) error { return c.turn(ctx, batch) }
	var first, sixth []float64
	fresh := func(ctx context.Context) error {
		n, err := newClaimer(ctx, db, fair)
		if err != nil {
			return err
		}
		defer n.close()
		for range 6 {
			if err := n.turn(ctx, batch); err != nil {
				return err
			}
		}
		first, sixth = append(first, n.took[0]), append(sixth, n.took[5])
		return n.settle(ctx, 0)
	}
	if err := interleave(ctx, l.size.calls-l.size.rounds, steady); err != nil {
		return err
	}
	c.took = nil
	if err := interleave(ctx, l.size.rounds, steady, fresh); err != nil {
		return err
	}
	if err := c.settle(ctx, 0); err != nil {
		return err
	}
	late := summarize(c.took)
	last := fmt.Sprintf("calls up to the %sth on a connection", count(l.size.calls))
	for _, f := range []figure{
		{Case: last, summary: late},
		figure{Case: "1st call on a connection", summary: summarize(first)}.against(last, late),
		figure{Case: "6th call on a connection", summary: summarize(sixth)}.against(last, late),
	} {
		f.Experiment, f.Contender, f.Unit, f.Case = "flatness", fair, "ms", "claim of 100, "+f.Case
		l.report.add(f)
	}
	return l.dropAll(ctx, db)
}

// flatCase is one case of the flatness experiment.
type flatCase struct {
	name, against string
	batch         int
	shards        []int32
	some          bool
}

// flat times a claim from db in turn with the same claim from reference.
func (l *lab) flat(ctx context.Context, db, reference *database, c flatCase) (figure, error) {
	var claimers []*claimer
	for _, d := range []*database{db, reference} {
		cl, err := newClaimer(ctx, d, fair)
		if err != nil {
			return figure{}, err
		}
		defer cl.close()
		if c.shards != nil {
			cl.shards = c.shards
		}
		claimers = append(claimers, cl)
	}
	claimers[0].some = c.some
	rounds := l.size.rounds
	if c.batch > 100 { // these take longest, and there are many cases
		rounds /= 2
	}
	sums, err := l.takeTurns(ctx, rounds, c.batch, claimers...)
	if err != nil {
		return figure{}, fmt.Errorf("%s: %w", c.name, err)
	}
	if err := db.verify(ctx); err != nil {
		return figure{}, fmt.Errorf("%s: %w", c.name, err)
	}
	f := figure{
		Experiment: "flatness", Case: fmt.Sprintf("claim of %s, %s", count(c.batch), c.name), Contender: fair, Unit: "ms", summary: sums[0],
	}.against(c.against, sums[1])
	if brought := summarize(claimers[0].brought); brought.Min < float64(c.batch) {
		f.Note = fmt.Sprintf("claim of %s, %s: a claim ended where it had visited as many namespaces as it may; it brought %s rows in the median, at least %s",
			count(c.batch), c.name, number(brought.Median), number(brought.Min))
	}
	l.report.add(f)
	return f, nil
}

// filled makes an outbox with a backlog.
func (l *lab) filled(ctx context.Context, name string, b backlog) (*database, error) {
	db, err := l.outbox(ctx, name)
	if err != nil {
		return nil, err
	}
	if _, err := db.write(ctx, b); err != nil {
		return nil, err
	}
	return db, l.settleDown(ctx, db)
}

// dropAll checks and drops outboxes.
func (l *lab) dropAll(ctx context.Context, dbs ...*database) error {
	for _, db := range dbs {
		if err := db.verify(ctx); err != nil {
			return err
		}
		if err := l.drop(ctx, db); err != nil {
			return err
		}
	}
	return nil
}
