package main

import (
	"context"
	"math"
	"slices"
	"time"
)

// summary is what many measurements come to. The zero value is none.
type summary struct {
	N      int     `json:"n"`
	Median float64 `json:"median"`
	P99    float64 `json:"p99"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// summarize does not change values. Below 100 of them the p99 is the largest.
func summarize(values []float64) summary {
	if len(values) == 0 {
		return summary{}
	}
	v := slices.Sorted(slices.Values(values))
	rank := func(q float64) float64 { return v[max(int(math.Ceil(q*float64(len(v)))), 1)-1] }
	median := v[len(v)/2]
	if len(v)%2 == 0 {
		median = (v[len(v)/2-1] + v[len(v)/2]) / 2
	}
	return summary{N: len(v), Median: median, P99: rank(0.99), Min: v[0], Max: v[len(v)-1]}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// interleave lets each step have its turn in every round, each round beginning with
// another one, so that what disturbs the machine for a while disturbs all alike.
func interleave(ctx context.Context, rounds int, steps ...func(context.Context) error) error {
	for round := range rounds {
		for i := range steps {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			if err := steps[(round+i)%len(steps)](ctx); err != nil {
				return err
			}
		}
	}
	return nil
}
