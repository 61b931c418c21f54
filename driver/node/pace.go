package node

import (
	"math/rand/v2"
	"time"
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
//	a claim brought none, others are in flight        as before, but not because of room
//	a claim brought none, nothing was in flight       with the next tick
//	a settle left a message due at that moment        with the next tick: the next claim would bring it again
//
// A Once has done its work, and ends with an error or without:
//
//	what happened                                                              ends with
//	a claim that was made with nothing in flight brought none                  nil
//	the claims that it may make were made                                      nil
//	nothing is in flight, and since the last claim that was made with nothing
//	in flight no message was tried, and a sink has handed one back             that message's error
type pace struct {
	tick      time.Duration // time between claims while there is little to do, before jitter
	fullRoom  int           // room for so many rows is worth a claim
	once      bool          // a Once: it ends
	maxClaims int64         // of a Once; 0: any number

	nextAt    int64   // the next tick
	sooner    earlier // than the next tick
	claims    int64   // made so far
	foundNone bool    // the last claim that was made with nothing in flight brought none
	tried     bool    // since that claim, a message has been tried
	handback  error   // since that claim, a sink has handed a message back with this
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

// claimed notes a claim: how many rows it asked for and brought, and how many messages were in
// flight before it.
func (p *pace) claimed(asked, brought, inFlight int) {
	p.claims++
	switch {
	case brought == asked:
		p.sooner = whenRoomOrWhenIdle
	case brought > 0 || inFlight > 0 && p.sooner != atTick:
		p.sooner = whenIdle
	default:
		p.sooner = atTick
	}
	if inFlight == 0 {
		p.foundNone, p.tried, p.handback = brought == 0, false, nil
	}
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
	return p.foundNone || p.maxClaims > 0 && p.claims >= p.maxClaims, nil
}

// jitter spreads a duration by a fifth to both sides.
func jitter(d time.Duration) time.Duration {
	return d - d/5 + rand.N(2*d/5+1)
}
