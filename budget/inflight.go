// Package budget counts the bytes that a process has claimed and not yet
// settled, so that a backlog of large messages cannot fill its memory.
//
// The sweep loop adds a row's payload when the row is claimed, and gives the
// bytes back once, when the row is settled, lost or abandoned. Each claim asks
// for what is left of the budget, and stops with the row that reaches it, so the
// count exceeds the budget by less than one payload. [Inflight] is only the
// count: what the limit is, and when claiming pauses, is decided by the caller.
//
// # The order of Add and Sub
//
// Each row's Add must happen before its Sub: add the bytes before the row is
// handed to anybody who could settle it. Usage is then at least n at every
// Sub(n), no bound is ever met, and after a drain usage is exactly 0 (INV-13).
//
// A Sub that overtakes its Add, or that gives a row back twice, is a bug of the
// caller, and the count is kept harmless: Sub takes what is there, stops at 0,
// and reports false. Usage never wraps to a huge number, which would pause
// claiming for ever, or to a negative one, which would lift the limit. A late
// Add then counts bytes that nobody gives back, so usage errs upwards. The other
// choice, a debt below 0 that the late Add would cancel, errs downwards: each
// row given back twice would lift the limit by its size, unseen and for good.
package budget

import (
	"math"
	"sync/atomic"
)

// Inflight is a number of bytes in flight, from 0 to [math.MaxInt64]. The zero
// value is ready, with nothing in flight.
//
// All methods may be called by many goroutines at once. They take no lock,
// start no goroutine and allocate nothing: an update is retried only where
// another one has come between, so there is always one that gets on. An
// Inflight must not be copied after its first use.
type Inflight struct {
	used atomic.Int64
}

// Add counts n more bytes as in flight. It stops at [math.MaxInt64].
//
// It reports whether all n bytes were counted. A negative n counts nothing and
// is false as well: Add never lowers the usage.
func (b *Inflight) Add(n int64) bool {
	return b.run(update{kind: add, n: n})
}

// Sub gives n bytes back. It stops at 0.
//
// It reports whether all n bytes had been in flight; false is worth a line in
// the log, for the caller has given a row back twice, or before its Add. A
// negative n gives nothing back and is false as well: Sub never raises the usage.
func (b *Inflight) Sub(n int64) bool {
	return b.run(update{kind: sub, n: n})
}

// Usage returns the bytes in flight. With other goroutines at work the answer
// may be old at once; it is never negative.
func (b *Inflight) Usage() int64 { return b.used.Load() }

func (b *Inflight) run(u update) bool {
	for !u.step(&b.used) {
	}
	return u.whole
}

type kind uint8

const (
	add kind = iota
	sub
)

// update is one Add or Sub under way. It is a value of its own, apart from the
// shared count, so that a test can drive several of them step by step through
// every order that goroutines could run them in.
type update struct {
	n      int64
	seen   int64 // the count as loaded
	kind   kind
	loaded bool // seen is set: the next step is the swap
	whole  bool // the last swap met no bound
}

// step makes the update's next step and reports whether the update is through.
// A step touches the shared count exactly once: it loads it, or swaps it if it
// is still what was loaded, and starts over if it is not. That the count may
// have changed and come back in between does no harm, for it is all the state
// there is.
func (u *update) step(used *atomic.Int64) (done bool) {
	if !u.loaded {
		u.seen = used.Load()
		u.loaded = true
		return false
	}
	u.loaded = false
	next, whole := u.apply(u.seen)
	u.whole = whole
	return used.CompareAndSwap(u.seen, next)
}

// apply returns what used, at least 0, becomes, and whether no bound was met.
// The comparisons are turned round so that no operation can overflow.
func (u *update) apply(used int64) (next int64, whole bool) {
	switch {
	case u.n < 0:
		return used, false
	case u.kind == add && u.n > math.MaxInt64-used:
		return math.MaxInt64, false
	case u.kind == add:
		return used + u.n, true
	case u.n > used:
		return 0, false
	default:
		return used - u.n, true
	}
}
