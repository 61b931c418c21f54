package main

import (
	"math"
	"testing"
	"time"
)

func TestParseDuration(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for _, tt := range []struct {
		text string
		want time.Duration
		ok   bool
	}{
		{"0", 0, true},
		{"30s", 30 * time.Second, true},
		{"1h30m", 90 * time.Minute, true},
		{"7d", 7 * day, true},
		{"1d12h", 36 * time.Hour, true},
		{"1d0.5s", day + 500*time.Millisecond, true},
		{"0d", 0, true},
		{"-2d", -2 * day, true},
		{"-1d12h", -36 * time.Hour, true},
		{"106751d", 106751 * day, true},
		{"106752d", 0, false},
		{"106751d24h", 0, false},
		{"-106751d24h", 0, false},
		{"", 0, false},
		{"d", 0, false},
		{"7", 0, false},
		{"1.5d", 0, false},
		{"7days", 0, false},
		{"1d-12h", 0, false},
		{"1d+12h", 0, false},
		{"1d1d", 0, false},
		{"12h1d", 0, false},
		{"NaN", 0, false},
	} {
		got, err := parseDuration(tt.text)
		if (err == nil) != tt.ok || got != tt.want {
			t.Errorf("parseDuration(%q) = %v, %v; want %v", tt.text, got, err, tt.want)
		}
	}
	if got := duration(math.MaxInt64).interval(); got != "9223372036854775 microseconds" {
		t.Errorf("interval of the longest duration: %q", got)
	}
}
