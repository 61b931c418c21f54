package monitor

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

const (
	// otherNamespaces is the label of all namespaces that have no series of their own.
	otherNamespaces = "_other"

	// keepSurveys is for how many times Options.SurveyEvery a survey is shown. Then no later one has worked,
	// and values that nobody keeps up would be taken for those of now.
	keepSurveys = 4
)

// The states of destinations in trouble.
const (
	destinationFailing    = "failing"
	destinationHeld       = "held"
	destinationRecovering = "recovering"
)

// outboxMetric is a metric of the outbox as a whole, whose values stand in the last Survey.
type outboxMetric struct {
	desc   *prometheus.Desc
	values func(s *node.Survey, add func(value float64, labels ...string))
}

// namespaceMetric is a metric of single namespaces. others is the value of all others together; nil: they
// have none.
type namespaceMetric struct {
	desc   *prometheus.Desc
	value  func(n *driver.NamespaceSurvey) float64
	others func(o *node.OtherNamespaces) float64
}

// outboxCollector shows the last survey of a node that surveys the outbox: the one that owns
// shard 0. Each scrape makes the series anew from it, so those of a namespace that has left vanish.
type outboxCollector struct {
	monitor    *Monitor
	every      time.Duration
	named      bool // namespaces have series of their own
	metrics    []outboxMetric
	namespaces []namespaceMetric
	age        *prometheus.Desc
	checked    *prometheus.Desc
}

// by is what HELP says of counts of messages of the whole outbox.
const by = " Exact up to ten times the setting count_cap (10,000), an estimate of the server's statistics above."

