package watermark_test

import (
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/watermark"
)

func newController(b *testing.B, minPause time.Duration) *watermark.Controller {
	b.Helper()
	c, err := watermark.New(watermark.Params{HighBytes: 800, LowBytes: 500, MinPause: minPause}, time.Now)
	if err != nil {
		b.Fatal(err)
	}
	return c
}

func BenchmarkTickClaiming(b *testing.B) {
	c := newController(b, time.Second)
	b.ReportAllocs()
	for b.Loop() {
		c.Tick(799, true)
	}
}

// BenchmarkTickPaused includes a reading of the system's clock, as does
// BenchmarkCycle twice.
func BenchmarkTickPaused(b *testing.B) {
	c := newController(b, time.Hour)
	c.Tick(800, true)
	b.ReportAllocs()
	for b.Loop() {
		c.Tick(0, true)
	}
}

func BenchmarkCycle(b *testing.B) {
	c := newController(b, 0)
	b.ReportAllocs()
	for b.Loop() {
		c.Tick(800, true)
		c.Tick(0, true)
	}
}
