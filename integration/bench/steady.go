package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// steady is an outbox in service: producers enqueue, a node claims, delivers to nowhere, settles and
// prunes, and autovacuum comes by. First the rates that it can keep up, then a long run below the
// top one, in which nothing may grow.
func steady(ctx context.Context, l *lab) error {
	top, err := l.rampUp(ctx)
	if err != nil {
		return fmt.Errorf("ramp: %w", err)
	}
	if err := l.besidePrune(ctx); err != nil {
		return fmt.Errorf("beside prune: %w", err)
	}
	if err := l.runLong(ctx, steadyShare*top); err != nil {
		return fmt.Errorf("long run: %w", err)
	}
	return nil
}

const (
	steadyShare  = 0.8      // of the top rate, in the long run
	steadySample = 20       // of so many messages one is asked how long it was under way
	steadyWaits  = 20_000   // messages that may wait where producers enqueue as fast as they can
	steadyPaused = "paused" // the group of the tenant whose backlog stands beside
)

// flow is a stream of messages through an outbox with one node.
type flow struct {
	q    *outboxQueue
	crew crew
	next atomic.Int64 // the number of the last message
	sent atomic.Int64 // messages enqueued since it began

	mu        sync.Mutex
	calls     map[string][]float64 // ms, since they were last taken
	delivered []float64            // ms from enqueue, likewise
}

// openFlow makes an outbox that keeps what is settled for so long; prunes is config's PruneEvery.
func (l *lab) openFlow(ctx context.Context, name string, keep, prunes time.Duration) (*flow, error) {
	f := &flow{q: throughputOutbox(), calls: map[string][]float64{}}
	f.q.config.PruneEvery = prunes
	f.q.config.Observer = f
	var err error
	if f.q.db, err = l.outbox(ctx, name); err != nil {
		return nil, err
	}
	return f, f.q.db.exec(ctx, fmt.Sprintf(`select outbox.configure('{"retention": "%d ms"}')`, keep.Milliseconds()))
}

func (f *flow) Message(*driver.Delivery, node.Event)       {}
func (f *flow) Delivered(*driver.Delivery, node.Delivered) {}
func (f *flow) Turned(node.State)                          {}
func (f *flow) Surveyed(*node.Survey)                      {}
func (f *flow) Called(c node.Call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[c.Name] = append(f.calls[c.Name], milliseconds(c.Took))
}

// take returns what was noted since the last call.
func (f *flow) take() (calls map[string][]float64, delivered []float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls, delivered = f.calls, f.delivered
	f.calls, f.delivered = map[string][]float64{}, nil
	return calls, delivered
}

// begin starts the node, end ends it once all that was sent is settled.
func (f *flow) begin(ctx context.Context) (err error) {
	f.sent.Store(0)
	var n atomic.Int64
	f.crew, err = f.q.work(ctx, 1, func(payload []byte, _ int64) {
		if n.Add(1)%steadySample != 0 {
			return
		}
		var j job
		if err := json.Unmarshal(payload, &j); err != nil {
			panic(fmt.Sprintf("delivered what nobody sent: %s", payload))
		}
		waited := milliseconds(time.Since(time.Unix(0, j.Sent)))
		f.mu.Lock()
		defer f.mu.Unlock()
		f.delivered = append(f.delivered, waited)
	})
	return err
}

func (f *flow) end(ctx context.Context) error {
	return errors.Join(f.drain(ctx), f.crew.stop(ctx))
}

func (f *flow) drain(ctx context.Context) error {
	return waitFor(ctx, func() bool { return f.crew.settled() >= f.sent.Load() })
}

// waiting is how many messages are enqueued and not settled.
func (f *flow) waiting() int64 { return f.sent.Load() - f.crew.settled() }

