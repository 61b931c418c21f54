package budget

import (
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"sync/atomic"
	"testing"
)

// The tests in this file drive the steps of concurrent calls through every order
// that goroutines could run them in. What they step is update.step itself, which
// Add and Sub call in production; what they compare with is model. That a step
// touches the count only once is what they take for granted, and what the stress
// tests are for.

// program is what one goroutine calls, one after the other.
type program []call

// call is one Add or Sub, and how a failing schedule prints it.
type call struct {
	kind kind
	n    int64
}

func (c call) String() string {
	if c.kind == add {
		return fmt.Sprintf("add %d", c.n)
	}
	return fmt.Sprintf("sub %d", c.n)
}

// model applies c to used the plain way: exact arithmetic, then cut to the bounds.
func model(used int64, c call) (next int64, whole bool) {
	if c.n < 0 {
		return used, false
	}
	sum := new(big.Int)
	if c.kind == add {
		sum.Add(big.NewInt(used), big.NewInt(c.n))
	} else {
		sum.Sub(big.NewInt(used), big.NewInt(c.n))
	}
	switch {
	case sum.Sign() < 0:
		return 0, false
	case !sum.IsInt64():
		return math.MaxInt64, false
	default:
		return sum.Int64(), true
	}
}

// stepper is (*update).step, or a broken one that shows what the checker is worth.
type stepper func(u *update, used *atomic.Int64) (done bool)

// explorer walks the tree of all schedules of its programs, at most three.
// Schedules that come to the same state go on alike, so each state is entered
// once: still every step of every schedule, without walking their common ends
// again and again.
type explorer struct {
	step     stepper
	programs []program

	schedules map[state]int  // how many ways lead on from each state seen so far
	ends      map[int64]bool // every count that a schedule ended at
	trace     []moved        // the steps from the start to where the walk is
}

// state is one node of that tree.
type state struct {
	used    int64 // the shared count
	want    int64 // what the model says it is
	threads [3]thread
}

type thread struct {
	next     int // index of the call that comes next, or is under way
	underWay bool
	u        update
	retries  int
}

// moved is one step made, and the count after it.
type moved struct {
	goroutine int
	call      call
	used      int64
}

func (m moved) String() string {
	return fmt.Sprintf("goroutine %d in %q: count is %d", m.goroutine, m.call.String(), m.used)
}

// explore runs every interleaving of the programs' steps from the count start,
// and returns how many there are. It fails at the first step after which the
// count is not what the model makes of the calls that are through, in the order
// in which they got through; so each call takes effect at one instant, between
// its begin and its end, and no update is lost. It fails too when a call starts
// over more often than other calls could have got in between, for then calls
// could keep each other from ever getting through.
func (e *explorer) explore(start int64) (schedules int, err error) {
	e.schedules = map[state]int{}
	e.ends = map[int64]bool{}
	e.trace = nil
	return e.from(state{used: start, want: start})
}

func (e *explorer) from(s state) (schedules int, err error) {
	if known, ok := e.schedules[s]; ok {
		return known, nil
	}
	for i, p := range e.programs {
		if s.threads[i].next == len(p) {
			continue
		}
		next := s
		c := p[s.threads[i].next]
		err := e.advance(&next, i, c)
		e.trace = append(e.trace, moved{i, c, next.used})
		if err != nil {
			return 0, fmt.Errorf("%w after %v", err, e.trace)
		}
		n, err := e.from(next)
		if err != nil {
			return 0, err
		}
		schedules += n
		e.trace = e.trace[:len(e.trace)-1]
	}
	if schedules == 0 { // every program is through
		schedules = 1
		e.ends[s.used] = true
	}
	e.schedules[s] = schedules
	return schedules, nil
}

// advance lets goroutine i make the next step of its call c, and checks it.
func (e *explorer) advance(s *state, i int, c call) error {
	th := &s.threads[i]
	if !th.underWay {
		th.underWay = true
		th.u = update{kind: c.kind, n: c.n}
	}
	swapping := th.u.loaded

	var used atomic.Int64
	used.Store(s.used)
	done := e.step(&th.u, &used)
	s.used = used.Load()

	if done {
		var whole bool
		s.want, whole = model(s.want, c)
		if th.u.whole != whole {
			return fmt.Errorf("%v reports %t, want %t", c, th.u.whole, whole)
		}
		*th = thread{next: th.next + 1}
	} else if swapping {
		th.retries++
	}
	if s.used != s.want {
		return fmt.Errorf("the count is %d, want %d", s.used, s.want)
	}
	if others := e.callsBeside(i); th.retries > others {
		return fmt.Errorf("%v started over %d times beside %d other calls", c, th.retries, others)
	}
	return nil
}

func (e *explorer) callsBeside(goroutine int) int {
	n := 0
	for i, p := range e.programs {
		if i != goroutine {
			n += len(p)
		}
	}
	return n
}

// everyCall stands for the calls that differ: small and equal amounts, nothing,
// negative ones, and those that meet a bound from anywhere.
var everyCall = []call{
	{add, 3},
	{add, 5},
	{add, 0},
	{add, -3},
	{add, math.MaxInt64},
	{sub, 3},
	{sub, 5},
	{sub, 0},
	{sub, math.MinInt64},
	{sub, math.MaxInt64},
}

