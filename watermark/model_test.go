package watermark

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// model is the rules of the package, told the dumb way: it keeps every event
// that ever was, and works out each answer from the whole of them.
type model struct {
	params Params
	events []event
}

// event is one call, and what a tick answered.
type event struct {
	at       time.Duration // the clock's reading
	rejected bool          // OnSendRejected; else a tick
	usage    int64
	queues   bool // below low
	answer   Transition
}

func (e event) String() string {
	if e.rejected {
		return fmt.Sprintf("%v rejected", e.at)
	}
	return fmt.Sprintf("%v tick(%d, %t)", e.at, e.usage, e.queues)
}

// answer is what e, which comes after all the model's events, must be answered.
func (m model) answer(e event) Transition {
	if e.rejected {
		return None
	}
	rejected := false
	for _, past := range m.events {
		rejected = past.rejected // the last event decides: a tick forgets it
	}
	if !m.paused() {
		if rejected || e.usage >= m.params.HighBytes {
			return Pause
		}
		return None
	}
	if !rejected && e.usage <= m.params.LowBytes && e.queues && e.at-m.lowestSince(e.at) >= m.params.MinPause {
		return Resume
	}
	return None
}

func (m model) paused() bool {
	paused := false
	for _, past := range m.events {
		switch past.answer {
		case Pause:
			paused = true
		case Resume:
			paused = false
		}
	}
	return paused
}

// lowestSince returns the clock's lowest reading since the pause began or the
// last send was rejected, up to now.
func (m model) lowestSince(now time.Duration) time.Duration {
	lowest := now
	for _, past := range m.events {
		if past.answer == Pause || past.rejected {
			lowest = past.at
		}
		lowest = min(lowest, past.at)
	}
	return min(lowest, now)
}

// subject is a controller and the clock it reads.
type subject struct {
	*Controller
	reading *time.Duration
}

func newSubject(t interface{ Fatal(...any) }, params Params) subject {
	reading := new(time.Duration)
	c, err := New(params, func() time.Time { return time.Unix(0, 0).Add(*reading) })
	if err != nil {
		t.Fatal(err)
	}
	return subject{c, reading}
}

func (s subject) do(e event) Transition {
	*s.reading = e.at
	if e.rejected {
		s.OnSendRejected()
		return None
	}
	return s.Tick(e.usage, e.queues)
}

// fork returns a copy that goes its own way.
func (s subject) fork() subject {
	c := *s.Controller
	return subject{&c, s.reading}
}

// INV-12: every sequence of up to five events, over the cases that the rules
// tell apart, with a clock that stands, advances or goes back, is answered as
// the model answers it.
func TestEverySequenceAgreesWithModel(t *testing.T) {
	const depth = 5
	for _, minPause := range []time.Duration{0, 2} {
		params := Params{HighBytes: 3, LowBytes: 1, MinPause: minPause}
		sequences := 0
		var explore func(s subject, m model)
		explore = func(s subject, m model) {
			if len(m.events) == depth {
				sequences++
				return
			}
			for _, e := range nextEvents(m, params) {
				fork := s.fork()
				e.answer = m.answer(e)
				if got := fork.do(e); got != e.answer {
					t.Fatalf("%+v: %v answers %v, want %v, after %v", params, e, got, e.answer, m.events)
				}
				next := model{params, append(m.events[:len(m.events):len(m.events)], e)}
				if fork.Paused() != next.paused() {
					t.Fatalf("%+v: paused is %t after %v", params, fork.Paused(), next.events)
				}
				explore(fork, next)
			}
		}
		explore(newSubject(t, params), model{params: params})
		t.Logf("min pause %d: %d sequences", minPause, sequences)
	}
}

func nextEvents(m model, params Params) []event {
	var last time.Duration
	if n := len(m.events); n > 0 {
		last = m.events[n-1].at
	}
	var next []event
	for _, advance := range []time.Duration{-1, 0, 1} {
		at := last + advance
		next = append(next,
			event{at: at, rejected: true},
			event{at: at, usage: params.LowBytes, queues: true},
			event{at: at, usage: params.LowBytes, queues: false},
			event{at: at, usage: params.LowBytes + 1, queues: true},
			event{at: at, usage: params.HighBytes, queues: true},
		)
	}
	return next
}

func anyParams() *rapid.Generator[Params] {
	return rapid.Custom(func(t *rapid.T) Params {
		high := rapid.OneOf(rapid.Int64Range(1, 10), rapid.Int64Range(1, math.MaxInt64)).Draw(t, "high")
		return Params{
			HighBytes: high,
			LowBytes:  rapid.Int64Range(0, high).Draw(t, "low"),
			MinPause:  time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "min pause")),
		}
	})
}

// anyUsage draws from both sides of each watermark, and from beyond.
func anyUsage(p Params) *rapid.Generator[int64] {
	return rapid.OneOf(
		rapid.SampledFrom([]int64{
			math.MinInt64, -1, 0, p.LowBytes - 1, p.LowBytes, p.HighBytes - 1, p.HighBytes, math.MaxInt64,
		}),
		rapid.Int64Range(0, p.HighBytes),
	)
}

// anyAdvance draws steps of the clock on both sides of min pause.
func anyAdvance(p Params) *rapid.Generator[time.Duration] {
	return rapid.SampledFrom([]time.Duration{
		0, 1, p.MinPause / 2, max(0, p.MinPause-1), p.MinPause, p.MinPause + 1,
	})
}

// anyEvent draws an event that comes after the clock's reading last.
func anyEvent(p Params, last time.Duration, clockGoesBack bool) *rapid.Generator[event] {
	return rapid.Custom(func(t *rapid.T) event {
		advance := anyAdvance(p).Draw(t, "advance")
		if clockGoesBack && rapid.IntRange(0, 3).Draw(t, "back") == 0 {
			advance = -advance
		}
		if rapid.IntRange(0, 3).Draw(t, "kind") == 0 {
			return event{at: last + advance, rejected: true}
		}
		return event{
			at:     last + advance,
			usage:  anyUsage(p).Draw(t, "usage"),
			queues: rapid.Bool().Draw(t, "queues below low"),
		}
	})
}

// INV-12: long random lives agree with the model.
func TestAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		params := anyParams().Draw(t, "params")
		s, m := newSubject(t, params), model{params: params}
		t.Repeat(map[string]func(*rapid.T){
			"event": func(t *rapid.T) {
				e := anyEvent(params, *s.reading, true).Draw(t, "event")
				e.answer = m.answer(e)
				if got := s.do(e); got != e.answer {
					t.Fatalf("%v answers %v, want %v", e, got, e.answer)
				}
				m.events = append(m.events, e)
			},
			"": func(t *rapid.T) {
				if s.Paused() != m.paused() {
					t.Fatalf("paused is %t", s.Paused())
				}
			},
		})
	})
}
