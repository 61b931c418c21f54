package node

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/fairclaim/fairclaim/driver"
)

// item is a claimed message on its way through the process.
type item struct {
	driver.Delivery
	bytes   int64  // of its payload: its part of the budget, while they count there
	counted bool   // its bytes count in the budget; the ledger's own, like the next one
	place   place  // where it is, or was last
	misread int    // how often its payload could not be read
	queue   *queue // where it is delivered
	outcome        // of the delivery; read once it is in dispatcher.results

	claimedAt int64 // when the claim had returned, in loop.clock time

	lost    atomic.Bool  // the claim is no longer ours: not worth delivering any more
	leased  atomic.Int64 // until when the lease surely holds, in dispatcher.clock time
	started atomic.Int64 // when the delivery began, in dispatcher.clock time; 0: not yet
	cancel  atomic.Pointer[context.CancelCauseFunc]
}

// place is where a message in flight is; the ledger's table says what each means.
type place int

const (
	suspect place = iota
	stashed
	parked
	unread
	out
)

var errLost = errors.New("the claim was lost")

// lose stops the delivery of a message whose claim is no longer ours.
func (it *item) lose() {
	it.lost.Store(true)
	if cancel := it.cancel.Load(); cancel != nil {
		(*cancel)(errLost)
	}
}
