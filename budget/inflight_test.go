package budget

import (
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestInflight(t *testing.T) {
	const top = math.MaxInt64
	for _, test := range []struct {
		name  string
		start int64
		call  call
		whole bool
		usage int64
	}{
		{"the zero value holds nothing", 0, call{add, 0}, true, 0},
		{"add", 3, call{add, 5}, true, 8},
		{"sub", 8, call{sub, 5}, true, 3},
		{"sub to exactly 0", 8, call{sub, 8}, true, 0},
		{"sub stops at 0", 8, call{sub, 9}, false, 0},
		{"sub from nothing", 0, call{sub, top}, false, 0},
		{"add to exactly the top", top - 5, call{add, 5}, true, top},
		{"add stops at the top", top - 5, call{add, 6}, false, top},
		{"add the top to the top", top, call{add, top}, false, top},
		{"add of a negative does nothing", 8, call{add, -3}, false, 8},
		{"add of the most negative does nothing", 8, call{add, math.MinInt64}, false, 8},
		{"sub of a negative does nothing", 8, call{sub, -3}, false, 8},
		{"sub of the most negative does nothing", 8, call{sub, math.MinInt64}, false, 8},
	} {
		t.Run(test.name, func(t *testing.T) {
			var b Inflight
			b.Add(test.start)
			if whole := b.do(test.call); whole != test.whole {
				t.Errorf("%v at %d reports %t, want %t", test.call, test.start, whole, test.whole)
			}
			if usage := b.Usage(); usage != test.usage {
				t.Errorf("%v at %d: usage is %d, want %d", test.call, test.start, usage, test.usage)
			}
		})
	}
}

func (b *Inflight) do(c call) bool {
	if c.kind == add {
		return b.Add(c.n)
	}
	return b.Sub(c.n)
}

// amounts draws ordinary payload sizes, any number at all, and the edges.
func amounts() *rapid.Generator[int64] {
	return rapid.OneOf(
		rapid.Int64Range(0, 1<<20),
		rapid.Int64(),
		rapid.SampledFrom([]int64{0, 1, -1, math.MaxInt64, math.MaxInt64 - 1, math.MinInt64, math.MinInt64 + 1}),
	)
}

// INV-13: any sequence of calls does what exact arithmetic, cut to the bounds, does.
func TestInflightAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b Inflight
		want := int64(0)
		one := func(c call) {
			var whole bool
			want, whole = model(want, c)
			if got := b.do(c); got != whole {
				t.Fatalf("%v reports %t, want %t", c, got, whole)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) { one(call{add, amounts().Draw(t, "n")}) },
			"sub": func(t *rapid.T) { one(call{sub, amounts().Draw(t, "n")}) },
			"sub what is there": func(*rapid.T) {
				one(call{sub, b.Usage()})
			},
			"": func(t *rapid.T) {
				if got := b.Usage(); got != want {
					t.Fatalf("usage is %d, want %d", got, want)
				}
			},
		})
	})
}

// INV-13: with each row's Add before its Sub, no call meets a bound and a drain
// ends at exactly 0, whatever the order in which rows are claimed and settled.
func TestInflightDrainsToZero(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b Inflight
		var rows []int64
		settle := func(i int) {
			if !b.Sub(rows[i]) {
				t.Fatalf("sub %d met the bound with %d bytes in flight", rows[i], b.Usage())
			}
			rows = append(rows[:i], rows[i+1:]...)
		}
		t.Repeat(map[string]func(*rapid.T){
			"claim": func(t *rapid.T) {
				n := rapid.Int64Range(0, 1<<30).Draw(t, "bytes")
				rows = append(rows, n)
				if !b.Add(n) {
					t.Fatalf("add %d met the bound", n)
				}
			},
			"settle": func(t *rapid.T) {
				if len(rows) == 0 {
					t.Skip("nothing in flight")
				}
				settle(rapid.IntRange(0, len(rows)-1).Draw(t, "row"))
			},
		})
		for len(rows) > 0 {
			settle(0)
		}
		if usage := b.Usage(); usage != 0 {
			t.Fatalf("usage is %d after the drain, want 0", usage)
		}
	})
}

// INV-13 with real goroutines: claimers add and hand rows to settlers, who give
// them back. Run it with -race.
func TestInflightStress(t *testing.T) {
	const (
		pairs     = 8
		rowsEach  = 20_000
		queue     = 64
		largest   = 1 << 20
		mostAtOne = pairs * (queue + 2) * largest // queued, one in each hand
	)
	var b Inflight
	var pending sync.WaitGroup
	for range pairs {
		rows := make(chan int64, queue)
		pending.Go(func() {
			defer close(rows)
			for range rowsEach {
				n := rand.Int64N(largest + 1)
				if !b.Add(n) {
					t.Errorf("add %d met the bound", n)
				}
				rows <- n
			}
		})
		pending.Go(func() {
			for n := range rows {
				if usage := b.Usage(); usage < n || usage > mostAtOne {
					t.Errorf("usage is %d with a row of %d bytes in flight, want %d to %d", usage, n, n, mostAtOne)
				}
				if !b.Sub(n) {
					t.Errorf("sub %d met the bound", n)
				}
			}
		})
	}
	pending.Wait()
	if usage := b.Usage(); usage != 0 {
		t.Errorf("usage is %d after the drain, want 0", usage)
	}
}

// INV-13: no update is lost where goroutines do nothing but update, for a while.
// An update that were not atomic would be seen here.
func TestInflightStressTight(t *testing.T) {
	const (
		goroutines = 8
		batch      = 1000
		long       = 400 * time.Millisecond
	)
	var b Inflight
	var kept atomic.Int64
	var pending sync.WaitGroup
	begin := time.Now()
	for range goroutines {
		pending.Go(func() {
			for time.Since(begin) < long {
				for range batch {
					if !b.Add(3) || !b.Sub(2) {
						t.Error("met a bound")
						return
					}
				}
				kept.Add(batch)
			}
		})
	}
	pending.Wait()
	if usage := b.Usage(); usage != kept.Load() {
		t.Errorf("usage is %d, want %d", usage, kept.Load())
	}
}

// Bytes given back twice or too early, by many goroutines at once, never show a
// count outside its bounds.
func TestInflightStressOutOfOrder(t *testing.T) {
	const each = 20_000
	var b Inflight
	var pending sync.WaitGroup
	for _, c := range []call{{add, 7}, {sub, 7}, {sub, 7}, {add, math.MaxInt64}, {sub, math.MaxInt64}} {
		pending.Go(func() {
			for range each {
				b.do(c)
				if usage := b.Usage(); usage < 0 {
					t.Errorf("usage is %d", usage)
				}
			}
		})
	}
	pending.Wait()
}

func TestInflightAllocatesNothing(t *testing.T) {
	var b Inflight
	allocs := testing.AllocsPerRun(1000, func() {
		b.Add(500)
		b.Usage()
		b.Sub(500)
		b.Sub(1)
		b.Add(math.MaxInt64)
		b.Add(1)
		b.Sub(math.MaxInt64)
	})
	if allocs != 0 {
		t.Errorf("%v allocations, want 0", allocs)
	}
}
