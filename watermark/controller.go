// Package watermark decides when a process pauses claiming and when it resumes.
//
// It is a state machine over two numbers, a high and a low watermark in bytes,
// and a clock that is passed in. It returns transitions and calls nothing. The
// sweep loop asks it once a tick, with the bytes in flight and whether its
// queues have drained, and tells it of every send that a full queue rejected.
//
// # Rules
//
//	claiming  pauses at a tick when a send was rejected since the last tick,
//	          or when usage >= high
//	paused    resumes at a tick when usage <= low, the queues are below low, and
//	          min pause has passed since the pause and since the last rejection
//	paused    a rejected send restarts min pause; the next tick forgets it, and
//	          does not resume
//
// # Hysteresis
//
// With one threshold a loop that hovers around it would switch at every row:
// claim one, pause, settle one, claim one. Two things keep the switches apart.
// The distance between high and low makes every pause worth a batch. Min pause
// bounds the cycles in time, also where sends are rejected at an empty budget,
// or low equals high: at most one pause begins in each min pause.
//
// So pauses and resumes strictly alternate, and once all is drained and quiet,
// claiming resumes at the latest at the first tick that is min pause after the
// one which saw it so (INV-12).
//
// # The clock
//
// The clock paces this process only; no message's fate depends on it. A
// monotonic one, as [time.Now] reads it, is best. With one that can be set, min
// pause counts from its lowest reading since the pause or the last rejection:
// each time it is set back, however far, a pause gets longer by min pause at
// most (counted from the next tick), and set forward it can end early.
package watermark

import (
	"errors"
	"fmt"
	"time"
)

// Transition is what a tick changed.
type Transition uint8

const (
	// None: as it was, claiming or paused.
	None Transition = iota
	// Pause: stop claiming.
	Pause
	// Resume: claim again.
	Resume
)

func (t Transition) String() string {
	switch t {
	case None:
		return "none"
	case Pause:
		return "pause"
	case Resume:
		return "resume"
	default:
		return fmt.Sprintf("Transition(%d)", uint8(t))
	}
}

// Reason is why a controller is paused.
type Reason uint8

const (
	// NotPaused is the reason while claiming.
	NotPaused Reason = iota
	// InFlightBytes: usage was at the high watermark or above.
	InFlightBytes
	// RejectedSend: a full queue rejected a send.
	RejectedSend
)

// String returns the reason as an operator reads it.
func (r Reason) String() string {
	switch r {
	case NotPaused:
		return "not paused"
	case InFlightBytes:
		return "in-flight bytes"
	case RejectedSend:
		return "rejected send"
	default:
		return fmt.Sprintf("Reason(%d)", uint8(r))
	}
}

// Controller is the state machine. Make one with [New]; it begins unpaused, and
// the zero value is not usable.
//
// One caller owns it: it has no lock and starts no goroutine, and its methods
// must not be called at the same time. None of them allocates.
type Controller struct {
	params Params
	now    func() time.Time

	rejected bool      // a send was rejected since the last tick
	reason   Reason    // NotPaused while claiming
	since    time.Time // while paused: the instant that MinPause counts from
}

// New returns a controller with the given parameters, which reads the time from
// now: when it pauses, and while it is paused. It fails on parameters out of
// their range, with an error that names the field and its value, and on a nil now.
func New(params Params, now func() time.Time) (*Controller, error) {
	if err := params.validate(); err != nil {
		return nil, err
	}
	if now == nil {
		return nil, errors.New("watermark: now is nil, want a clock")
	}
	return &Controller{params: params, now: now}, nil
}

// OnSendRejected notes that a queue was full and did not take a message. It
// pauses at the next tick, or, while paused, restarts MinPause from now on.
func (c *Controller) OnSendRejected() {
	c.rejected = true
	if c.Paused() {
		c.since = c.now()
	}
}

// Tick applies the rules of the package to the bytes in flight, and to whether
// every queue has drained below its own low mark, and returns what changed.
func (c *Controller) Tick(usageBytes int64, queuesBelowLow bool) Transition {
	rejected := c.rejected
	c.rejected = false
	switch {
	case c.Paused():
		if c.quiet(rejected) && usageBytes <= c.params.LowBytes && queuesBelowLow {
			c.reason = NotPaused
			return Resume
		}
		return None
	case rejected:
		return c.pause(RejectedSend)
	case usageBytes >= c.params.HighBytes:
		return c.pause(InFlightBytes)
	default:
		return None
	}
}

func (c *Controller) pause(why Reason) Transition {
	c.reason = why
	c.since = c.now()
	return Pause
}

// quiet reports whether MinPause has passed. It is asked at every tick of a
// pause, so that a clock which was set back is seen at the first one.
func (c *Controller) quiet(rejected bool) bool {
	now := c.now()
	if now.Before(c.since) {
		c.since = now
	}
	return !rejected && now.Sub(c.since) >= c.params.MinPause
}

// Paused reports whether claiming is paused.
func (c *Controller) Paused() bool { return c.reason != NotPaused }

// Reason returns why the present pause began, for an operator to see; a rejected
// send goes before the bytes where both did. What happens later in the pause
// does not change it. While claiming it is [NotPaused].
func (c *Controller) Reason() Reason { return c.reason }

// Params returns the parameters that the controller was made with.
func (c *Controller) Params() Params { return c.params }
