package node

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

// bubbleClock is a clock for a dispatcher in a synctest bubble.
func bubbleClock() func() int64 {
	start := time.Now()
	return func() int64 { return int64(time.Since(start)) + 1 }
}

// claimed is a message whose lease lasts for a minute from the clock's start.
func claimed(id int64, namespace string) *item {
	it := &item{Delivery: driver.Delivery{ID: id, Namespace: namespace}}
	it.leased.Store(int64(time.Minute))
	return it
}

// A namespace whose deliveries hang holds its share of the slots; the others' pass it by,
// and what it has waiting takes no room in the queue.
func TestHungNamespaceHoldsItsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(limits{slots: 4, shareSlots: 2, shareBytes: 1, capacity: 10, timeout: time.Hour, slow: time.Hour / 2}, bubbleClock())
		var hung atomic.Int64
		quick := 0
		q := d.newQueue(SinkFunc(func(ctx context.Context, m driver.Delivery) error {
			if m.Namespace == "slow" {
				hung.Add(1)
				<-ctx.Done()
				return ctx.Err()
			}
			time.Sleep(time.Second) // of the bubble
			return nil
		}))
		for id := range int64(100) {
			if !offered(d, q, claimed(id, "slow")) {
				t.Fatalf("message %d of the hung namespace was refused", id)
			}
			synctest.Wait() // the first two begin, and the rest is beyond the share
		}
		for id := range int64(100) {
			for !offered(d, q, claimed(1000+id, "quick")) {
				<-d.wake
				quick += len(d.collect())
			}
		}
		for quick < 100 {
			<-d.wake
			quick += len(d.collect())
		}
		if n := hung.Load(); n != 2 {
			t.Errorf("the hung namespace holds %d slots, want 2", n)
		}
		if room := d.room(q); room != 10 {
			t.Errorf("there is room for %d, want 10: the waiting messages of the hung namespace count", room)
		}
		if n := len(d.withdraw()); n != 98 {
			t.Errorf("withdrew %d, want 98", n)
		}
		d.stop(errStopping)
		d.running.Wait()
	})
}

// A namespace that came with much waits its turn like one that came with little.
func TestTurnsComeRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(limits{slots: 1, shareSlots: 1, shareBytes: 1, capacity: 100, timeout: time.Hour, slow: time.Hour / 2}, bubbleClock())
		first := make(chan struct{})
		var order strings.Builder // by the one slot
		q := d.newQueue(SinkFunc(func(_ context.Context, m driver.Delivery) error {
			order.WriteString(m.Namespace)
			<-first
			return nil
		}))
		for i, namespace := range strings.Split("aaaaaabbbbcc", "") {
			offered(d, q, claimed(int64(i), namespace))
		}
		close(first)
		d.running.Wait()
		if got := order.String(); got != "aabcabcababa" {
			t.Errorf("the order is %s", got)
		}
	})
}

