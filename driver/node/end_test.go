package node

import (
	"testing"
	"time"
)

// TestDrainTimes: a drain keeps to the time that it is given, and most of that is for deliveries to finish.
func TestDrainTimes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ whole, finish, stop time.Duration }{
		{30 * time.Second, 25 * time.Second, 5 * time.Second},
		{8 * time.Second, 6 * time.Second, 2 * time.Second}, // in a container, killed after 10 s
		{4 * time.Second, 3 * time.Second, time.Second},
		{time.Hour, time.Hour - 5*time.Second, 5 * time.Second},
		{40 * time.Millisecond, 30 * time.Millisecond, time.Second},
	} {
		if finish, stop := drainTimes(c.whole); finish != c.finish || stop != c.stop {
			t.Errorf("%v: %v and %v, want %v and %v", c.whole, finish, stop, c.finish, c.stop)
		}
	}
}
