package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	jobBytes     = 1000
	jobTenants   = 32
	producers    = 2
	enqueueBatch = 1000
)

// throughput measures messages from enqueue to settled: two producers enqueue while the
// nodes claim, deliver to nowhere, and settle.
func throughput(ctx context.Context, l *lab) error {
	queues, err := l.openQueues(ctx, "throughput", throughputOutbox())
	if err != nil {
		return err
	}
	passed := map[crewOf][]passage{}
	settled := map[string]int{}
	for _, nodes := range []int{1, 4} {
		var steps []func(context.Context) error
		for _, q := range queues {
			steps = append(steps, func(ctx context.Context) error {
				p, err := l.passThrough(ctx, q, nodes, settled[q.name()])
				if err != nil {
					return fmt.Errorf("%s, %s: %w", q.name(), nodeCount(nodes), err)
				}
				settled[q.name()] += l.size.messages
				passed[crewOf{q.name(), nodes}] = append(passed[crewOf{q.name(), nodes}], p)
				l.say("%s, %s: %s messages a second, %s bytes of WAL each; CPU time each: PostgreSQL %s us, producers and nodes %s us",
					q.name(), nodeCount(nodes), number(p.rate), number(p.wal), number(p.server), number(p.own))
				return nil
			})
		}
		if err := interleave(ctx, l.size.passes, steps...); err != nil {
			return err
		}
		mine := passed[crewOf{queues[0].name(), nodes}]
		for _, q := range queues {
			l.reportPasses(q.name(), nodes, passed[crewOf{q.name(), nodes}], queues[0].name(), mine)
		}
	}
	return l.closeQueues(ctx, queues)
}

// crewOf tells apart what is measured.
type crewOf struct {
	queue string
	nodes int
}

// reportPasses adds a contender's figures, and what they mean for those of mine.
func (l *lab) reportPasses(contender string, nodes int, passes []passage, mine string, ours []passage) {
	column := func(passes []passage, value func(passage) float64) summary {
		var values []float64
		for _, p := range passes {
			values = append(values, value(p))
		}
		return summarize(values)
	}
	for _, f := range []struct {
		name, unit, note string
		value            func(passage) float64
		goal             string
		reached          func(ours, theirs float64) bool
	}{
		{
			name: "enqueue to settled", unit: "messages/s", value: func(p passage) float64 { return p.rate },
			goal: "more than", reached: func(ours, theirs float64) bool { return ours > theirs },
		},
		{name: "of that, enqueued by two producers meanwhile", unit: "messages/s", value: func(p passage) float64 { return p.input }},
		{
			name: "WAL, enqueue to settled", unit: "bytes/message", value: func(p passage) float64 { return p.wal },
			note: "WAL: the difference of pg_current_wal_lsn(), all that the server wrote; full_page_writes on, a checkpoint before each pass",
			goal: "no more than", reached: func(ours, theirs float64) bool { return ours <= theirs },
		},
		{name: "CPU time of PostgreSQL", unit: "us/message", value: func(p passage) float64 { return p.server }},
		{name: "CPU time of producers and nodes, in Go", unit: "us/message", value: func(p passage) float64 { return p.own }},
	} {
		theirs := column(passes, f.value)
		if theirs.Median == 0 { // not known
			continue
		}
		line := figure{
			Experiment: "throughput", Case: f.name + ", " + nodeCount(nodes), Contender: contender, Unit: f.unit, summary: theirs, Note: f.note,
		}
		if contender != mine {
			own := column(ours, f.value)
			line = line.against(mine, own)
			if f.goal != "" {
				l.report.Goals = append(l.report.Goals, goal{
					"throughput", line.Case, f.goal + " " + contender + "'s " + number(theirs.Median) + " " + f.unit, number(own.Median), f.reached(own.Median, theirs.Median),
				})
			}
		}
		l.report.add(line)
	}
}

// passage is what one pass came to.
type passage struct {
	rate  float64 // messages a second, from the first enqueue to the last settle
	input float64 // messages a second, to the last enqueue
	wal   float64 // bytes a message

	server, own float64 // microseconds of CPU time a message: of PostgreSQL, and of producers and nodes; 0: not known
}

// passThrough sends messages through a queue in which so many are settled already.
func (l *lab) passThrough(ctx context.Context, q queue, nodes, before int) (passage, error) {
	if err := q.base().exec(ctx, "vacuum (analyze)"); err != nil {
		return passage{}, err
	}
	if err := l.checkpoint(ctx); err != nil {
		return passage{}, err
	}
	n := l.size.messages
	batches := make([][]job, 0, n/enqueueBatch+1)
	for from := 0; from < n; from += enqueueBatch {
		jobs := make([]job, min(enqueueBatch, n-from))
		for i := range jobs {
			jobs[i] = newJob(fmt.Sprintf("tenant-%02d", (from+i)%jobTenants), before+from+i, jobBytes)
		}
		batches = append(batches, jobs)
	}
	from, err := ask[string](ctx, l.admin, `select pg_current_wal_lsn()::text`)
	if err != nil {
		return passage{}, err
	}
	var delivered atomic.Int64
	c, err := q.work(ctx, nodes, func([]byte, int64) { delivered.Add(1) })
	if err != nil {
		return passage{}, err
	}
	cpuBefore, err := l.cpuTime(ctx)
	if err != nil {
		return passage{}, errors.Join(err, c.stop(ctx))
	}
	start := time.Now()
	g, inner := errgroup.WithContext(ctx)
	next := make(chan []job, len(batches))
	for _, b := range batches {
		next <- b
	}
	close(next)
	for range producers {
		g.Go(func() error {
			for b := range next {
				if err := q.enqueue(inner, b); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = g.Wait()
	input := time.Since(start)
	if err == nil {
		err = waitFor(ctx, func() bool { return c.settled() >= int64(n) })
	}
	took := time.Since(start)
	spent, cpuErr := l.cpuTime(ctx)
	err = errors.Join(err, cpuErr)
	if stopErr := c.stop(ctx); err == nil {
		err = stopErr
	}
	if err != nil {
		return passage{}, err
	}
	wal, err := ask[float64](ctx, l.admin, `select pg_wal_lsn_diff(pg_current_wal_lsn(), $1::text::pg_lsn)::float8`, from)
	if err != nil {
		return passage{}, err
	}
	done, err := q.done(ctx)
	if err == nil && (done != before+n || delivered.Load() != int64(n) || c.settled() != int64(n)) {
		err = fmt.Errorf("of %d messages %d were delivered, %d reported as settled, %d are", n, delivered.Load(), c.settled(), done-before)
	}
	p := passage{rate: float64(n) / took.Seconds(), input: float64(n) / input.Seconds(), wal: wal / float64(n)}
	if spent = spent.since(cpuBefore); spent.known {
		p.server, p.own = float64(spent.server.Nanoseconds())/1000/float64(n), float64(spent.own.Nanoseconds())/1000/float64(n)
	}
	return p, err
}

func nodeCount(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

// patience is how long the bench waits for what must come.
const patience = 5 * time.Minute

func waitFor(ctx context.Context, done func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("waited for %v in vain", patience))
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}
