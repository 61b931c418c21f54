package node

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

// pace decides when the next claim is due, and when a Once has done its work. It belongs to
// the loop's goroutine. Instants are clock times in nanoseconds.
//
// A claim is due with the next tick, or sooner, by what has happened since the last claims:
//
//	what happened                                     the next claim is due
//	the start                                         now
//	the node was given other shards                   now: what they hold may have waited
//	a claim came back full                            when there is room for half a one, or nothing is in flight
//	a claim brought some                              when nothing is in flight: a ceiling may have held more back
//	a claim brought none, others are in flight        as before, but no more because of room
//	a claim brought none, nothing was in flight       with the next tick
//	a claim was cut                                   after as long as it took: its walk must go on, but
//	                                                  not take more than half of the time
//	they were, past the end of the ring, twice or     after as long as the last round took, at least a tick,
//	more often, and brought none                      at most 5 s
//	a settle left a message due at that moment        with the next tick: the next claim would bring it again
//
// A Once has done its work, and ends with an error or without:
//
//	what happened                                                              ends with
//	a claim that was made with nothing in flight brought none: it looked at
//	all, or claims that were cut have come past the end of the ring twice      nil
//	the claims that it may make were made                                      nil
//	nothing is in flight, and since the last claim that was made with nothing
//	in flight no message was tried, and a sink has handed one back             that message's error
//	other claims have shut it out for longer than any may be left open         errShutOut
type pace struct {
	tick         time.Duration // time between claims while there is little to do, before jitter
	fullRoom     int           // room for so many rows is worth a claim
	once         bool          // a Once: it ends
	maxClaims    int64         // of a Once; 0: any number
	shutOutLimit time.Duration // how long others may shut a Once out; above the setting claim_idle_timeout

	nextAt      int64         // the next tick
	sooner      earlier       // than the next tick
	claims      int64         // made so far
	foundNone   bool          // the last claim that was made with nothing in flight brought none
	emptyRounds int           // how often cut claims have come past the end of the ring since one brought some: the first round may have begun anywhere
	roundFrom   int64         // when the first cut claim of this round was made; 0: none was
	roundServed bool          // a claim of this round brought some
	shutOutFrom int64         // when the first of the claims that were shut out was made; 0: the last one was not
	shutOutFor  time.Duration // since then
	tried       bool          // since the last claim with nothing in flight, a message has been tried
	handback    error         // since that claim, a sink has handed a message back with this
}

// longestRest is the longest pause after a round of cut claims that brought none.
const longestRest = 5 * time.Second

var errShutOut = errors.New("other claims hold the shards, or the node's name: see sweep nodes, and sweep explain")

// claim is what pace must know of one.
type claim struct {
	at, took       int64 // clock time, and nanoseconds
	asked, brought int   // rows
	inFlight       int   // messages, before the claim
	outcome        driver.Outcome
}

// earlier is what makes a claim due before its tick.
type earlier int

const (
	atTick             earlier = iota // nothing
	whenIdle                          // nothing is in flight
	whenRoomOrWhenIdle                // there is room, or nothing is in flight
)

// early reports whether the next claim need not wait for its tick.
func (p *pace) early(room, inFlight int) bool {
	return p.sooner == whenRoomOrWhenIdle && room >= p.fullRoom || p.sooner != atTick && inFlight == 0
}

// due reports whether it is time for a claim; then the next tick is one from now.
func (p *pace) due(now int64, room, inFlight int) bool {
	if now < p.nextAt && !p.early(room, inFlight) {
		return false
	}
	p.nextAt = now + int64(jitter(p.tick))
	return true
}

// claimed notes a claim.
func (p *pace) claimed(c claim) {
	p.claims++
	switch {
	case c.brought == c.asked:
		p.sooner = whenRoomOrWhenIdle
	case c.brought > 0 || c.inFlight > 0 && p.sooner != atTick:
		p.sooner = whenIdle
	default:
		p.sooner = atTick
	}
	wasCut := c.outcome == driver.Cut || c.outcome == driver.CutPastEnd
	if wasCut {
		p.cut(c)
	} else {
		p.emptyRounds, p.roundFrom, p.roundServed = 0, 0, false
	}
	p.shutOutFor = 0
	if c.outcome != driver.ShutOut {
		p.shutOutFrom = 0
	} else if p.shutOutFrom == 0 {
		p.shutOutFrom = c.at
	} else {
		p.shutOutFor = time.Duration(c.at - p.shutOutFrom)
	}
	if c.inFlight == 0 {
		done := c.outcome == driver.AllRound || wasCut && p.emptyRounds >= 2
		p.foundNone, p.tried, p.handback = c.brought == 0 && done, false, nil
	}
}

// cut notes a claim that was cut: the walk goes on soon, and at the end of a whole round that
// brought none it rests.
func (p *pace) cut(c claim) {
	end := c.at + c.took
	p.nextAt = min(p.nextAt, end+c.took)
	if p.roundFrom == 0 {
		p.roundFrom = c.at
	}
	if c.brought > 0 {
		p.emptyRounds, p.roundServed = 0, true
	}
	if c.outcome != driver.CutPastEnd {
		return
	}
	if !p.roundServed {
		p.emptyRounds++
		if !p.once && p.emptyRounds > 1 {
			p.nextAt = end + max(int64(p.tick), min(end-p.roundFrom, int64(longestRest)))
		}
	}
	p.roundFrom, p.roundServed = 0, false
}

// hasTried notes that a message has been tried: a Once gets on.
func (p *pace) hasTried() { p.tried = true }

// handedBack notes that a sink has handed a message back untried.
func (p *pace) handedBack(err error) { p.handback = err }

// atNextTick notes that a claim before the next tick would bring what was just given back.
func (p *pace) atNextTick() { p.sooner = atTick }

// now makes a claim due.
func (p *pace) now() { p.sooner, p.nextAt = atTick, 0 }

// over reports whether a Once has done its work, and what it ends with.
func (p *pace) over(inFlight int) (bool, error) {
	if !p.once {
		return false, nil
	}
	if inFlight == 0 && !p.tried && p.handback != nil {
		return true, p.handback
	}
	if p.shutOutFor > p.shutOutLimit {
		return true, errShutOut
	}
	return p.foundNone || p.maxClaims > 0 && p.claims >= p.maxClaims, nil
}

// jitter spreads a duration by a fifth to both sides.
func jitter(d time.Duration) time.Duration {
	return d - d/5 + rand.N(2*d/5+1)
}
