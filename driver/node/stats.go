package node

import "sync/atomic"

// Stats are counts since the start, and gauges of what is in flight now.
type Stats struct {
	Sweeps    int64 // claims made
	Claimed   int64 // messages claimed
	Done      int64 // delivered and settled
	Retried   int64 // failed attempts given back, to be retried
	Failed    int64 // failed for good, also because their attempts were used up
	Released  int64 // given back untried
	Lost      int64 // claims that were no longer ours
	Pauses    int64 // times that claiming paused
	InFlight  int64 // messages claimed and not settled, now
	Parked    int64 // those of them that wait without their payloads: parked, or for room in a queue; now
	UsedBytes int64 // payload bytes of the others, now
	Overdue   int64 // deliveries whose sink had not returned 5 s after their time-out
	Stuck     int64 // of those, sinks that have not returned until now
}

// counters are the Stats as the loop and the deliveries count them.
type counters struct {
	sweeps, claimed, done, retried, failed, released, lost, pauses, inFlight, parked, overdue, stuck atomic.Int64
}

func (c *counters) read(usedBytes int64) Stats {
	return Stats{
		Sweeps: c.sweeps.Load(), Claimed: c.claimed.Load(), Done: c.done.Load(), Retried: c.retried.Load(),
		Failed: c.failed.Load(), Released: c.released.Load(), Lost: c.lost.Load(), Pauses: c.pauses.Load(),
		InFlight: c.inFlight.Load(), Parked: c.parked.Load(), UsedBytes: usedBytes,
		Overdue: c.overdue.Load(), Stuck: c.stuck.Load(),
	}
}
