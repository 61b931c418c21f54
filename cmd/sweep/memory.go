package main

import (
	"cmp"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/docker/go-units"

	"github.com/fairclaim/fairclaim/driver/node"
)

// byteSize is a number of bytes as a flag: 67108864, 64MiB, 1g; 0 is auto.
type byteSize int64

// UnmarshalText reads a size; units are powers of 1,024.
func (b *byteSize) UnmarshalText(text []byte) error {
	if string(text) == "auto" {
		*b = 0
		return nil
	}
	n, err := units.RAMInBytes(string(text))
	if err != nil || n <= 0 {
		return fmt.Errorf("%q is not a size in bytes; write 67108864, 64MiB, 1GiB, or auto", text)
	}
	*b = byteSize(n)
	return nil
}

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
	defaultBudget := byteSize(node.Defaults().Budget)
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
