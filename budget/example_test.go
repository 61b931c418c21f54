package budget_test

import (
	"fmt"

	"github.com/fairclaim/fairclaim/budget"
)

// A claim asks for what is left of the limit; every row is added before it is
// handed on, and given back once when it is settled.
func Example() {
	const limit = 1 << 20 // bytes
	var inflight budget.Inflight

	rows := [][]byte{make([]byte, 600_000), make([]byte, 500_000)}
	for _, payload := range rows {
		inflight.Add(int64(len(payload)))
	}
	fmt.Println("in flight:", inflight.Usage(), "bytes")
	fmt.Println("left:", max(0, limit-inflight.Usage()), "bytes")

	for _, payload := range rows {
		inflight.Sub(int64(len(payload)))
	}
	fmt.Println("drained:", inflight.Usage(), "bytes")
	// Output:
	// in flight: 1100000 bytes
	// left: 0 bytes
	// drained: 0 bytes
}

// A row given back twice is reported, and the count stays at 0.
func ExampleInflight_Sub() {
	var inflight budget.Inflight
	inflight.Add(500)
	fmt.Println(inflight.Sub(500), inflight.Usage())
	fmt.Println(inflight.Sub(500), inflight.Usage())
	// Output:
	// true 0
	// false 0
}
