package integration

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// pauseLog is a log handler that notes when claiming pauses and resumes.
type pauseLog struct {
	slog.Handler

	mu     sync.Mutex
	events []pauseEvent
}

type pauseEvent struct {
	at     time.Time
	paused bool
}

func (p *pauseLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "claiming paused" || r.Message == "claiming resumed" {
		p.mu.Lock()
		p.events = append(p.events, pauseEvent{r.Time, r.Message == "claiming paused"})
		p.mu.Unlock()
		return nil // there may be thousands
	}
	return p.Handler.Handle(ctx, r)
}

func (p *pauseLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	p.Handler = p.Handler.WithAttrs(attrs)
	return p
}

func (p *pauseLog) seen() []pauseEvent {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]pauseEvent(nil), p.events...)
}

func newPauseLog(t testing.TB) *pauseLog {
	return &pauseLog{Handler: slog.NewTextHandler(t.Output(), nil)}
}

// edgeLength is how long a run at the edge goes on: FAIRCLAIM_EDGE_TIME, or 3s.
func edgeLength(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("FAIRCLAIM_EDGE_TIME")
	if text == "" {
		return 3 * time.Second
	}
	length, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("FAIRCLAIM_EDGE_TIME: %v", err)
	}
	return length
}

// working is a sink that takes 1 to 5 ms a message, times so many.
func working(times int) node.Sink {
	return node.SinkFunc(func(ctx context.Context, m driver.Delivery) error {
		select {
		case <-time.After(time.Duration(times*int(1+m.ID%5)) * time.Millisecond):
		case <-ctx.Done():
		}
		return ctx.Err()
	})
}

// INV-12: a node that lives at the edge of its watermarks does not flap: pauses and
// resumes alternate, none is shorter than min pause, and so there is at most one cycle in
// each. Between the pauses it works.
func TestNoFlappingAtTheEdge(t *testing.T) {
	t.Parallel()
	const minPause = 100 * time.Millisecond
	for name, option := range map[string]func(*node.Config){
		"bytes":                func(c *node.Config) { c.High, c.Low = 0.8, 0.5 },
		"low as high":          func(c *node.Config) { c.High, c.Low = 0.8, 0.8 },
		"budget below one row": func(c *node.Config) { c.Budget = 100 },
		"rejected sends": func(c *node.Config) {
			c.Budget, c.Slots, c.Queue, c.Stash = 64<<20, 2, 1, 1
			c.Routes = map[string]node.Sink{"r0": working(100)} // its queue fills while the other has room
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pg.New(t)
			for i := range 12 {
				fill(t, db.Pool, fmt.Sprint("ns", i), []string{"rest", "r0"}[min(i, 1)], 2000, 200+50*i)
			}
			log := newPauseLog(t)
			s := newNode(t, db, working(1), func(c *node.Config) {
				c.Budget, c.MinPause, c.Tick, c.Logger = 10_000, minPause, 2*time.Millisecond, slog.New(log)
			}, option)
			n := startNode(t, s)
			eventually(t, "it works", func() bool { return n.Stats().Done > 0 })
			eventually(t, "it has paused and resumed twice", func() bool { return len(log.seen()) >= 4 })
			<-time.After(edgeLength(t)) // the length of the run, not a wait for something
			stats := n.Stats()
			n.cancel(nil)
			<-n.done
			events := log.seen()
			for i, e := range events {
				if e.paused != (i%2 == 0) {
					t.Fatalf("event %d of %d is pause: %t; they do not alternate", i, len(events), e.paused)
				}
			}
			// The log's times come a moment after the decisions, on a busy machine a longer one: each pause alone
			// may seem shorter than it was, all of them together are not.
			ran := events[len(events)-1].at.Sub(events[0].at)
			if cycles := len(events) / 2; cycles > int(ran/minPause)+2 {
				t.Errorf("%d cycles in %v, want at most one in each %v", cycles, ran, minPause)
			}
			t.Logf("%d transitions in %v, %d delivered", len(events), ran, stats.Done)
		})
	}
}

// INV-12: a stalled sink that recovers is resumed: with the end of min pause where it recovers before, and with its
// recovery where that is later.
func TestRecoveredSinkIsResumed(t *testing.T) {
	t.Parallel()
	const minPause, tick = time.Second, 200 * time.Millisecond
	for name, stall := range map[string]time.Duration{"within min pause": 0, "after min pause": minPause + 4*tick} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pg.New(t)
			stalled := newHanging()
			log := newPauseLog(t)
			n := startNode(t, newNode(t, db, new(collector), func(c *node.Config) {
				c.Routes = map[string]node.Sink{"stalled": stalled}
				c.Slots, c.Spare, c.Queue, c.Stash, c.Tick, c.MinPause, c.Logger = 2, -1, 3, 1, tick, minPause, slog.New(log)
			}))
			for i := range 20 { // what waits of a tenant whose delivery hangs would take no room in the queue
				fill(t, db.Pool, fmt.Sprint("s", i), "stalled", 1, 10)
			}
			eventually(t, "a refused message has paused claiming", func() bool { return len(log.seen()) == 1 })
			paused := log.seen()[0].at
			eventually(t, "the sink has stalled long enough", func() bool { return time.Since(paused) >= stall })
			close(stalled.let)
			recovered := time.Now()
			eventually(t, "claiming has resumed", func() bool { return len(log.seen()) >= 2 })
			from := paused.Add(minPause)
			if recovered.After(from) {
				from = recovered
			}
			// The log's times come a moment after the decisions. How late it is says how busy the machine is: what
			// never resumes is found by the wait above.
			if late := log.seen()[1].at.Sub(from); late < -minPause/2 {
				t.Errorf("it resumed %v before it could", -late)
			}
			eventually(t, "all is settled", func() bool { return n.Stats().Done == 20 })
			n.drained(t)
		})
	}
}
