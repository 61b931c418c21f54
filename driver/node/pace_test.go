package node

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

// When a claim is due before its tick, by what the last claims brought and what was settled since.
func TestPaceEarly(t *testing.T) {
	const batch, roomForHalf = 10, 5
	claimed := func(brought, inFlight int) func(*pace) {
		return func(p *pace) { p.claimed(ended(batch, brought, inFlight)) }
	}
	type ask struct {
		room, inFlight int
		want           bool
	}
	never := []ask{{batch, 0, false}, {batch, 7, false}, {0, 0, false}}
	idle := []ask{{batch, 0, true}, {0, 0, true}, {batch, 1, false}}
	roomOrIdle := []ask{{roomForHalf, 7, true}, {roomForHalf - 1, 7, false}, {0, 0, true}}
	for name, test := range map[string]struct {
		happens []func(*pace)
		asks    []ask
	}{
		"the start":                          {nil, never},
		"a full claim":                       {[]func(*pace){claimed(batch, 0)}, roomOrIdle},
		"some":                               {[]func(*pace){claimed(3, 0)}, idle},
		"some, beside others":                {[]func(*pace){claimed(3, 4)}, idle},
		"none":                               {[]func(*pace){claimed(0, 0)}, never},
		"none, beside others":                {[]func(*pace){claimed(0, 4)}, never},
		"none after some that are in flight": {[]func(*pace){claimed(3, 0), claimed(0, 3)}, idle},
		"none after a full one that is in flight":  {[]func(*pace){claimed(batch, 0), claimed(0, batch)}, idle},
		"none after some that were settled":        {[]func(*pace){claimed(3, 0), claimed(0, 0)}, never},
		"a full one after none":                    {[]func(*pace){claimed(0, 0), claimed(batch, 0)}, roomOrIdle},
		"a message comes again at once":            {[]func(*pace){claimed(batch, 0), (*pace).atNextTick}, never},
		"other shards":                             {[]func(*pace){claimed(batch, 0), (*pace).now}, never}, // the tick is now
		"a claim after a message that comes again": {[]func(*pace){(*pace).atNextTick, claimed(3, 0)}, idle},
	} {
		p := &pace{tick: time.Second, fullRoom: roomForHalf}
		for _, happen := range test.happens {
			happen(p)
		}
		for _, ask := range test.asks {
			if got := p.early(ask.room, ask.inFlight); got != ask.want {
				t.Errorf("%s: with room for %d and %d in flight, early is %t", name, ask.room, ask.inFlight, got)
			}
		}
	}
}

// A claim is due with the tick, which is a fifth more or less from the one before; now after a
// change of shards; and an early one puts the tick off.
func TestPaceDue(t *testing.T) {
	const second = int64(time.Second)
	p := &pace{tick: time.Second, fullRoom: 5}
	if !p.due(1, 10, 0) {
		t.Error("the first claim is not due")
	}
	if p.nextAt < second*8/10 || p.nextAt > second*12/10+2 {
		t.Errorf("the next tick is at %v", time.Duration(p.nextAt))
	}
	p.claimed(ended(10, 0, 0))
	next := p.nextAt
	if p.due(next-1, 10, 0) || p.nextAt != next {
		t.Errorf("a claim is due before its tick")
	}
	if !p.due(next, 0, 3) || p.nextAt < next+second*8/10 {
		t.Errorf("no claim is due at its tick, or the next one is at %v", time.Duration(p.nextAt))
	}
	p.claimed(ended(10, 10, 3))
	if now := next + second/2; !p.due(now, 5, 13) || p.nextAt < now+second*8/10 {
		t.Errorf("no claim is due with room after a full one, or the next tick is at %v", time.Duration(p.nextAt))
	}
	p.now()
	if !p.due(next+second/2+1, 0, 13) {
		t.Error("no claim is due after the shards have changed")
	}
}

