package monitor

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairclaim/fairclaim/driver/node"
	"github.com/fairclaim/fairclaim/watermark"
)

// stateMetric is a metric whose values stand in the node's last State.
type stateMetric struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	values func(s *node.State, add func(value float64, labels ...string))
}

// stateCollector shows the node's last State. Before the first one it shows nothing: the
// node has not begun.
type stateCollector struct {
	monitor *Monitor
	metrics []stateMetric
	ages    [2]*prometheus.Desc // of the last sign of the loop, of the last heartbeat
}

// Why claiming is paused, as the node tells it.
var pauseReasons = []string{
	watermark.InFlightBytes.String(), watermark.RejectedSend.String(), node.PausedQueuesFull, node.PausedDraining,
}

func newStateCollector(m *Monitor) *stateCollector {
	c := &stateCollector{monitor: m}
	one := func(kind prometheus.ValueType, name, help string, value func(s *node.State) int64) {
		c.metrics = append(c.metrics, stateMetric{newDesc(name, help), kind, func(s *node.State, add func(float64, ...string)) {
			add(float64(value(s)))
		}})
	}
	gauge := func(name, help string, value func(s *node.State) int64) {
		one(prometheus.GaugeValue, name, help, value)
	}
	counter := func(name, help string, value func(s *node.State) int64) {
		one(prometheus.CounterValue, name, help, value)
	}
	gauge("in_flight_bytes", "Payload bytes claimed and not settled, but for suspect, stashed and parked messages, whose payloads are not held. At the high watermark the node stops claiming.",
		func(s *node.State) int64 { return s.UsedBytes })
	gauge("budget_bytes", "Payload bytes that the node may have in flight (--budget).", func(s *node.State) int64 { return s.Budget })
	gauge("high_watermark_bytes", "Payload bytes in flight at which claiming pauses (--high).", func(s *node.State) int64 { return s.High })
	gauge("low_watermark_bytes", "Payload bytes in flight at which claiming resumes (--low).", func(s *node.State) int64 { return s.Low })
	gauge("shards_owned", "Shards that the node claims from. 0: it stands by for shards, or drains.", func(s *node.State) int64 { return int64(s.Shards) })
	gauge("deliveries_stuck", "Deliveries that were given up and whose sink has not returned: each holds its payload, and may hold a slot.",
		func(s *node.State) int64 { return s.Stuck })
	counter("deliveries_overdue_total", "Deliveries that were given up because their sink had not returned 5 s after the time-out: the sink has a fault.",
		func(s *node.State) int64 { return s.Overdue })
	counter("claiming_pauses_total", "How often claiming has paused: payloads in flight were at the high watermark, or too many messages waited for full queues.",
		func(s *node.State) int64 { return s.Pauses })
	c.metrics = append(c.metrics,
		stateMetric{
			newDesc("in_flight_messages", "Messages claimed and not settled, by where they are: out (in a queue, being delivered, or to be settled), unread, stashed (their queue is full), parked (their namespace fills the budget), suspect.", "place"),
			prometheus.GaugeValue, places,
		},
		stateMetric{
			newDesc("claiming_paused", "1 where the node does not claim for this reason, as sweep nodes shows it; all are 0 while it claims.", "reason"),
			prometheus.GaugeValue, pauses,
		},
	)
	c.ages = [2]*prometheus.Desc{
		newDesc("loop_age_seconds", "Time since the last sign of the node's loop. /healthz fails where it gets too long."),
		newDesc("heartbeat_age_seconds", "Time since the last heartbeat that worked, by this process's own count. At the setting node_lapse the node's shards go to others."),
	}
	return c
}

func newDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

// places are the messages in flight, by where they are.
func places(s *node.State, add func(float64, ...string)) {
	parked := int(s.Parked) - s.Stashed
	add(float64(int(s.InFlight)-s.Suspects-s.Stashed-parked-s.Unread), "out")
	add(float64(s.Unread), "unread")
	add(float64(s.Stashed), "stashed")
	add(float64(parked), "parked")
	add(float64(s.Suspects), "suspect")
}

// pauses says of each reason whether the node does not claim for it.
func pauses(s *node.State, add func(float64, ...string)) {
	for _, reason := range pauseReasons {
		paused := 0.0
		if s.Paused == reason {
			paused = 1
		}
		add(paused, reason)
	}
}

// Describe sends what there is to show.
func (c *stateCollector) Describe(descs chan<- *prometheus.Desc) {
	for _, m := range c.metrics {
		descs <- m.desc
	}
	for _, age := range c.ages {
		descs <- age
	}
}

// Collect shows the last State. The ages are those at the scrape, so that they grow
// where nothing is heard any more.
func (c *stateCollector) Collect(metrics chan<- prometheus.Metric) {
	s, turns, silent := c.monitor.last()
	metrics <- prometheus.MustNewConstMetric(c.ages[0], prometheus.GaugeValue, silent.Seconds())
	if !turns {
		return
	}
	if !s.Heartbeat.IsZero() {
		metrics <- prometheus.MustNewConstMetric(c.ages[1], prometheus.GaugeValue, c.monitor.now().Sub(s.Heartbeat).Seconds())
	}
	for _, m := range c.metrics {
		m.values(&s, func(value float64, labels ...string) {
			metrics <- prometheus.MustNewConstMetric(m.desc, m.kind, value, labels...)
		})
	}
}
