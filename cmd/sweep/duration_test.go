package main

import (
	"math"
	"strings"
	"testing"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/when"
)

// A duration is written as it is read.
func TestDurationText(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"0s", "30s", "10s", "90ms", "20m", "10m", "1h30m", "2h", "10h", "7d", "1d12h", "366d", "9999d", "-2d", "-1d12h", "1d0.5s"} {
		d, err := when.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := duration(d).String(), strings.Replace(text, "1d0.5s", "1d500ms", 1); got != want {
			t.Errorf("%q is written as %q", text, got)
		}
	}
	if got := duration(math.MaxInt64).interval(); got != "9223372036854775 microseconds" {
		t.Errorf("interval of the longest duration: %q", got)
	}
}