// produce has the producers enqueue for so long: so many messages a second, or, where rate is 0, as
// many as are settled.
func (f *flow) produce(ctx context.Context, rate float64, length time.Duration) error {
	g, inner := errgroup.WithContext(ctx)
	start := time.Now()
	batch := enqueueBatch
	if rate > 0 {
		batch = min(max(int(rate/50), 1), enqueueBatch)
	}
	for p := range producers {
		g.Go(func() error {
			for i := 0; time.Since(start) < length; {
				due := time.Duration(0)
				if rate > 0 {
					due = time.Duration(float64((i*producers+p)*batch) / rate * float64(time.Second))
				}
				if wait := due - time.Since(start); wait > 0 || rate == 0 && f.waiting() > steadyWaits {
					if err := sleep(inner, max(wait, time.Millisecond)); err != nil {
						return err
					}
					continue
				}
				jobs := make([]job, batch)
				for j := range jobs {
					n := int(f.next.Add(1))
					jobs[j] = newJob(fmt.Sprintf("tenant-%02d", n%jobTenants), n, jobBytes)
				}
				if err := f.q.enqueue(inner, jobs); err != nil {
					return err
				}
				f.sent.Add(int64(batch))
				i++
			}
			return nil
		})
	}
	return g.Wait()
}

// rampUp raises the rate by a quarter until the node does not keep up any more, and then looks between
// the last two rates. It returns the highest that was kept up.
func (l *lab) rampUp(ctx context.Context) (float64, error) {
	f, err := l.openFlow(ctx, "ramp", l.size.rampStep/4, time.Second)
	if err != nil {
		return 0, err
	}
	if err := f.begin(ctx); err != nil {
		return 0, err
	}
	best, over := 0.0, 0.0
	for rate := l.size.rampFrom; over == 0 || over > 1.08*best; {
		kept, err := f.keepsUp(ctx, rate, l.size.rampStep)
		if err != nil {
			return 0, err
		}
		l.say("%s messages a second are %s", number(rate), map[bool]string{true: "kept up", false: "too many"}[kept])
		if kept {
			best = rate
		} else {
			over = rate
		}
		switch {
		case over == 0:
			rate *= 1.25
		case best == 0:
			rate /= 2
		default:
			rate = (best + over) / 2
		}
	}
	if err := f.end(ctx); err != nil {
		return 0, err
	}
	l.report.add(figure{
		Experiment: "steady", Case: "highest rate that is kept up", Contender: fair, Unit: "messages/s", summary: summarize([]float64{best}),
		Note: fmt.Sprintf("Kept up: in %v at that rate all is enqueued in time, and at the end no more waits than comes in a second. "+
			"One node with a batch of 1,000 and a tick of 20 ms, quotas that cap nothing; 32 tenants; %d bytes each, by two producers with EnqueueBatch.",
			l.size.rampStep, jobBytes),
	})
	return best, l.drop(ctx, f.q.db)
}

// keepsUp reports whether the node settles what comes in at that rate.
func (f *flow) keepsUp(ctx context.Context, rate float64, length time.Duration) (bool, error) {
	before := f.sent.Load()
	if err := f.produce(ctx, rate, length); err != nil {
		return false, err
	}
	waits, sent := f.waiting(), float64(f.sent.Load()-before)
	return sent >= 0.97*rate*length.Seconds() && float64(waits) <= rate, f.drain(ctx)
}

// runLong enqueues at a rate for long, beside a backlog of a paused tenant, and watches what grows.
func (l *lab) runLong(ctx context.Context, rate float64) error {
	keep := l.size.steadyTime / 10
	f, err := l.openFlow(ctx, "steady", keep, min(node.Defaults().PruneEvery, keep))
	if err != nil {
		return err
	}
	if err := l.besideBacklog(ctx, f.q.db); err != nil {
		return err
	}
	if err := f.begin(ctx); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- f.produce(ctx, rate, l.size.steadyTime) }()
	var seen []samples
	for part, name := range steadyParts() {
		s, err := l.watch(ctx, f, l.size.steadyTime/time.Duration(len(steadyParts())))
		if err != nil {
			return errors.Join(err, f.crew.stop(ctx))
		}
		seen = append(seen, s)
		l.reportPart(name, s, seen[max(part-1, 0)])
	}
	if err := errors.Join(<-done, f.end(ctx)); err != nil {
		return err
	}
	l.report.add(figure{
		Experiment: "steady", Case: "enqueued and settled in the long run", Contender: fair, Unit: "messages/s",
		summary: summarize([]float64{float64(f.sent.Load()) / l.size.steadyTime.Seconds()}),
		Note: fmt.Sprintf("The long run: %v at %v of the rate that was kept up, what is settled is kept for %v, %s messages of a paused tenant wait beside. "+
			"Autovacuum is as the server has it, with the outbox's own settings of its tables.", l.size.steadyTime, steadyShare, keep, count(l.size.steadyBacklog)),
	})
	l.judgeLong(seen)
	if err := f.q.db.verify(ctx); err != nil {
		return err
	}
	return l.drop(ctx, f.q.db)
}

