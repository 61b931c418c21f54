package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/fairclaim/fairclaim/driver/node"
)

// fairness: one tenant has a flood pending, another enqueues a message a second. How long
// does the quiet one wait, from its enqueue to the delivery?
func fairness(ctx context.Context, l *lab) error {
	outbox := &outboxQueue{
		config: node.Config{}, // what sweep run does by default
		about:  "one sweeper and an outbox, both with their defaults: a batch of 100, a tick of 500 ms, a quota of 256",
	}
	queues, err := l.openQueues(ctx, "fairness", outbox)
	if err != nil {
		return err
	}
	for _, q := range queues {
		l.say("%s: making %s messages of one tenant pending", q.name(), count(l.size.flood))
		if err := q.flood(ctx, l.size.flood); err != nil {
			return fmt.Errorf("%s: %w", q.name(), err)
		}
		if err := q.base().exec(ctx, "vacuum (analyze)"); err != nil {
			return err
		}
		if err := l.checkpoint(ctx); err != nil {
			return err
		}
		w, err := l.watchQuiet(ctx, q)
		if err != nil {
			return fmt.Errorf("%s: %w", q.name(), err)
		}
		f := figure{
			Experiment: "fairness", Case: fmt.Sprintf("quiet tenant's wait beside %s pending of another", count(l.size.flood)),
			Contender: q.name(), Unit: "ms", summary: summarize(w.waits),
			Note: fmt.Sprintf("One node; deliveries are held to %s a second, so that the flood lasts; a message of the quiet tenant a second. "+
				"Rivals in one queue, as with tenants that nobody knows beforehand.", count(deliveryRate)),
		}
		if 2*w.unserved >= len(w.waits) {
			f.Over = overBoth
		} else if w.unserved > 0 {
			f.Over = overP99
		}
		l.report.add(f, figure{
			Experiment: "fairness", Case: "delivered meanwhile", Contender: q.name(), Unit: "messages/s", summary: summarize([]float64{w.rate}),
		})
		if q == outbox {
			worst := summarize(w.claims).Max
			l.report.add(figure{
				Experiment: "fairness", Case: "claims from the quiet tenant's commit to the one that brings its message", Contender: q.name(),
				Unit: "claims", summary: summarize(w.claims),
			})
			l.report.Goals = append(l.report.Goals, goal{
				"fairness", "quiet tenant beside a flood", "in the next claim: the 1st, or the 2nd where one was under way already",
				fmt.Sprintf("claim %.0f at the latest", worst), w.unserved == 0 && worst <= 2,
			})
		}
		if err := l.drop(ctx, q.base()); err != nil {
			return err
		}
	}
	return nil
}

// quietWatch is what became of the quiet tenant's messages.
type quietWatch struct {
	waits    []float64 // ms; of unserved ones, as long as they were watched
	unserved int
	claims   []float64 // how many claims later each came, where claims are numbered
	rate     float64   // messages a second delivered in all
}

// deliveryRate is what the receiving end takes, messages a second.
const deliveryRate = 2000

// paced holds the calls of all goroutines together to a rate a second.
func paced(rate int) func() {
	var mu sync.Mutex
	var next time.Time
	return func() {
		mu.Lock()
		now := time.Now()
		if next.Before(now.Add(-100 * time.Millisecond)) { // it was idle: what it missed is gone
			next = now
		}
		at := next
		next = next.Add(time.Second / time.Duration(rate))
		mu.Unlock()
		time.Sleep(at.Sub(now))
	}
}

// receiver is the receiving end. It knows the quiet tenant's messages.
type receiver struct {
	pace func()

	mu        sync.Mutex
	delivered int
	got       map[int]served // by the number of the message
	wrong     error
}

type served struct {
	at    time.Time
	claim int64
}

func (r *receiver) deliver(payload []byte, claim int64) {
	r.pace()
	isQuiet := bytes.Contains(payload, []byte(`"`+quiet+`"`))
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delivered++
	if !isQuiet {
		return
	}
	var j job
	if err := json.Unmarshal(payload, &j); err != nil || j.Tenant != quiet {
		r.wrong = fmt.Errorf("delivered what nobody sent: %s", payload)
	}
	if _, ok := r.got[j.N]; ok {
		r.wrong = fmt.Errorf("delivered message %d twice", j.N)
	}
	r.got[j.N] = served{now, claim}
}

func (r *receiver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.delivered
}

// grace is how long the last message is waited for.
const grace = 2 * time.Second

func (l *lab) watchQuiet(ctx context.Context, q queue) (quietWatch, error) {
	var w quietWatch
	r := &receiver{pace: paced(deliveryRate), got: map[int]served{}}
	c, err := q.work(ctx, 1, r.deliver)
	if err != nil {
		return w, err
	}
	start := time.Now()
	sent, last, err := l.enqueueQuiet(ctx, q)
	if err == nil {
		err = sleep(ctx, grace)
	}
	end := time.Now()
	w.rate = float64(r.count()) / end.Sub(start).Seconds()
	if stopErr := c.stop(ctx); err == nil {
		err = stopErr
	}
	if err != nil {
		return w, err
	}
	if r.wrong != nil {
		return w, r.wrong
	}
	if n := r.count(); n >= l.size.flood {
		return w, fmt.Errorf("the flood was over: %d of %d delivered", n, l.size.flood)
	}
	for n, at := range sent {
		s, ok := r.got[n]
		if !ok || s.at.After(end) {
			w.unserved++
			w.waits = append(w.waits, milliseconds(end.Sub(at)))
			continue
		}
		w.waits = append(w.waits, milliseconds(s.at.Sub(at)))
		if s.claim > 0 {
			w.claims = append(w.claims, float64(max((s.claim-last[n])/tokenStep, 1)))
		}
	}
	return w, nil
}

// enqueueQuiet enqueues a message a second. It returns when each was sent, and, where
// claims are numbered, the last claim as its transaction had committed.
func (l *lab) enqueueQuiet(ctx context.Context, q queue) (sent []time.Time, last []int64, err error) {
	numbered, _ := q.(interface {
		lastClaim(context.Context) (int64, error)
	})
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for n := range l.size.quiet {
		select {
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		case <-second.C:
		}
		sent = append(sent, time.Now())
		if err := q.enqueue(ctx, []job{newJob(quiet, n, floodBytes)}); err != nil {
			return nil, nil, err
		}
		var claim int64
		if numbered != nil {
			if claim, err = numbered.lastClaim(ctx); err != nil {
				return nil, nil, err
			}
		}
		last = append(last, claim)
	}
	return sent, last, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
