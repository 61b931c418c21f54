package node

import (
	"testing"
	"time"
)

// After a full chunk prune rests three times as long as that took; as long as that where the node settles more than is pruned, if
// prunes are made beside its other calls.
func TestPruneRest(t *testing.T) {
	t.Parallel()
	const every = 1_000_000
	l := &loop{config: Config{PruneEvery: every, Observer: nobody{}}, stats: &counters{}, clock: func() int64 { return 500 }, pruneBeside: true}
	settles := func(n int64) func() { return func() { l.stats.done.Add(n) } }
	for i, step := range []struct {
		before   func()
		messages int
		rest     int64 // 0: it is due after PruneEvery
	}{
		{settles(100_000), 10, 0},
		{settles(999), maxRows, 3 * 10},
		{settles(1), maxRows, 3 * 10}, // it is ahead
		{settles(3500), maxRows, 10},  // now 2,500 behind
		{settles(0), maxRows, 10},
		{settles(0), maxRows, 3 * 10},
		{settles(400), maxRows, 3 * 10},
		{settles(1900), maxRows, 3 * 10},
		{settles(1200), maxRows, 10},
		{func() { l.pruneBeside = false }, maxRows, 3 * 10},
		{settles(5000), maxRows, 3 * 10},
		{settles(0), 999, 0},
		{func() { l.pruneBeside = true }, maxRows, 3 * 10},
	} {
		step.before()
		l.cutPruning = func() {}
		l.pruned(t.Context(), prune{messages: step.messages, began: 100, ended: 110})
		at := l.duties.prune.at
		if step.rest > 0 && at != 110+step.rest || step.rest == 0 && (at < every*4/5 || time.Duration(at) > 100+jitterMost(every)) {
			t.Errorf("step %d: due at %d, want %d behind its end (0: PruneEvery)", i, at, step.rest)
		}
	}
}