// When a Once has done its work, and what it ends with.
func TestPaceOver(t *testing.T) {
	boom := errors.New("boom")
	claimed := func(brought, inFlight int) func(*pace) {
		return func(p *pace) { p.claimed(ended(10, brought, inFlight)) }
	}
	back := func(p *pace) { p.handedBack(boom) }
	tried := (*pace).hasTried
	none := func(at time.Duration, inFlight int, outcome driver.Outcome) func(*pace) {
		return func(p *pace) { p.claimed(claim{at: int64(at), asked: 10, inFlight: inFlight, outcome: outcome}) }
	}
	cut, pastEnd := none(1, 0, driver.Cut), none(1, 0, driver.CutPastEnd)
	for name, test := range map[string]struct {
		happens   []func(*pace)
		inFlight  int
		maxClaims int64
		over      bool
		err       error
	}{
		"nothing has happened":                      {},
		"some were claimed":                         {happens: []func(*pace){claimed(3, 0)}, inFlight: 3},
		"none, with nothing in flight":              {happens: []func(*pace){claimed(0, 0)}, over: true},
		"none, with some in flight":                 {happens: []func(*pace){claimed(0, 3)}, inFlight: 3},
		"none, with some in flight, then delivered": {happens: []func(*pace){claimed(0, 3), tried}},
		"one claim of two":                          {happens: []func(*pace){claimed(3, 0)}, inFlight: 3, maxClaims: 2},
		"two claims of two":                         {happens: []func(*pace){claimed(3, 0), claimed(3, 3)}, inFlight: 6, maxClaims: 2, over: true},
		"all came back untried":                     {happens: []func(*pace){claimed(3, 0), back}, over: true, err: boom},
		"one came back, others are in flight":       {happens: []func(*pace){claimed(3, 0), back}, inFlight: 2},
		"one came back, others were tried":          {happens: []func(*pace){claimed(3, 0), back, tried}},
		"tried before the claim":                    {happens: []func(*pace){tried, claimed(3, 0), back}, over: true, err: boom},
		"tried before a claim beside others":        {happens: []func(*pace){claimed(1, 0), tried, claimed(3, 1), back}},
		"cut, and none so far":                      {happens: []func(*pace){cut, cut, cut}},
		"cut past the end once":                     {happens: []func(*pace){cut, pastEnd, cut}},
		"cut all round":                             {happens: []func(*pace){cut, pastEnd, cut, pastEnd}, over: true},
		"cut all round, some were claimed":          {happens: []func(*pace){cut, pastEnd, claimed(3, 0), cut, pastEnd}},
		"cut all round, then all round again":       {happens: []func(*pace){pastEnd, claimed(3, 0), pastEnd, pastEnd, pastEnd}, over: true},
		"cut all round, with some in flight":        {happens: []func(*pace){none(1, 3, driver.CutPastEnd), none(1, 3, driver.CutPastEnd)}, inFlight: 3},
		"shut out":                                  {happens: []func(*pace){none(1, 0, driver.ShutOut)}},
		"shut out for as long as it can last":       {happens: []func(*pace){none(1, 0, driver.ShutOut), none(20*time.Second+1, 0, driver.ShutOut)}},
		"shut out for longer":                       {happens: []func(*pace){none(1, 0, driver.ShutOut), none(20*time.Second+2, 0, driver.ShutOut)}, over: true, err: errShutOut},
		"shut out for longer, not all the time":     {happens: []func(*pace){none(1, 0, driver.ShutOut), claimed(3, 0), none(20*time.Second+2, 0, driver.ShutOut)}},
		"shut out, then none":                       {happens: []func(*pace){none(1, 0, driver.ShutOut), claimed(0, 0)}, over: true},
		"came back before the claim":                {happens: []func(*pace){back, claimed(3, 0)}},
	} {
		for _, once := range []bool{true, false} { // a Run is never over
			p := &pace{tick: time.Second, fullRoom: 5, once: once, maxClaims: test.maxClaims, shutOutLimit: 20 * time.Second}
			for _, happen := range test.happens {
				happen(p)
			}
			over, err := p.over(test.inFlight)
			if over != (test.over && once) || once && err != test.err || !once && err != nil {
				t.Errorf("%s: over is %t with %v (once %t)", name, over, err, once)
			}
		}
	}
}

// ended is a claim that was not cut or shut out.
func ended(asked, brought, inFlight int) claim {
	c := claim{asked: asked, brought: brought, inFlight: inFlight, outcome: driver.AllRound}
	if brought > 0 {
		c.outcome = driver.Served
	}
	return c
}

// Claims that are cut follow each other with pauses as long as they take, so that their walk takes no more
// than half of the time. Rounds that bring none put the next one off.
func TestPaceCut(t *testing.T) {
	const ms = int64(time.Millisecond)
	p := &pace{tick: 100 * time.Millisecond, fullRoom: 5}
	now := int64(1)
	for i, step := range []struct {
		brought int
		outcome driver.Outcome
		pause   int64 // after the claim
	}{
		{0, driver.Cut, 30 * ms},
		{0, driver.CutPastEnd, 30 * ms}, // it may have begun in the middle
		{0, driver.Cut, 30 * ms},
		{0, driver.Cut, 30 * ms},
		{0, driver.CutPastEnd, 150 * ms}, // as long as the round took
		{0, driver.Cut, 30 * ms},
		{0, driver.CutPastEnd, 100 * ms}, // a tick
		{3, driver.Cut, 30 * ms},
		{0, driver.CutPastEnd, 30 * ms}, // the round has brought some
		{0, driver.CutPastEnd, 30 * ms},
		{0, driver.CutPastEnd, 100 * ms},
	} {
		if !p.due(now, 10, 1) {
			t.Fatalf("claim %d is not due", i)
		}
		p.claimed(claim{at: now, took: 30 * ms, asked: 10, brought: step.brought, inFlight: 1, outcome: step.outcome})
		if got := p.nextAt - now - 30*ms; got != step.pause {
			t.Errorf("after claim %d, %s with %d rows, the pause is %v, want %v", i, step.outcome, step.brought, time.Duration(got), time.Duration(step.pause))
		}
		now = p.nextAt
	}
	p.claimed(claim{at: now, took: 60_000 * ms, asked: 10, inFlight: 1, outcome: driver.CutPastEnd})
	if pause := p.nextAt - now - 60_000*ms; pause != 5000*ms {
		t.Errorf("after a round of a minute, the pause is %v", time.Duration(pause))
	}
	now = p.nextAt
	p.due(now, 10, 0)
	p.claimed(ended(10, 0, 0))
	if pause := p.nextAt - now; pause < 80*ms || pause > 120*ms+1 {
		t.Errorf("after a claim that looked at all, the pause is %v", time.Duration(pause))
	}
}

// jitter stays within a fifth, uses both sides of it, and takes any time that a
// configuration can hold.
func TestJitter(t *testing.T) {
	for _, d := range []time.Duration{0, 1, 2, 3, 4, 5, 10, time.Millisecond, time.Hour, longest} {
		low, high := time.Duration(math.MaxInt64), time.Duration(0)
		for range 2000 {
			got := jitter(d)
			low, high = min(low, got), max(high, got)
		}
		if low < d-d/5 || high > d+d/5+1 {
			t.Errorf("jitter of %v gives %v to %v", d, low, high)
		}
		if d >= time.Millisecond && (low > d-d/6 || high < d+d/6) {
			t.Errorf("jitter of %v gives only %v to %v", d, low, high)
		}
	}
}