func TestDeliveryOutcomes(t *testing.T) {
	boom := errors.New("boom")
	tests := map[string]struct {
		sink   SinkFunc
		before func(d *dispatcher, it *item) // before the offer
		during func(d *dispatcher, it *item) // once the sink works
		want   verdict
		reason string // part of it
		after  time.Duration
	}{
		"done": {sink: func(context.Context, driver.Delivery) error { return nil }, want: toComplete},
		"panic": {
			sink: func(context.Context, driver.Delivery) error { panic(boom) }, want: toRetry, reason: "the sink panicked: boom",
		},
		"goexit": {
			sink: func(context.Context, driver.Delivery) error { runtime.Goexit(); return nil },
			want: toRetry, reason: "ended its goroutine",
		},
		"error that panics": {
			sink: func(context.Context, driver.Delivery) error { return (*brokenError)(nil) }, want: toRetry, reason: "the sink panicked",
		},
		"time-out": {
			sink: untilDone, want: toRetry, reason: "timed out after 1s", after: time.Second,
		},
		"time-out, by ctx.Err": {
			sink: func(ctx context.Context, _ driver.Delivery) error {
				<-ctx.Done()
				return fmt.Errorf("send: %w", ctx.Err())
			},
			want: toRetry, reason: "timed out after 1s: send: context deadline exceeded", after: time.Second,
		},
		"lost before": {
			sink: uncalled, before: func(_ *dispatcher, it *item) { it.lose() }, want: toRelease, reason: errLost.Error(),
		},
		"lost during": {
			sink: untilDone, during: func(_ *dispatcher, it *item) { it.lose() }, want: toRetry, reason: errLost.Error(),
		},
		"stopped before": {
			sink: uncalled, before: func(d *dispatcher, _ *item) { d.stop(errStopping) }, want: toRelease, reason: errStopping.Error(),
		},
		"stopped during": {
			sink: untilDone, during: func(d *dispatcher, _ *item) { d.stop(errStopping) }, want: toRelease, reason: errStopping.Error(),
		},
		"done though stopped": {
			sink:   func(ctx context.Context, _ driver.Delivery) error { <-ctx.Done(); return nil },
			during: func(d *dispatcher, _ *item) { d.stop(errStopping) }, want: toComplete,
		},
		"failed though stopped": {
			sink:   func(ctx context.Context, _ driver.Delivery) error { <-ctx.Done(); return Permanent(boom) },
			during: func(d *dispatcher, _ *item) { d.stop(errStopping) }, want: toFail, reason: "boom",
		},
		"stale": {
			sink: uncalled, before: func(d *dispatcher, it *item) { it.leased.Store(d.clock()) }, want: toRelease, reason: errStale.Error(),
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				d := newDispatcher(limits{slots: 1, shareSlots: 1, shareBytes: 1, capacity: 2, timeout: time.Second, slow: time.Second / 2}, bubbleClock())
				q := d.newQueue(test.sink)
				it := claimed(1, "ns")
				if test.before != nil {
					test.before(d, it)
				}
				offered(d, q, it)
				synctest.Wait()
				if test.during != nil {
					test.during(d, it)
				}
				<-d.wake
				d.running.Wait()
				got := d.collect()
				if len(got) != 1 || got[0] != it {
					t.Fatalf("collected %v, want the one message", got)
				}
				if it.verdict != test.want || !strings.Contains(it.reason, test.reason) {
					t.Errorf("verdict %d for the reason %q, want %d for %q", it.verdict, it.reason, test.want, test.reason)
				}
				if took := time.Since(start); took != test.after {
					t.Errorf("it took %v, want %v", took, test.after)
				}
				d.stop(nil)
			})
		})
	}
}

// untilDone is a sink that works until it is told to stop, and says why it stopped.
func untilDone(ctx context.Context, _ driver.Delivery) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// uncalled is a sink that must not be called.
func uncalled(context.Context, driver.Delivery) error {
	return Permanent(errors.New("the sink was called"))
}

type brokenError struct{ text string }

func (e *brokenError) Error() string { return e.text }

// A sink that ends its goroutine costs no slot.
func TestGoexitKeepsTheSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(limits{slots: 1, shareSlots: 1, shareBytes: 1, capacity: 10, timeout: time.Second, slow: time.Second / 2}, bubbleClock())
		q := d.newQueue(SinkFunc(func(context.Context, driver.Delivery) error { runtime.Goexit(); return nil }))
		for id := range int64(10) {
			offered(d, q, claimed(id, "ns"))
		}
		d.running.Wait()
		if n := len(d.collect()); n != 10 {
			t.Errorf("%d of 10 messages came back", n)
		}
	})
}

