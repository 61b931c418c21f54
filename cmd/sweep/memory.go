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

// Of the memory that a container may use, the garbage collector is held to nine tenths, for
// what it does not count, and payloads in flight to a quarter: each is there once as it is
// read and once as it is sent, and what was delivered waits for the collector.
const (
	collectorShare = 0.9
	budgetShare    = 0.25
)

// fitMemory returns the byte budget, given or by default, and keeps the garbage collector
// below the memory limit of this process's container, where it has one and GOMEMLIMIT does
// not say otherwise: a process that is killed for its memory settles nothing.
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
		a.log.Warn("--budget is more than half of the memory that this process may use: it may be killed when payloads fill it",
			"budget", units.BytesSize(float64(budget)), "memory_limit", units.BytesSize(float64(limit)))
	}
	return budget
}
