package main

import (
	"context"
	"fmt"
)

// batches are the claims that are timed.
func batches() []int { return []int{100, 1000} }

// claimLatency times claim_fair beside the blind claim on the same tables, while the
// number of namespaces grows.
func claimLatency(ctx context.Context, l *lab) error {
	db, err := l.outbox(ctx, "latency")
	if err != nil {
		return err
	}
	if err := db.exec(ctx, blindIndex); err != nil {
		return err
	}
	rows := l.size.latencyRows
	for _, c := range []struct {
		name  string
		grow  backlog
		goals [2]float64 // for each batch; 0: none
	}{
		{"1 namespace", backlog{rows: rows}, [2]float64{}},
		{"32 namespaces of 1 route", backlog{from: 1, to: 32, rows: rows}, [2]float64{1.5, 1.3}},
		{"32 namespaces of 3 routes", backlog{to: 32, route: 1, routes: 2, rows: rows}, [2]float64{2, 1.6}},
		{"1,000 namespaces", backlog{from: 32, to: 1000, rows: rows}, [2]float64{2, 2}},
		{"10,000 namespaces", backlog{from: 1000, to: 10_000, rows: l.size.manyRows}, [2]float64{2, 2}},
	} {
		if _, err := db.write(ctx, c.grow); err != nil {
			return err
		}
		if err := l.settleDown(ctx, db); err != nil {
			return err
		}
		for i, batch := range batches() {
			sums, err := l.beside(ctx, db, batch)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			name := fmt.Sprintf("claim of %s, %s", count(batch), c.name)
			f := figure{Experiment: "latency", Case: name, Contender: fair, Unit: "ms", summary: sums[0]}.against(blind, sums[1])
			l.report.add(f, figure{Experiment: "latency", Case: name, Contender: blind, Unit: "ms", summary: sums[1]})
			if c.goals[i] > 0 {
				l.report.atMost("latency", name+", against the blind one", f.Ratio, c.goals[i])
			}
		}
		if err := db.verify(ctx); err != nil {
			return err
		}
	}
	return l.drop(ctx, db)
}

// beside times claim_fair and the blind claim in turn, over connections that are new.
func (l *lab) beside(ctx context.Context, db *database, batch int) ([]summary, error) {
	f, err := newClaimer(ctx, db, fair)
	if err != nil {
		return nil, err
	}
	defer f.close()
	b, err := newClaimer(ctx, db, blind)
	if err != nil {
		return nil, err
	}
	defer b.close()
	return l.takeTurns(ctx, l.size.rounds, batch, f, b)
}

// settleDown ends what a load leaves to be done later.
func (l *lab) settleDown(ctx context.Context, db *database) error {
	if err := db.tidy(ctx); err != nil {
		return err
	}
	return l.checkpoint(ctx)
}

// count writes a number of rows with thousands set apart.
func count(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", count(n/1000), n%1000)
}
