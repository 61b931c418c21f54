package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// tally counts, a tenant, what was sent and delivered and how long it waited. It is safe
// for concurrent use.
type tally struct {
	mu      sync.Mutex
	tenants map[string]*tenant
	outage  outage
}

// outage is what came of the endpoint that was down for a while. Its zero value is none.
type outage struct {
	from, to  time.Time
	attempts  int             // deliveries that were tried meanwhile
	waited    int             // messages that were sent before its end and delivered after it
	first     time.Duration   // from its end to the first of these,
	last      time.Duration   // and to the last
	meanwhile []time.Duration // how long the quiet tenants' messages waited that were delivered during it
}

func (o *outage) lasts(at time.Time) bool { return at.After(o.from) && at.Before(o.to) }

type tenant struct {
	sent      int
	delivered int
	waits     []time.Duration      // of the messages delivered
	open      map[string]time.Time // quiet tenants: keys not delivered yet, and when they were sent
}

// row is a tenant as it is drawn.
type row struct {
	tenant                       string
	sent, delivered, undelivered int
	pending, claimed             int
	p50, p99                     time.Duration
	waits                        []time.Duration // sorted; those of messages not delivered yet are their age
	done                         []time.Duration // sorted; those of messages delivered
}

func newTally() *tally {
	t := &tally{tenants: map[string]*tenant{bursty: {open: map[string]time.Time{}}, dying: {}}}
	for i := range quietTenants {
		t.tenants[quietName(i)] = &tenant{open: map[string]time.Time{}}
	}
	return t
}

func (t *tally) enqueued(name string, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tenants[name].sent += n
}

// waiting notes a message that was sent, unless it has been delivered in the meantime.
func (t *tally) waiting(key, name string, sent time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.tenants[name]
	x.sent++
	if _, delivered := x.open[key]; delivered {
		delete(x.open, key)
	} else {
		x.open[key] = sent
	}
}

func (t *tally) sink() node.Sink {
	return node.SinkFunc(func(ctx context.Context, m driver.Delivery) error {
		wait := time.Since(sentAt(m.Payload))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(delivery):
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if down := t.outage.deliver(m, wait); down {
			return node.DestinationFailed(errors.New("connection refused"))
		}
		x := t.tenants[m.Namespace]
		x.delivered++
		x.waits = append(x.waits, wait)
		if m.Namespace == bursty || m.Namespace == dying {
			return nil
		}
		if _, known := x.open[m.DispatchKey]; known {
			delete(x.open, m.DispatchKey)
		} else {
			x.open[m.DispatchKey] = time.Time{} // waiting() is yet to come
		}
		return nil
	})
}

// deliver notes a delivery, and says whether the endpoint is down.
func (o *outage) deliver(m driver.Delivery, wait time.Duration) (down bool) {
	now := time.Now()
	switch {
	case m.Namespace == dying && o.lasts(now):
		o.attempts++
		return true
	case m.Namespace == dying && !o.to.IsZero() && now.After(o.to) && sentAt(m.Payload).Before(o.to):
		o.waited++
		o.last = now.Sub(o.to)
		if o.waited == 1 {
			o.first = o.last
		}
	case m.Namespace != bursty && m.Namespace != dying && o.lasts(now):
		o.meanwhile = append(o.meanwhile, wait)
	}
	return false
}

// rows reads what the database holds and joins it with what was counted.
func (t *tally) rows(ctx context.Context, pool *pgxpool.Pool) ([]row, error) {
	type counts struct{ pending, claimed int }
	held := map[string]counts{}
	result, err := pool.Query(ctx, `
		select x.namespace, sum(x.pending)::int, sum(x.claimed)::int
		from (select p.namespace, count(*) as pending, 0 as claimed from outbox.pending as p group by 1
		      union all
		      select c.namespace, 0, count(*) from outbox.claimed as c group by 1) as x
		group by 1`)
	if err != nil {
		return nil, err
	}
	var name string
	var c counts
	_, err = pgx.ForEachRow(result, []any{&name, &c.pending, &c.claimed}, func() error {
		held[name] = c
		return nil
	})
	if err != nil {
		return nil, err
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	rows := []row{t.tenants[bursty].row(bursty)}
	for i := range quietTenants {
		rows = append(rows, t.tenants[quietName(i)].row(quietName(i)))
	}
	for i := range rows {
		c := held[rows[i].tenant]
		rows[i].pending, rows[i].claimed = c.pending, c.claimed
	}
	return rows, nil
}

func (x *tenant) row(name string) row {
	waits := slices.Clone(x.waits)
	done := slices.Sorted(slices.Values(x.waits))
	for _, sent := range x.open {
		if !sent.IsZero() {
			waits = append(waits, time.Since(sent))
		}
	}
	slices.Sort(waits)
	return row{
		tenant: name, sent: x.sent, delivered: x.delivered, undelivered: max(x.sent-x.delivered, 0),
		p50: percentile(waits, 0.5), p99: percentile(waits, 0.99), waits: waits, done: done,
	}
}

// percentile is the nearest-rank one of sorted values; 0 of none.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(p*float64(len(sorted))), len(sorted)-1)]
}

// merge adds tenants up.
func merge(name string, rows []row) row {
	sum := row{tenant: name}
	for _, r := range rows {
		sum.sent += r.sent
		sum.delivered += r.delivered
		sum.undelivered += r.undelivered
		sum.pending += r.pending
		sum.claimed += r.claimed
		sum.waits = append(sum.waits, r.waits...)
		sum.done = append(sum.done, r.done...)
	}
	slices.Sort(sum.waits)
	slices.Sort(sum.done)
	sum.p50, sum.p99 = percentile(sum.waits, 0.5), percentile(sum.waits, 0.99)
	return sum
}
