package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// besidePrune measures the rate at which messages pass through where producers enqueue as fast as they are settled:
// without prune and with, in turn, each in an outbox of its own. Only where prune deletes as many as are settled meanwhile
// is that the rate of a steady state: so it is a goal, too. The warm-up leaves as much that can be pruned as each pass does.
func (l *lab) besidePrune(ctx context.Context) error {
	ways := []struct {
		name   string
		prunes time.Duration
	}{{"without prune", -1}, {"with prune", time.Second}}
	var flows []*flow
	var steps []func(context.Context) error
	passed := make([][]passing, len(ways))
	for i, way := range ways {
		f, err := l.openFlow(ctx, fmt.Sprintf("steady_%d", i), l.size.passTime/6, way.prunes)
		if err != nil {
			return err
		}
		flows = append(flows, f)
		steps = append(steps, func(ctx context.Context) error {
			p, err := l.pass(ctx, f)
			passed[i] = append(passed[i], p)
			l.say("%s: %s messages a second, %s bytes of WAL each; %s pruned for each", way.name, number(p.rate), number(p.wal), number(p.pruned))
			return err
		})
	}
	if err := interleave(ctx, 1+l.size.passes, steps...); err != nil {
		return err
	}
	for i, way := range ways {
		of := func(i int, what func(passing) float64) summary {
			var values []float64
			for _, p := range passed[i][1:] { // the first pass is to warm up
				values = append(values, what(p))
			}
			return summarize(values)
		}
		rate := func(p passing) float64 { return p.rate }
		figures := []figure{
			{Case: "top rate, " + way.name, Unit: "messages/s", summary: of(i, rate)},
			{Case: "WAL, " + way.name, Unit: "bytes/message", summary: of(i, func(p passing) float64 { return p.wal })},
		}
		if i > 0 {
			figures[0] = figures[0].against(ways[0].name, of(0, rate))
			l.report.atLeast("steady", "top rate with prune against without", figures[0].Ratio, 0.85)
			l.report.atLeast("steady", "pruned for each message settled, at that rate", of(i, func(p passing) float64 { return p.pruned }).Median, 0.9)
		}
		for _, f := range figures {
			f.Experiment, f.Contender = "steady", fair
			l.report.add(f)
		}
		if err := flows[i].q.db.verify(ctx); err != nil {
			return err
		}
		if err := l.drop(ctx, flows[i].q.db); err != nil {
			return err
		}
	}
	return nil
}

// passing is how messages passed through for a while.
type passing struct {
	rate   float64 // messages settled a second
	wal    float64 // bytes a message
	pruned float64 // messages, for each that was settled
}

func (l *lab) pass(ctx context.Context, f *flow) (p passing, err error) {
	if err := l.checkpoint(ctx); err != nil {
		return p, err
	}
	from, err := ask[string](ctx, l.admin, `select pg_current_wal_lsn()::text`)
	if err != nil {
		return p, err
	}
	before, err := f.q.done(ctx)
	if err != nil {
		return p, err
	}
	if err := f.begin(ctx); err != nil {
		return p, err
	}
	start := time.Now()
	if err := f.produce(ctx, 0, l.size.passTime); err != nil {
		return p, errors.Join(err, f.crew.stop(ctx))
	}
	p.rate = float64(f.crew.settled()) / time.Since(start).Seconds()
	if err := f.end(ctx); err != nil {
		return p, err
	}
	after, err := f.q.done(ctx)
	if err != nil {
		return p, err
	}
	sent := float64(f.sent.Load())
	p.pruned = (float64(before) + sent - float64(after)) / sent
	p.wal, err = ask[float64](ctx, l.admin, `select pg_wal_lsn_diff(pg_current_wal_lsn(), $1::text::pg_lsn)::float8 / $2`, from, sent)
	return p, err
}
