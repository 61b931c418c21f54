package watermark

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The properties of INV-12, each checked by itself and without the model, so
// that a mistake which the model shares is found too.

// INV-12: pause and resume strictly alternate, a pause first, whatever comes in,
// and Paused and Reason tell the same.
func TestAlternates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		params := anyParams().Draw(t, "params")
		s := newSubject(t, params)
		last := Resume
		t.Repeat(map[string]func(*rapid.T){
			"event": func(t *rapid.T) {
				e := anyEvent(params, *s.reading, true).Draw(t, "event")
				answer := s.do(e)
				if answer == None {
					return
				}
				if answer == last {
					t.Fatalf("%v answers %v a second time in a row", e, answer)
				}
				last = answer
			},
			"": func(t *rapid.T) {
				if paused := last == Pause; s.Paused() != paused || (s.Reason() != NotPaused) != paused {
					t.Fatalf("paused is %t for the reason %q after %v", s.Paused(), s.Reason(), last)
				}
			},
		})
	})
}

// INV-12: at most one pause begins in each min pause, against an adversary who
// sees the state and does what switches it soonest.
func TestOneCyclePerMinPause(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		params := anyParams().Draw(t, "params")
		s := newSubject(t, params)
		var pauses []time.Duration
		do := func(e event) {
			if s.do(e) != Pause {
				return
			}
			if n := len(pauses); n > 0 && e.at-pauses[n-1] < params.MinPause {
				t.Fatalf("pauses at %v and at %v, less than %v apart", pauses[n-1], e.at, params.MinPause)
			}
			pauses = append(pauses, e.at)
		}
		t.Repeat(map[string]func(*rapid.T){
			"anything": func(t *rapid.T) { do(anyEvent(params, *s.reading, false).Draw(t, "event")) },
			"switch": func(t *rapid.T) {
				at := *s.reading + anyAdvance(params).Draw(t, "advance")
				switch {
				case s.Paused():
					do(event{at: at, usage: 0, queues: true})
				case rapid.Bool().Draw(t, "by a rejected send"):
					do(event{at: at, rejected: true})
					do(event{at: at, usage: 0, queues: true})
				default:
					do(event{at: at, usage: params.HighBytes})
				}
			},
		})
	})
}

// INV-12: a resume needs usage at or below low, queues drained, no send rejected
// since the last tick, and min pause since the pause and the last rejection.
func TestResumeNeedsAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		params := anyParams().Draw(t, "params")
		s := newSubject(t, params)
		var lastPause, lastRejected time.Duration
		rejected := false
		t.Repeat(map[string]func(*rapid.T){
			"event": func(t *rapid.T) {
				e := anyEvent(params, *s.reading, false).Draw(t, "event")
				answer := s.do(e)
				if answer == Resume {
					if e.usage > params.LowBytes || !e.queues || rejected {
						t.Fatalf("%v resumes; a send was rejected: %t", e, rejected)
					}
					if since := e.at - max(lastPause, lastRejected); since < params.MinPause {
						t.Fatalf("%v resumes after only %v of quiet", e, since)
					}
				}
				if answer == Pause {
					lastPause = e.at
				}
				rejected = e.rejected
				if e.rejected && s.Paused() {
					lastRejected = e.at
				}
			},
		})
	})
}

// INV-12: after any life, with any jumps of the clock, a controller that is
// drained and quiet claims again at the first tick that is min pause later.
func TestResumesOnceDrainedAndQuiet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		params := anyParams().Draw(t, "params")
		s := newSubject(t, params)
		for range rapid.IntRange(0, 30).Draw(t, "events") {
			s.do(anyEvent(params, *s.reading, true).Draw(t, "event"))
		}
		if rapid.Bool().Draw(t, "set far back") {
			*s.reading -= 24 * time.Hour
		}

		drained := event{at: *s.reading, usage: min(params.LowBytes, params.HighBytes-1), queues: true}
		s.do(drained)
		end := drained.at + params.MinPause
		for drained.at < end {
			drained.at = min(end, drained.at+max(1, anyAdvance(params).Draw(t, "advance"), params.MinPause/10))
			s.do(drained)
		}
		if params.MinPause == 0 {
			s.do(drained)
		}
		if s.Paused() {
			t.Fatalf("still paused (%v) %v after it was drained and quiet", s.Reason(), params.MinPause)
		}
	})
}

func TestStrings(t *testing.T) {
	for _, test := range []struct {
		got  interface{ String() string }
		want string
	}{
		{None, "none"},
		{Pause, "pause"},
		{Resume, "resume"},
		{Transition(7), "Transition(7)"},
		{NotPaused, "not paused"},
		{InFlightBytes, "in-flight bytes"},
		{RejectedSend, "rejected send"},
		{Reason(7), "Reason(7)"},
	} {
		if got := test.got.String(); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

// While claiming the clock is not read: a tick is two comparisons.
func TestReadsNoClockWhileClaiming(t *testing.T) {
	c, err := New(Params{HighBytes: 800, LowBytes: 500}, func() time.Time {
		t.Error("the clock was read")
		return time.Time{}
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Tick(0, true)
	c.Tick(799, false)
	c.OnSendRejected()
}

func TestAllocatesNothing(t *testing.T) {
	c, err := New(Params{HighBytes: 800, LowBytes: 500}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	allocs := testing.AllocsPerRun(1000, func() {
		c.Tick(0, true)
		c.Tick(800, true) // pauses
		c.OnSendRejected()
		c.Tick(0, true)
		c.Tick(0, true) // resumes
	})
	if allocs != 0 {
		t.Errorf("%v allocations, want 0", allocs)
	}
}
