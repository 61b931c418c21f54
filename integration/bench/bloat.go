package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// bloat: a transaction stays open while messages are claimed and settled, so that no dead
// row can be removed. How far does that slow a claim down, and how fast is it itself
// again after? Each contender has its own outbox, whose dead rows are its own.
func bloat(ctx context.Context, l *lab) error {
	var ways []*bloated
	for _, contender := range []string{fair, blind} {
		db, err := l.filled(ctx, "bloat_"+contender, backlog{to: due, rows: l.size.base})
		if err != nil {
			return err
		}
		if contender == blind {
			if err := db.exec(ctx, blindIndex); err != nil {
				return err
			}
		}
		c, err := newClaimer(ctx, db, contender)
		if err != nil {
			return err
		}
		defer c.close()
		ways = append(ways, &bloated{claimer: c})
	}
	if err := l.measureAll(ctx, ways, "no cycles yet", false); err != nil {
		return err
	}
	for _, w := range ways {
		unpin, err := w.db.pin(ctx)
		if err != nil {
			return err
		}
		defer unpin()
		w.unpin = unpin
	}
	for cycles := l.size.cycleStep; cycles <= l.size.cycles; cycles += l.size.cycleStep {
		var steps []func(context.Context) error
		for _, w := range ways {
			steps = append(steps, func(ctx context.Context) error { return w.turn(ctx, bloatBatch) })
		}
		if err := interleave(ctx, l.size.cycleStep/bloatBatch, steps...); err != nil {
			return err
		}
		if err := l.measureAll(ctx, ways, fmt.Sprintf("after %s cycles, dead rows pinned", count(cycles)), cycles == l.size.cycles); err != nil {
			return err
		}
	}
	var worse [2]float64
	for i, w := range ways {
		worse[i] = w.last / w.first
		w.unpin()
	}
	l.report.Goals = append(l.report.Goals, goal{
		"bloat", fmt.Sprintf("slow-down over %s pinned cycles", count(l.size.cycles)), "no more than the blind claim's " + number(worse[1]) + " x",
		number(worse[0]) + " x", worse[0] <= worse[1],
	})
	return l.recover(ctx, ways)
}

// pin opens a transaction that keeps dead rows from being removed, until unpin ends it.
func (db *database) pin(ctx context.Context) (unpin func(), err error) {
	tx, err := db.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return nil, err
	}
	unpin = func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }
	if _, err := tx.Exec(ctx, `select count(*) from outbox.config`); err != nil { // takes the snapshot
		unpin()
		return nil, err
	}
	return unpin, nil
}

// bloatBatch is how many messages are claimed at once: a cycle is one message's.
const bloatBatch = 100

// nearly is how many times longer a claim may take to count as being fast again.
const nearly = 1.5

// bloated is a contender and how it fares.
type bloated struct {
	*claimer
	first, last float64 // ms, medians
	unpin       func()
}

// measureAll reports the claims since the last call; without any, it makes some first.
func (l *lab) measureAll(ctx context.Context, ways []*bloated, name string, sizes bool) error {
	if len(ways[0].took) == 0 {
		if _, err := l.takeTurns(ctx, l.size.rounds, bloatBatch, ways[0].claimer, ways[1].claimer); err != nil {
			return err
		}
	}
	mine, other := summarize(ways[0].took), summarize(ways[1].took)
	l.say("%s: %s ms, blind %s ms", name, number(mine.Median), number(other.Median))
	for i, w := range ways {
		f := figure{Experiment: "bloat", Case: "claim of 100, " + name, Contender: w.node, Unit: "ms", summary: summarize(w.took)}
		if i == 0 {
			f = f.against(blind, other)
		}
		w.took = nil
		if w.first == 0 {
			w.first = f.Median
		}
		w.last = f.Median
		l.report.add(f)
		if sizes {
			if err := l.reportDead(ctx, w, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// reportDead reports the dead rows and sizes of the tables that claims write.
func (l *lab) reportDead(ctx context.Context, w *bloated, name string) error {
	rows, err := w.db.pool.Query(ctx, `select c.relname, pg_relation_size(c.oid) / 1048576.0, pg_indexes_size(c.oid) / 1048576.0, s.n_dead_tup::float8
		from pg_class as c join pg_stat_user_tables as s on s.relid = c.oid
		where c.relnamespace = 'outbox'::regnamespace and c.relname in ('pending', 'claimed') order by 1 desc`)
	if err != nil {
		return err
	}
	var table string
	var heap, indexes, dead float64
	_, err = pgx.ForEachRow(rows, []any{&table, &heap, &indexes, &dead}, func() error {
		for _, f := range []figure{
			{Case: "dead rows of " + table + ", " + name, Unit: "rows", summary: summarize([]float64{dead})},
			{Case: "size of " + table + ", " + name, Unit: "MiB", summary: summarize([]float64{heap})},
			{Case: "size of the indexes of " + table + ", " + name, Unit: "MiB", summary: summarize([]float64{indexes})},
		} {
			f.Experiment, f.Contender = "bloat", w.node
			l.report.add(f)
		}
		return nil
	})
	return err
}

// recover reports how claims fare after the open transaction has ended: how many it takes
// until one is nearly as fast as at first, and after a vacuum.
func (l *lab) recover(ctx context.Context, ways []*bloated) error {
	for _, w := range ways {
		w.took = nil
	}
	turn := func(w *bloated) func(context.Context) error {
		return func(ctx context.Context) error { return w.turn(ctx, bloatBatch) }
	}
	if err := interleave(ctx, l.size.rounds, turn(ways[0]), turn(ways[1])); err != nil {
		return err
	}
	for _, w := range ways {
		f := figure{Experiment: "bloat", Case: fmt.Sprintf("claims until one takes at most %v x as long as at first", nearly), Contender: w.node, Unit: "claims"}
		n := 1 + slices.IndexFunc(w.took, func(ms float64) bool { return ms <= nearly*w.first })
		if n == 0 {
			n, f.Over = len(w.took), overBoth
		}
		f.summary = summarize([]float64{float64(n)})
		l.report.add(f)
	}
	if err := l.measureAll(ctx, ways, "right after the open transaction ended", false); err != nil {
		return err
	}
	for _, w := range ways {
		start := time.Now()
		if err := w.db.exec(ctx, `vacuum (analyze) outbox.pending`, `vacuum (analyze) outbox.claimed`); err != nil {
			return err
		}
		l.report.add(figure{
			Experiment: "bloat", Case: "vacuum of pending and claimed", Contender: w.node, Unit: "ms",
			summary: summarize([]float64{milliseconds(time.Since(start))}),
		})
	}
	if err := l.measureAll(ctx, ways, "after that vacuum", true); err != nil {
		return err
	}
	for _, w := range ways {
		if err := w.settle(ctx, 0); err != nil {
			return err
		}
		w.close()
		if err := l.dropAll(ctx, w.db); err != nil {
			return err
		}
	}
	return nil
}
