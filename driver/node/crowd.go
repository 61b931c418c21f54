package node

// crowd is what the log says of a queue in which namespaces wait for a spare slot while all spare
// slots are in use.
type crowd struct {
	queue   *queue
	waiting int    // namespaces
	largest string // the namespace with most under way
	holds   int    // its deliveries
}

// crowd says who waits for a spare slot. Nobody does where there are none, or not all are open.
func (q *queue) crowd() crowd {
	c := crowd{queue: q}
	spare := q.queues.spare
	if spare == 0 || q.slow < spare || q.running < q.queues.slots+spare {
		return c
	}
	for _, t := range q.ring {
		if q.mayHaveSpare(t) && q.gates.first(t.waiting) >= 0 {
			c.waiting++
		}
	}
	for namespace, t := range q.tenants {
		if t.running > c.holds || t.running == c.holds && namespace < c.largest {
			c.largest, c.holds = namespace, t.running
		}
	}
	return c
}
