package monitor

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

const (
	// maxTaskQueues is how many task queues have time series of their own, beside those with a
	// sink of their own. Producers choose the names: without a bound, names that are made up could
	// fill the memory of this process and of Prometheus. A hundred queues are some 700 series.
	maxTaskQueues = 100

	// otherTaskQueues is the label of the others.
	otherTaskQueues = "_other"
)

// The bounds of the histograms, in seconds. Each has one at the time-out or limit that its values are
// judged by.
var (
	// A node that has little to do claims once a tick (0.5), and what comes due meanwhile waits for that: on
	// average half of it. Where claims come all the time it is some ms. Above 1, messages wait for others
	// or for nodes: whole minutes are a backlog. Above the lease (60) a node may have died; tenants at their
	// quota, or paused, wait for as long as they are held: minutes, hours, a day.
	claimWaitBuckets = []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600}

	// Messages are handed on within milliseconds while there are free slots. Above a tick (0.5)
	// the sink's slots are what a message waits for; above the lease (60) its lease is extended again
	// and again, as for messages that are parked.
	waitBuckets = []float64{0.001, 0.005, 0.025, 0.1, 0.5, 1, 5, 15, 30, 60, 300, 900}

	// A line to a pipe takes less than a millisecond, a command some, a request of HTTP from a few
	// milliseconds to seconds. A delivery that runs into the default time-out is above 30, and one
	// that was given up after that above 35.
	deliveryBuckets = []float64{0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 35, 60, 300}

	// A claim of a hundred rows takes 2 to 20 ms, a settle less. At 0.5 a claim takes as long as a
	// tick; a claim's walk ends after 2 s; above 15 a call has run into its time-out.
	callBuckets = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 15}
)

// messages are the counts and times of messages. Its methods belong to the node's goroutine.
type messages struct {
	sink    *sinkTimes // of the queues without a route
	counts  *eventCounts
	queues  map[string]*queueMetrics // by task queue
	others  *queueMetrics            // of the queues that came too late
	unnamed int                      // how many more queues may be named
}

// queueMetrics are those of one task queue.
type queueMetrics struct {
	counts []prometheus.Counter // by node.Event
	sink   *sinkTimes
}

// sinkTimes are the histograms of one sink.
type sinkTimes struct {
	name      string
	claimWait prometheus.Observer
	wait      prometheus.Observer
	took      []prometheus.Observer // by node.Event
}

// eventCounts are the counters of all queues, by node.Event.
type eventCounts []*prometheus.CounterVec

// eventHelp says what an operator learns from each counter of messages.
var eventHelp = [...]string{
	node.Claimed:  "Messages that claims have brought. Less the done, retried, failed, released and lost ones, it is what is in flight.",
	node.Parked:   "How often a message was put away because its namespace filled the budget: its deliveries hang or are slow.",
	node.Done:     "Messages that were delivered and settled.",
	node.Retried:  "Failed attempts that were given back, to be retried: the destination, or the message, has trouble.",
	node.Failed:   "Messages that have failed for good: dead letters, which stay until somebody acts.",
	node.Released: "Messages that were given back untried: at a stop, or because a sink could not begin.",
	node.Lost:     "Claims that were no longer this node's when it settled them: leases that expired, or cancelled messages. The first may have been delivered twice.",
}

func newMessages(registry prometheus.Registerer, sink string, routes map[string]string) *messages {
	claimWait := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: namespace, Name: "claim_wait_seconds", Buckets: claimWaitBuckets,
		Help: "How long messages were due before this node claimed them, by the database's clock: long where nodes are too few or away, and of tenants that are paused or at their quota.",
	}, []string{"sink"})
	wait := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: namespace, Name: "dispatch_wait_seconds", Buckets: waitBuckets,
		Help: "How long messages waited in this process, from the end of their claim to the begin of their delivery: long where a sink has too few slots.",
	}, []string{"sink"})
	took := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: namespace, Name: "delivery_duration_seconds", Buckets: deliveryBuckets,
		Help: "How long deliveries took, by what the sink said in the end: done, retried, failed or released.",
	}, []string{"sink", "outcome"})
	registry.MustRegister(claimWait, wait, took)
	m := &messages{queues: map[string]*queueMetrics{}, unnamed: maxTaskQueues, counts: new(eventCounts)}
	for _, event := range node.Events() {
		vec := prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "messages_" + event.String() + "_total", Help: eventHelp[event],
		}, []string{"sink", "task_queue"})
		registry.MustRegister(vec)
		*m.counts = append(*m.counts, vec)
	}
	timesOf := func(name string) *sinkTimes {
		t := &sinkTimes{
			name: name, claimWait: claimWait.WithLabelValues(name), wait: wait.WithLabelValues(name),
			took: make([]prometheus.Observer, len(node.Events())),
		}
		for _, said := range []node.Event{node.Done, node.Retried, node.Failed, node.Released} {
			t.took[said] = took.WithLabelValues(name, said.String())
		}
		return t
	}
	m.sink = timesOf(sink)
	for taskQueue, name := range routes {
		m.queues[taskQueue] = m.counts.of(taskQueue, timesOf(name))
	}
	return m
}

