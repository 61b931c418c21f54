package driver

import (
	"math"
	"testing"
	"time"
)

// Spans are rounded up: what is asked for is never over too soon.
func TestInterval(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 microseconds", time.Second: "1000000 microseconds", 999: "1 microseconds", 1000: "1 microseconds", 1001: "2 microseconds", -1500: "-1 microseconds",
		math.MaxInt64: "9223372036854776 microseconds",
	} {
		if got := interval(d); got != want {
			t.Errorf("%v is written %q, want %q", d, got, want)
		}
	}
}
