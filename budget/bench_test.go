package budget_test

import (
	"testing"

	"github.com/fairclaim/fairclaim/budget"
)

func BenchmarkAdd(b *testing.B) {
	var inflight budget.Inflight
	b.ReportAllocs()
	for b.Loop() {
		inflight.Add(1)
	}
}

func BenchmarkAddSub(b *testing.B) {
	var inflight budget.Inflight
	b.ReportAllocs()
	for b.Loop() {
		inflight.Add(500)
		inflight.Sub(500)
	}
}

func BenchmarkUsage(b *testing.B) {
	var inflight budget.Inflight
	b.ReportAllocs()
	for b.Loop() {
		inflight.Usage()
	}
}

// BenchmarkAddSubContended has every processor (16 goroutines on each) update
// one count, with nothing else to do between: far worse than a sweep loop.
func BenchmarkAddSubContended(b *testing.B) {
	var inflight budget.Inflight
	b.ReportAllocs()
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			inflight.Add(500)
			inflight.Sub(500)
		}
	})
	if used := inflight.Usage(); used != 0 {
		b.Fatalf("usage is %d after balanced calls, want 0", used)
	}
}