// of makes the counters of a task queue, all at once: so one that stays 0 is shown as 0.
func (c eventCounts) of(taskQueue string, sink *sinkTimes) *queueMetrics {
	q := &queueMetrics{sink: sink}
	for _, vec := range c {
		q.counts = append(q.counts, vec.WithLabelValues(sink.name, taskQueue))
	}
	return q
}

// queue finds the metrics of a task queue.
func (m *messages) queue(taskQueue string) *queueMetrics {
	if q := m.queues[taskQueue]; q != nil {
		return q
	}
	if m.unnamed > 0 {
		m.unnamed--
		q := m.counts.of(taskQueue, m.sink)
		m.queues[taskQueue] = q
		return q
	}
	if m.others == nil {
		m.others = m.counts.of(otherTaskQueues, m.sink)
	}
	return m.others
}

func (m *messages) count(d *driver.Delivery, became node.Event) {
	q := m.queue(d.TaskQueue)
	q.counts[became].Inc()
	if became == node.Claimed {
		q.sink.claimWait.Observe(d.Waited().Seconds())
	}
}

func (m *messages) delivered(taskQueue string, d node.Delivered) {
	sink := m.queue(taskQueue).sink
	sink.wait.Observe(d.Waited.Seconds())
	sink.took[d.Said].Observe(d.Took.Seconds())
}

// calls are the times and failures of calls of the database, by the call's name.
type calls struct {
	took     map[string]prometheus.Observer // of those that have something to do for each message
	failures map[string]prometheus.Counter
	claims   map[driver.Outcome]prometheus.Counter
}

func newCalls(registry prometheus.Registerer) *calls {
	took := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: namespace, Name: "call_duration_seconds", Buckets: callBuckets,
		Help: "How long calls of the database took that worked: claims, payloads read, settles (complete, retry, fail, release).",
	}, []string{"call"})
	failures := prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Name: "call_failures_total",
		Help: "Calls of the database that failed; the log has the errors. They are made again, so that a few are no harm.",
	}, []string{"call"})
	claims := prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Name: "claims_total",
		Help: "Claims by how they ended: served brought messages, all_round found none that it may claim, cut and cut_past_end ended early, shut_out found the shards held by others.",
	}, []string{"outcome"})
	registry.MustRegister(took, failures, claims)
	c := &calls{took: map[string]prometheus.Observer{}, failures: map[string]prometheus.Counter{}, claims: map[driver.Outcome]prometheus.Counter{}}
	for _, name := range node.Calls() {
		c.took[name], c.failures[name] = took.WithLabelValues(name), failures.WithLabelValues(name)
	}
	for _, name := range node.Duties() {
		c.failures[name] = failures.WithLabelValues(name)
	}
	for _, outcome := range []driver.Outcome{driver.Served, driver.Cut, driver.CutPastEnd, driver.AllRound, driver.ShutOut} {
		c.claims[outcome] = claims.WithLabelValues(string(outcome))
	}
	return c
}

func (c *calls) count(call node.Call) {
	if call.Err != nil {
		if failures := c.failures[call.Name]; failures != nil {
			failures.Inc()
		}
		return
	}
	if took := c.took[call.Name]; took != nil {
		took.Observe(call.Took.Seconds())
	}
	if claims := c.claims[call.Outcome]; claims != nil {
		claims.Inc()
	}
}