func newOutboxCollector(m *Monitor, every time.Duration, named bool) *outboxCollector {
	c := &outboxCollector{monitor: m, every: every, named: named}
	gauge := func(name, help string, value func(s *node.Survey) float64) {
		c.metrics = append(c.metrics, outboxMetric{newDesc("outbox_"+name, help), func(s *node.Survey, add func(float64, ...string)) {
			add(value(s))
		}})
	}
	gauge("due_messages", "Pending messages of the outbox that are due: claims may take them, unless their namespace is paused, at its quota or held."+by,
		func(s *node.Survey) float64 { return float64(s.Outbox.Due) })
	gauge("unripe_messages", "Pending messages of the outbox that wait for their time: a delay, or a backoff after a failed attempt."+by,
		func(s *node.Survey) float64 { return float64(s.Outbox.Unripe) })
	gauge("claimed_messages", "Messages of the outbox that are claimed, by whatever node."+by,
		func(s *node.Survey) float64 { return float64(s.Outbox.Claimed) })
	gauge("failed_messages", "Dead letters: messages that have failed for good and stay until somebody acts."+by,
		func(s *node.Survey) float64 { return float64(s.Outbox.Failed) })
	c.metrics = append(c.metrics,
		outboxMetric{
			newDesc("outbox_expired_leases", "Claims whose lease has expired and that no rescue has taken back: nodes died, and none is left to rescue. Missing where too many dead rows keep it from being counted."),
			func(s *node.Survey, add func(float64, ...string)) {
				if s.Outbox.Expired != nil {
					add(float64(*s.Outbox.Expired))
				}
			},
		},
		outboxMetric{
			newDesc("outbox_destinations", "Destinations in trouble, by state: failing, held (nothing is claimed for them), recovering (the flow grows again).", "state"),
			func(s *node.Survey, add func(float64, ...string)) {
				add(float64(s.Outbox.Failing), destinationFailing)
				add(float64(s.Outbox.Held), destinationHeld)
				add(float64(s.Outbox.Recovering), destinationRecovering)
			},
		})
	c.metrics = append(c.metrics, outboxMetric{
		newDesc("outbox_oldest_due_age_seconds", "How long the oldest due message has waited, by the database's clock; 0: none is due. Of the namespaces that the walk around all of them has come past (fairclaim_outbox_lap_seconds), those that are paused as a whole apart, and without messages whose destination is held (fairclaim_outbox_oldest_held_age_seconds).", "paused"),
		func(s *node.Survey, add func(float64, ...string)) {
			add(s.Longest.Seconds(), "false")
			add(s.LongestPaused.Seconds(), "true")
		},
	})
	gauge("oldest_held_age_seconds", "How long the oldest due message has waited whose destination is held, of the namespaces that are known and not paused; 0: none is due.",
		func(s *node.Survey) float64 { return s.LongestHeld.Seconds() })
	gauge("held_routes_of_all", "Held destinations that are the route of all namespaces: nothing of that task queue is delivered, for no tenant.",
		func(s *node.Survey) float64 { return float64(s.Outbox.HeldOfAll) })
	gauge("pauses", "Pauses in force, of namespaces, routes, or everything.", func(s *node.Survey) float64 { return float64(s.Outbox.Pauses) })
	gauge("shards", "Shards of the outbox.", func(s *node.Survey) float64 { return float64(s.Outbox.ShardCount) })
	gauge("unowned_shards", "Shards that no live node owns: nothing is claimed from them.", func(s *node.Survey) float64 { return float64(s.Outbox.Unowned) })
	gauge("horizon_age_seconds", "Age of the oldest open transaction of the database, a prepared one too: until it ends, vacuum removes no dead rows, and claims get slower. Sessions of other roles count only where the node's role is a member of pg_monitor.",
		func(s *node.Survey) float64 { return s.Horizon.Age.Seconds() })
	gauge("horizon_age_transactions", "Age, in transactions, of the oldest one that anything holds back, replication slots and standbys too.",
		func(s *node.Survey) float64 { return float64(s.Horizon.Transactions) })
	gauge("lap_seconds", "How long the last walk around all namespaces with pending messages took; 0: none has ended since this node surveys. A namespace that begins to wait is known after so long.",
		func(s *node.Survey) float64 {
			if s.Lap < time.Microsecond {
				return 0
			}
			return s.Lap.Seconds()
		})
	gauge("waiting_namespaces", "Namespaces that had pending messages when the last walk came past them.",
		func(s *node.Survey) float64 { return float64(s.Waiting) })
	c.metrics = append(c.metrics, outboxMetric{
		newDesc("outbox_violations", "Violations of guarantees that the last audit has found (sweep check), of the newest messages. Missing before the first audit, and where --check-every is 0."),
		func(s *node.Survey, add func(float64, ...string)) {
			if s.Audit != nil {
				add(float64(len(s.Audit.Violations)))
			}
		},
	})
	c.age = newDesc("outbox_survey_age_seconds", "Time since this node found out the values named fairclaim_outbox_ and fairclaim_namespace_. Missing where another node does: the owner of shard 0.")
	c.checked = newDesc("outbox_check_age_seconds", "Time since the last audit.")

	const whose = " Of the namespaces whose oldest due messages have waited longest (those that are paused or held come behind), and those of --metrics-namespace; _other: of all others,"
	one := func(name, help string, value func(n *driver.NamespaceSurvey) float64, others func(o *node.OtherNamespaces) float64) {
		c.namespaces = append(c.namespaces, namespaceMetric{newDesc("namespace_"+name, help, "namespace"), value, others})
	}
	one("oldest_due_age_seconds", "How long the oldest due message of the namespace has waited, by the database's clock; 0: none is due."+whose+" the longest wait that is known.",
		func(n *driver.NamespaceSurvey) float64 { return n.Waited().Seconds() },
		func(o *node.OtherNamespaces) float64 { return o.Waited.Seconds() })
	const sum = whose + " the sum when the last walk came past them. The count of a namespace stops at the setting count_cap (1,000)."
	one("due_messages", "Pending messages of the namespace that are due."+sum,
		func(n *driver.NamespaceSurvey) float64 { return float64(n.Due) },
		func(o *node.OtherNamespaces) float64 { return float64(o.Due) })
	one("unripe_messages", "Pending messages of the namespace that wait for their time."+sum,
		func(n *driver.NamespaceSurvey) float64 { return float64(n.Unripe) },
		func(o *node.OtherNamespaces) float64 { return float64(o.Unripe) })
	one("claimed_messages", "Claimed messages of the namespace. At its quota, claims pass it over."+sum,
		func(n *driver.NamespaceSurvey) float64 { return float64(n.Claimed) },
		func(o *node.OtherNamespaces) float64 { return float64(o.Claimed) })
	one("failed_messages", "Dead letters of the namespace."+sum+" Others without pending messages do not count.",
		func(n *driver.NamespaceSurvey) float64 { return float64(n.Failed) },
		func(o *node.OtherNamespaces) float64 { return float64(o.Failed) })
	one("quota_messages", "The quota of the namespace, or the default: so many messages of it are claimed at a time.",
		func(n *driver.NamespaceSurvey) float64 { return float64(n.Quota) }, nil)
	one("paused", "1 where the namespace, or everything, is paused.",
		func(n *driver.NamespaceSurvey) float64 {
			if n.Paused {
				return 1
			}
			return 0
		}, nil)
	return c
}

// Describe sends what there is to show.
func (c *outboxCollector) Describe(descs chan<- *prometheus.Desc) {
	for _, m := range c.metrics {
		descs <- m.desc
	}
	for _, m := range c.namespaces {
		descs <- m.desc
	}
	descs <- c.age
	descs <- c.checked
}

// Collect shows the last survey.
func (c *outboxCollector) Collect(metrics chan<- prometheus.Metric) {
	s, age := c.monitor.survey()
	if s == nil {
		return
	}
	show := func(desc *prometheus.Desc, value float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	show(c.age, age.Seconds())
	if age > keepSurveys*c.every {
		return
	}
	for _, m := range c.metrics {
		m.values(s, func(value float64, labels ...string) { show(m.desc, value, labels...) })
	}
	if s.Audit != nil {
		show(c.checked, c.monitor.now().Sub(s.Audit.At).Seconds())
	}
	if !c.named {
		return
	}
	for i := range s.Namespaces {
		// One of this name, which a tenant may choose, would be there twice, and fail the scrape.
		if s.Namespaces[i].Namespace == otherNamespaces {
			continue
		}
		for _, m := range c.namespaces {
			show(m.desc, m.value(&s.Namespaces[i]), s.Namespaces[i].Namespace)
		}
	}
	for _, m := range c.namespaces {
		if m.others != nil {
			show(m.desc, m.others(&s.Others), otherNamespaces)
		}
	}
}