// A sink that does not listen to its context: its messages count as timed out a stated time after
// their time-out, their slots go on, as long as not too many are left behind, and what it says
// in the end is nobody's. Others are delivered all the time.
func TestDeafSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots, timeout = 4, time.Second
		d := newDispatcher(limits{slots: slots, shareSlots: 2, shareBytes: 1 << 20, capacity: 100, timeout: timeout, slow: timeout / 2}, bubbleClock())
		hear := make(chan struct{})
		var calls atomic.Int64
		q := d.newQueue(SinkFunc(func(_ context.Context, m driver.Delivery) error {
			if m.Namespace == "deaf" {
				calls.Add(1)
				<-hear
			}
			return nil
		}))
		for id := range int64(20) {
			it := claimed(id, "deaf")
			it.leased.Store(int64(time.Hour))
			offered(d, q, it)
		}
		start := time.Now()
		timedOut := 0
		for round := 1; round <= 5; round++ {
			time.Sleep(timeout + graceTime)
			it := claimed(int64(1000+round), "quick")
			it.leased.Store(int64(time.Hour))
			offered(d, q, it)
			synctest.Wait()
			quick := 0
			for _, it := range d.collect() {
				switch {
				case it.Namespace == "quick" && it.verdict == toComplete:
					quick++
				case it.verdict == toRetry && it.overdue && strings.Contains(it.reason, "timed out after 1s, and the sink did not return within 5s more"):
					timedOut++
				default:
					t.Errorf("%s %d has the verdict %d: %s", it.Namespace, it.ID, it.verdict, it.reason)
				}
			}
			// Two at a time, its share, until as many as there are slots were left behind: then its
			// two slots wait for the sink.
			if want := min(2*round, slots+2); quick != 1 || timedOut != want || int(d.overdue.Load()) != want || int(d.leftBehind.Load()) != want {
				t.Errorf("after %v: %d timed out, %d left behind, %d of 1 quick; want %d", time.Since(start), timedOut, d.leftBehind.Load(), quick, want)
			}
		}
		if n := calls.Load(); n != slots+2 {
			t.Errorf("the sink was called %d times, want %d: slots and a share", n, slots+2)
		}
		close(hear)
		d.running.Wait()
		rest := d.collect()
		for _, it := range rest {
			if it.verdict != toComplete {
				t.Errorf("message %d has the verdict %d", it.ID, it.verdict)
			}
		}
		if len(rest) != 20-slots-2 || d.leftBehind.Load() != 0 {
			t.Errorf("%d results after the sink came back, %d left behind; want %d and none", len(rest), d.leftBehind.Load(), 20-slots-2)
		}
	})
}

// A stop lets nothing begin that waits, and what runs is told.
func TestStopEndsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(limits{slots: 2, shareSlots: 2, shareBytes: 1, capacity: 10, timeout: time.Hour, slow: time.Hour / 2}, bubbleClock())
		var calls atomic.Int64
		q := d.newQueue(SinkFunc(func(ctx context.Context, m driver.Delivery) error {
			calls.Add(1)
			return untilDone(ctx, m)
		}))
		for id := range int64(8) {
			offered(d, q, claimed(id, "ns"))
		}
		synctest.Wait()
		d.stop(errStopping)
		d.running.Wait()
		results := d.collect()
		for _, it := range results {
			if it.verdict != toRelease {
				t.Errorf("message %d ended with verdict %d, want it untried", it.ID, it.verdict)
			}
		}
		if len(results) != 8 || calls.Load() != 2 {
			t.Errorf("%d results after %d calls of the sink, want 8 after 2", len(results), calls.Load())
		}
	})
}

func BenchmarkDispatch(b *testing.B) {
	d := newDispatcher(limits{slots: 64, shareSlots: 32, shareBytes: 1 << 20, capacity: 1000, timeout: time.Minute, slow: time.Minute / 2}, func() int64 { return 1 })
	q := d.newQueue(SinkFunc(func(context.Context, driver.Delivery) error { return nil }))
	items := make([]*item, b.N)
	for i := range items {
		items[i] = claimed(int64(i), namespaces[i%len(namespaces)])
	}
	b.ReportAllocs()
	b.ResetTimer()
	collected := 0
	for _, it := range items {
		for !offered(d, q, it) {
			<-d.wake
			collected += len(d.collect())
		}
	}
	for collected < b.N {
		<-d.wake
		collected += len(d.collect())
	}
}

// offered hands one message to a queue, and reports whether that has taken it.
func offered(d *dispatcher, q *queue, it *item) bool {
	it.queue = q
	return len(d.offer(it)) == 0
}