var everyStart = []int64{0, 3, 4, math.MaxInt64 - 4, math.MaxInt64}

// combinations calls f with every combination of k calls, repetition allowed.
// Their order does not matter: every schedule of them is run.
func combinations(k int, f func([]program)) {
	var choose func(from int, chosen []program)
	choose = func(from int, chosen []program) {
		if len(chosen) == k {
			f(chosen)
			return
		}
		for i := from; i < len(everyCall); i++ {
			choose(i, append(slices.Clip(chosen), program{everyCall[i]}))
		}
	}
	choose(0, nil)
}

// INV-13: no update is lost and the count stays within its bounds, in every
// interleaving of two and of three concurrent calls.
func TestEveryInterleaving(t *testing.T) {
	for _, test := range []struct {
		calls int
		least int // orders of the steps when no call has to start over
	}{
		{calls: 2, least: 6},  // 4! / 2!^2
		{calls: 3, least: 90}, // 6! / 2!^3
	} {
		t.Run(fmt.Sprintf("%d calls", test.calls), func(t *testing.T) {
			total := 0
			combinations(test.calls, func(programs []program) {
				for _, start := range everyStart {
					e := explorer{step: (*update).step, programs: programs}
					schedules, err := e.explore(start)
					if err != nil {
						t.Fatalf("%v from %d: %v", programs, start, err)
					}
					if schedules < test.least {
						t.Fatalf("%v from %d: only %d schedules, want at least %d", programs, start, schedules, test.least)
					}
					total += schedules
				}
			})
			t.Logf("%d schedules", total)
		})
	}
}

// INV-13: where the counts can end when goroutines make one call or several.
func TestInterleavedEnds(t *testing.T) {
	const top = math.MaxInt64
	for _, test := range []struct {
		name     string
		start    int64
		programs []program
		ends     []int64
	}{
		{
			"each add before its sub, two goroutines", 0,
			[]program{{{add, 3}, {sub, 3}}, {{add, 5}, {sub, 5}}},
			[]int64{0},
		},
		{
			"each add before its sub, three goroutines", 0,
			[]program{{{add, 3}, {sub, 3}}, {{add, 5}, {sub, 5}}, {{add, 3}, {sub, 3}}},
			[]int64{0},
		},
		{
			"rows added before, given back by two others while a third goes on", 8,
			[]program{{{sub, 3}}, {{sub, 5}}, {{add, 4}, {sub, 4}}},
			[]int64{0},
		},
		{
			"a sub may overtake its add: high, never wrapped", 0,
			[]program{{{add, 3}}, {{sub, 3}}},
			[]int64{0, 3},
		},
		{
			"a sub that overtakes its add takes from others, which the add makes good", 5,
			[]program{{{add, 3}}, {{sub, 3}}},
			[]int64{5},
		},
		{
			"a row given back twice", 3,
			[]program{{{sub, 3}}, {{sub, 3}}},
			[]int64{0},
		},
		{
			"adds that meet the top", top - 4,
			[]program{{{add, 3}}, {{add, 3}}, {{add, 3}}},
			[]int64{top},
		},
		{
			"an add and a sub at the top", top,
			[]program{{{add, 3}}, {{sub, 3}}},
			[]int64{top - 3, top},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := explorer{step: (*update).step, programs: test.programs}
			schedules, err := e.explore(test.start)
			if err != nil {
				t.Fatal(err)
			}
			if ends := slices.Sorted(maps.Keys(e.ends)); !slices.Equal(ends, test.ends) {
				t.Errorf("ends at one of %d, want %d (%d schedules)", ends, test.ends, schedules)
			}
		})
	}
}

// The checker itself must be able to fail: it finds each of these mistakes.
func TestInterleavingCheckerFindsMistakes(t *testing.T) {
	for _, test := range []struct {
		name string
		step stepper
	}{
		{"load then store", func(u *update, used *atomic.Int64) bool {
			if !u.loaded {
				return u.step(used)
			}
			var next int64
			next, u.whole = u.apply(u.seen)
			used.Store(next)
			return true
		}},
		{"a failed swap taken for done", func(u *update, used *atomic.Int64) bool {
			swapping := u.loaded
			return u.step(used) || swapping
		}},
		{"no new load after a failed swap", func(u *update, used *atomic.Int64) bool {
			done := u.step(used)
			u.loaded = true
			return done
		}},
		{"fetch and add, which wraps", func(u *update, used *atomic.Int64) bool {
			u.whole = true
			if u.kind == add {
				used.Add(u.n)
			} else {
				used.Add(-u.n)
			}
			return true
		}},
	} {
		for calls := 2; calls <= 3; calls++ {
			t.Run(fmt.Sprintf("%s, %d calls", test.name, calls), func(t *testing.T) {
				var found error
				combinations(calls, func(programs []program) {
					for _, start := range everyStart {
						if found != nil {
							return
						}
						e := explorer{step: test.step, programs: programs}
						_, found = e.explore(start)
					}
				})
				if found == nil {
					t.Fatal("the checker found nothing")
				}
				t.Log(found)
			})
		}
	}
}
