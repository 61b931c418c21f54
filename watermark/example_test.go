package watermark_test

import (
	"fmt"
	"time"

	"github.com/fairclaim/fairclaim/watermark"
)

// A sweep loop ticks the controller and claims while it is not paused. Here the
// clock is a variable; a program passes time.Now.
func Example() {
	params, err := watermark.ParamsFromBudget(1000, 0.8, 0.5, 500*time.Millisecond)
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Date(2025, 1, 1, 12, 0, 0, 0, time.UTC)
	controller, err := watermark.New(params, func() time.Time { return now })
	if err != nil {
		fmt.Println(err)
		return
	}

	for _, usage := range []int64{400, 850, 600, 450, 700} {
		transition := controller.Tick(usage, true)
		fmt.Printf("%s  %d bytes  %-6v  %v\n", now.Format("05.0"), usage, transition, controller.Reason())
		now = now.Add(300 * time.Millisecond)
	}
	// Output:
	// 00.0  400 bytes  none    not paused
	// 00.3  850 bytes  pause   in-flight bytes
	// 00.6  600 bytes  none    in-flight bytes
	// 00.9  450 bytes  resume  not paused
	// 01.2  700 bytes  none    not paused
}

// A full queue pauses claiming at any usage.
func ExampleController_OnSendRejected() {
	params := watermark.Params{HighBytes: 800, LowBytes: 500}
	controller, err := watermark.New(params, time.Now)
	if err != nil {
		fmt.Println(err)
		return
	}
	controller.OnSendRejected()
	fmt.Println(controller.Tick(10, false), controller.Reason())
	fmt.Println(controller.Tick(10, false)) // the queues are still full
	fmt.Println(controller.Tick(10, true))
	// Output:
	// pause rejected send
	// none
	// resume
}

// The defaults of sweep: pause at 0.8 of 64 MiB, resume at 0.5.
func ExampleParamsFromBudget() {
	fmt.Println(watermark.ParamsFromBudget(64<<20, 0.8, 0.5, 500*time.Millisecond))
	fmt.Println(watermark.ParamsFromBudget(64<<20, 1.5, 0.5, 0))
	// Output:
	// {53687091 33554432 500ms} <nil>
	// {0 0 0s} watermark: highRatio is 1.5, want more than 0 and at most 1
}
