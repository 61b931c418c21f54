package main

import (
	"cmp"
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/docker/go-units"
)

// defaultBudget is the byte budget where memory is not short.
const defaultBudget = 64 << 20

// Shares of the memory that the container may use. The garbage collector keeps its heap
// below nine tenths: the rest is for memory that it does not count. Payloads in flight may
// fill a quarter: each payload is in memory twice, as it was read and as it is sent, and
// delivered payloads wait for the collector.
const (
	collectorShare = 0.9
	budgetShare    = 0.25
)

// fitMemory returns the byte budget: the given one, or for 0 the default. Where the
// container has a memory limit and GOMEMLIMIT is not set, it keeps the garbage collector
// below that limit: a process that is killed for its memory settles no message.
func fitMemory(a *app, budget byteSize) byteSize {
	limit, err := memlimit.FromCgroup()
	if err != nil || limit == 0 || limit >= 1<<62 {
		return cmp.Or(budget, defaultBudget)
	}
	if _, set := os.LookupEnv("GOMEMLIMIT"); !set {
		debug.SetMemoryLimit(int64(float64(limit) * collectorShare))
	}
	share := max(byteSize(float64(limit)*budgetShare), 1)
	switch {
	case budget == 0:
		budget = min(defaultBudget, share)
	case budget > 2*share:
		a.log.Warn("--budget is more than half of the memory that this process may use: the system may kill the process when payloads fill the budget",
			"budget", units.BytesSize(float64(budget)), "memory_limit", units.BytesSize(float64(limit)))
	}
	return budget
}