// besideBacklog has messages wait that nobody may claim.
func (l *lab) besideBacklog(ctx context.Context, db *database) error {
	if _, err := db.write(ctx, backlog{group: steadyPaused, rows: l.size.steadyBacklog, payload: floodBytes}); err != nil {
		return err
	}
	if err := db.exec(ctx, `select outbox.pause(p.namespace, null, 'beside') from (select distinct p.namespace from outbox.pending as p) as p`); err != nil {
		return err
	}
	return l.settleDown(ctx, db)
}

// steadyParts are the parts of the long run. In the first one the tables fill up.
func steadyParts() []string { return []string{"first third", "second third", "last third"} }

// samples are what a part of the long run showed.
type samples struct {
	calls     map[string][]float64 // ms
	delivered []float64            // ms
	sizes     map[string][]float64 // MiB
	vacuums   map[string]int64     // since the begin of the run, by table
}

// watchEvery is how often sizes are looked at, in a part.
const watchEvery = 10

// watch waits for a part of the long run to pass.
func (l *lab) watch(ctx context.Context, f *flow, length time.Duration) (samples, error) {
	s := samples{sizes: map[string][]float64{}, vacuums: map[string]int64{}}
	for range watchEvery {
		if err := sleep(ctx, length/watchEvery); err != nil {
			return s, err
		}
		rows, err := f.q.db.pool.Query(ctx, `select c.relname, pg_table_size(c.oid) / 1048576.0, pg_indexes_size(c.oid) / 1048576.0, t.autovacuum_count
			from pg_class as c join pg_stat_user_tables as t on t.relid = c.oid
			where c.relnamespace = 'outbox'::regnamespace and c.relname = any ($1)`, steadyTables())
		if err != nil {
			return s, err
		}
		var table string
		var heap, indexes float64
		var vacuums int64
		_, err = pgx.ForEachRow(rows, []any{&table, &heap, &indexes, &vacuums}, func() error {
			s.sizes[table] = append(s.sizes[table], heap)
			s.sizes["indexes of "+table] = append(s.sizes["indexes of "+table], indexes)
			s.vacuums[table] = vacuums
			return nil
		})
		if err != nil {
			return s, err
		}
	}
	s.calls, s.delivered = f.take()
	return s, nil
}

func steadyTables() []string { return []string{"message", "pending", "claimed", "settled"} }

// reportPart reports a part of the long run, beside the part before.
func (l *lab) reportPart(name string, s, before samples) {
	add := func(what, unit string, values, earlier []float64) {
		f := figure{Experiment: "steady", Case: what + ", " + name, Contender: fair, Unit: unit, summary: summarize(values)}
		if name != steadyParts()[0] {
			f = f.against("the third before", summarize(earlier))
		}
		l.report.add(f)
	}
	for _, call := range []string{"claim", "complete", "prune"} {
		if len(s.calls[call]) > 0 {
			add(call, "ms", s.calls[call], before.calls[call])
		}
	}
	add("enqueue to delivery", "ms", s.delivered, before.delivered)
	for _, table := range steadyTables() {
		for _, what := range []string{table, "indexes of " + table} {
			add("size of "+what, "MiB", s.sizes[what], before.sizes[what])
		}
	}
	l.say("%s: claim %s ms, enqueue to delivery %s ms, autovacuums %v", name, number(summarize(s.calls["claim"]).Median),
		number(summarize(s.delivered).Median), s.vacuums)
}

// judgeLong compares the last third of the long run with the second.
func (l *lab) judgeLong(seen []samples) {
	second, last := seen[len(seen)-2], seen[len(seen)-1]
	total := func(s samples) float64 {
		var mib float64
		for _, sizes := range s.sizes {
			mib += summarize(sizes).Median
		}
		return mib
	}
	l.report.atMost("steady", "tables and indexes, last third against the second", total(last)/total(second), 1.1)
	l.report.atMost("steady", "median claim, last third against the second",
		summarize(last.calls["claim"]).Median/summarize(second.calls["claim"]).Median, 1.2)
	l.report.atMost("steady", "p99 of claims, last third against the second",
		summarize(last.calls["claim"]).P99/summarize(second.calls["claim"]).P99, 1.5)
}
