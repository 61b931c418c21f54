// Package monitor shows how a node is over HTTP: its metrics, for Prometheus, and whether it is alive
// and ready, for a supervisor.
//
//	monitor.go   Monitor, which notes what its node tells it (node.Observer)
//	messages.go  counts and times of messages, by sink and task queue
//	state.go     gauges: the node's last State, as a scrape reads it
//	outbox.go    gauges: the node's last Survey of the outbox as a whole, and of single namespaces
//	health.go    alive and ready: the same State, judged
//	server.go    the HTTP server
//
// The node tells, a scrape reads what was told: no request of HTTP asks the database, or waits
// for the node.
package monitor

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// Options are what a [Monitor] tells of its process and cannot learn from the node. No value may
// hold a secret: all become labels.
type Options struct {
	Node      string            // the node's name
	Sink      string            // the name of the sink that gets the messages of all task queues but those in Routes
	Routes    map[string]string // the names of the sinks of some task queues
	Version   string            // of this program
	Revision  string            // the commit that it was built from
	Schema    string            // the newest version of the schema that it knows
	GoVersion string

	SurveyEvery time.Duration // between two surveys of the outbox
	Namespaces  bool          // single namespaces have series of their own

	now func() time.Time // a test's clock; nil: time.Now
}

// Monitor notes what a node tells it, and shows it. Make one with [New]; it is the
// node.Config.Observer of one node. What it shows may be read by any goroutine.
type Monitor struct {
	registry *prometheus.Registry
	messages *messages
	calls    *calls
	now      func() time.Time

	mu    sync.Mutex
	state node.State // as the node told it last
	turns bool       // it has told one
	sign  time.Time  // when the node was heard of last; before its first State, when the Monitor was made

	outbox     *node.Survey // as the node told it last; nil: it does not survey
	surveyedAt time.Time
}

// New makes a monitor. It is also where to see all metrics that there are.
func New(o Options) *Monitor {
	m := &Monitor{registry: prometheus.NewRegistry(), now: time.Now}
	if o.now != nil {
		m.now = o.now
	}
	m.sign = m.now()
	m.messages = newMessages(m.registry, o.Sink, o.Routes)
	m.calls = newCalls(m.registry)
	m.registry.MustRegister(
		newInfo("build_info", "The program that runs: its version, the commit that it was built from, the newest schema that it knows, and its Go. Always 1.",
			prometheus.Labels{"version": o.Version, "revision": o.Revision, "schema": o.Schema, "goversion": o.GoVersion}),
		newInfo("node_info", "The name that the outbox knows this process by, as sweep nodes shows it. Always 1.", prometheus.Labels{"node": o.Node}),
		newStateCollector(m),
		newOutboxCollector(m, o.SurveyEvery, o.Namespaces),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// namespace is the first word of each metric's name.
const namespace = "fairclaim"

// newInfo is a metric that says something by its labels.
func newInfo(name, help string, labels prometheus.Labels) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help, ConstLabels: labels})
	g.Set(1)
	return g
}

// Message counts what has become of a message, and notes how long one that was claimed had been due.
func (m *Monitor) Message(d *driver.Delivery, became node.Event) {
	m.messages.count(d, became)
}

// Delivered notes how long a delivery took.
func (m *Monitor) Delivered(d *driver.Delivery, what node.Delivered) {
	m.messages.delivered(d.TaskQueue, what)
}

// Called notes how a call of the database ended.
func (m *Monitor) Called(c node.Call) {
	m.calls.count(c)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sign = m.now()
}

// Turned notes how the node is.
func (m *Monitor) Turned(s node.State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state, m.turns, m.sign = s, true, m.now()
}

// last is what the node told last, whether it has told anything, and how long ago it was heard of.
func (m *Monitor) last() (s node.State, turns bool, silent time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state, m.turns, m.now().Sub(m.sign)
}

// Surveyed notes how the outbox is.
func (m *Monitor) Surveyed(s *node.Survey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.outbox, m.surveyedAt = s, m.now()
}

// survey is the last survey, nil where there is none, and how old it is.
func (m *Monitor) survey() (s *node.Survey, age time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.outbox, m.now().Sub(m.surveyedAt)
}
