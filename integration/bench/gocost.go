package main

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/budget"
	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/watermark"
)

// goCost measures what the Go side costs: the budget and the watermarks, the sweep loop,
// and the memory of the process.
func goCost(ctx context.Context, l *lab) error {
	if err := l.microBenchmarks(); err != nil {
		return err
	}
	if err := l.sweepAllocations(ctx); err != nil {
		return fmt.Errorf("the sweep loop: %w", err)
	}
	if err := l.residentMemory(ctx); err != nil {
		return fmt.Errorf("sweep run: %w", err)
	}
	return nil
}

func (l *lab) microBenchmarks() error {
	params, err := watermark.ParamsFromBudget(64<<20, 0.8, 0.5, time.Second)
	if err != nil {
		return err
	}
	control, err := watermark.New(params, time.Now)
	if err != nil {
		return err
	}
	var inflight budget.Inflight
	for _, m := range []struct {
		name string
		call func()
	}{
		{"budget.Add and Sub", func() { inflight.Add(500); inflight.Sub(500) }},
		{"budget.Usage", func() { inflight.Usage() }},
		{"watermark.Tick while claiming", func() { control.Tick(1<<20, true) }},
		{"watermark.Tick, a pause and a resume", func() { control.Tick(64<<20, true); control.Tick(0, true) }},
	} {
		result := testing.Benchmark(func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m.call()
			}
		})
		if result.N == 0 {
			return fmt.Errorf("%s: the benchmark failed", m.name)
		}
		ns := float64(result.T.Nanoseconds()) / float64(result.N)
		allocations := float64(result.AllocsPerOp())
		l.report.add(goFigure(m.name, "ns", ns), goFigure(m.name, "allocations", allocations))
		l.report.Goals = append(l.report.Goals, goal{
			"go", m.name, "a few ns (at most 100), 0 allocations", number(ns) + " ns, " + number(allocations) + " allocations",
			ns <= 100 && allocations == 0,
		})
	}
	if used := inflight.Usage(); used != 0 {
		return fmt.Errorf("the budget holds %d bytes after balanced calls", used)
	}
	return nil
}

func goFigure(name, unit string, value float64) figure {
	return figure{Experiment: "go", Case: name, Contender: "fairclaim", Unit: unit, summary: summarize([]float64{value})}
}

// sweepAllocations drains a backlog with a sweeper in this process and counts what it
// allocates: claim, hand-off, settle, and pgx below them.
func (l *lab) sweepAllocations(ctx context.Context) error {
	q := &outboxQueue{quota: "1000000000", config: driver.Config{Tick: 20 * time.Millisecond}}
	if err := q.setUp(ctx, l); err != nil {
		return err
	}
	n := l.size.messages
	if _, err := q.db.write(ctx, backlog{to: jobTenants, rows: n, payload: jobBytes}); err != nil {
		return err
	}
	var before, after runtime.MemStats
	var delivered atomic.Int64
	runtime.GC()
	runtime.ReadMemStats(&before)
	c, err := q.work(ctx, 1, func([]byte, int64) { delivered.Add(1) })
	if err != nil {
		return err
	}
	err = waitFor(ctx, func() bool { return c.settled() >= int64(n) })
	runtime.ReadMemStats(&after)
	if stopErr := c.stop(ctx); err == nil {
		err = stopErr
	}
	if err != nil {
		return err
	}
	if delivered.Load() != int64(n) {
		return fmt.Errorf("delivered %d of %d messages", delivered.Load(), n)
	}
	l.report.add(
		goFigure("sweep loop and pgx, a message of 1 kB, batch of 100", "allocations", float64(after.Mallocs-before.Mallocs)/float64(n)),
		goFigure("sweep loop and pgx, a message of 1 kB, batch of 100", "bytes allocated", float64(after.TotalAlloc-before.TotalAlloc)/float64(n)),
	)
	return l.dropAll(ctx, q.db)
}
