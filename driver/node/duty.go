package node

// maxRows is how many rows one call of a duty works on at most.
const maxRows = 1000

// duty is one kind of the loop's regular work.
type duty struct {
	at       int64 // clock time when it is due next; 0: now
	off      bool  // this run has no such duty
	loggedAt int64 // clock time when the log was last told that the database refuses it; 0: never
}

// never is a clock time that does not come.
const never = int64(1) << 62

// soon makes the duty due now.
func (d *duty) soon() { d.at = 0 }

// duties are the loop's regular work.
type duties struct {
	settings, extend, rescue, heartbeat, prune, obstacles, observe, events duty
}

// all are the duties, in the order of regular.
func (d *duties) all() []*duty {
	return []*duty{&d.settings, &d.extend, &d.rescue, &d.heartbeat, &d.prune, &d.obstacles, &d.observe, &d.events}
}

// next is the clock time when the next duty is due.
func (d *duties) next() int64 {
	next := never
	for _, one := range d.all() {
		if !one.off {
			next = min(next, one.at)
		}
	}
	return next
}
