package node

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Config is how a [Node] works. The zero value of each field but Node and Sink means
// its default.
type Config struct {
	Node   string          // this process's name, unique among the nodes of an outbox; required
	Shards []int32         // the shards to claim from; nil: for Run those that the outbox gives this node, for Once all
	Sink   Sink            // where messages go; required
	Routes map[string]Sink // where those of some task queues go instead; each has a queue of its own

	Batch int           // most rows of one claim; default 100
	Tick  time.Duration // time between claims while there is little to do, jittered by a fifth; default 500 ms

	Budget   int64         // payload bytes in flight, claimed and not settled; default 64 MiB
	High     float64       // share of the budget at which claiming pauses; default 0.8
	Low      float64       // share of the budget down to which it drains before claiming resumes; default 0.5
	MinPause time.Duration // shortest pause; default 500 ms

	Slots int     // deliveries at a time, a sink; default 64
	Share float64 // part of a sink's slots, and of Low's bytes over all sinks, that deliveries of one namespace can hold; default 0.5
	Spare int     // further deliveries at a time, a sink: each that lasts longer than a Tick opens one, for a namespace with none under way; default Slots, but none where Slots is 1; negative: none
	Queue int     // messages that may wait for a sink's slots; default 10 * Batch: above the quotas, or one tenant's backlog fills it
	Stash int     // messages claimed for sinks whose queue is full, their payloads unread; more of them pause claiming; default 10 * Queue

	DeliveryTimeout time.Duration // one delivery, and how long its lease is extended; default 30 s
	DrainTimeout    time.Duration // how long a drain takes at most; deliveries are cut short 5 s or a quarter of it before; default 30 s
	CallTimeout     time.Duration // one call of the database; default 15 s, but no more than a quarter of the lease, which counts as 4 s at least

	RescueEvery    time.Duration // default 5 s, but no more than a quarter of the lease
	HeartbeatEvery time.Duration // default 2 s, but no more than a quarter of the setting node_lapse
	PruneEvery     time.Duration // default 1 min, and sooner while there is more; negative: never

	Survey SurveyConfig // what a live node finds out about the whole outbox, for its Observer; default: nothing. Needs a pool of two connections or more

	EventsNamespace string // each Notice becomes a message of this namespace, too; empty: none does

	Logger   *slog.Logger // default: slog.Default()
	Observer Observer     // is told what the node does; default: nobody is
}

// Defaults returns the defaults of the fields of [Config] that do not depend on other
// fields; all other fields are zero.
func Defaults() Config {
	return Config{
		Batch: 100, Tick: 500 * time.Millisecond, Budget: 64 << 20, High: 0.8, Low: 0.5, MinPause: 500 * time.Millisecond,
		Slots: 64, Share: 0.5, DeliveryTimeout: 30 * time.Second, DrainTimeout: 30 * time.Second, CallTimeout: 15 * time.Second,
		HeartbeatEvery: 2 * time.Second, PruneEvery: time.Minute,
	}
}

// ConfigError says which field of a [Config] has a value that no node can work with.
type ConfigError struct {
	Field   string // "Batch"
	Problem string // the value, and which values are good: "is -1: give 1 or more"
}

func (e *ConfigError) Error() string { return "config." + e.Field + " " + e.Problem }

func badField(field, format string, args ...any) error {
	return &ConfigError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// Check returns an error for a configuration that [New] refuses, a [*ConfigError]. It
// needs no database.
func (c Config) Check() error {
	_, err := c.withDefaults()
	return err
}

// longest is the longest time that the loop counts with: what is meant as endless is held
// to it, so that no sum of times overflows.
const longest = 10 * 365 * 24 * time.Hour

// withDefaults fills in and checks. Errors name the field and say what it takes.
func (c Config) withDefaults() (Config, error) {
	defaults := Defaults()
	c.Batch = cmp.Or(c.Batch, defaults.Batch)
	c.Tick = cmp.Or(c.Tick, defaults.Tick)
	c.Budget = cmp.Or(c.Budget, defaults.Budget)
	c.High = cmp.Or(c.High, defaults.High)
	c.Low = cmp.Or(c.Low, defaults.Low)
	c.MinPause = cmp.Or(c.MinPause, defaults.MinPause)
	c.Slots = cmp.Or(c.Slots, defaults.Slots)
	c.Share = cmp.Or(c.Share, defaults.Share)
	if c.Spare == 0 && c.Slots > 1 { // with one slot, one at a time may be meant
		c.Spare = c.Slots
	}
	c.Spare = max(c.Spare, 0)
	c.Queue = cmp.Or(c.Queue, 10*c.Batch)
	c.Stash = cmp.Or(c.Stash, 10*c.Queue)
	c.DeliveryTimeout = cmp.Or(c.DeliveryTimeout, defaults.DeliveryTimeout)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, defaults.DrainTimeout)
	c.CallTimeout = cmp.Or(c.CallTimeout, defaults.CallTimeout)
	c.HeartbeatEvery = cmp.Or(c.HeartbeatEvery, defaults.HeartbeatEvery)
	c.PruneEvery = cmp.Or(c.PruneEvery, defaults.PruneEvery)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Observer == nil {
		c.Observer = nobody{}
	}

	if c.Node == "" || len(c.Node) > 512 {
		return c, badField("Node", "has %d bytes: give 1 to 512", len(c.Node))
	}
	if !utf8.ValidString(c.Node) || strings.ContainsRune(c.Node, 0) {
		return c, badField("Node", "is %q: give UTF-8 without NUL", c.Node)
	}
	if len(c.EventsNamespace) > 512 || !utf8.ValidString(c.EventsNamespace) || strings.ContainsRune(c.EventsNamespace, 0) {
		return c, badField("EventsNamespace", "is %q: give up to 512 bytes, UTF-8 without NUL", c.EventsNamespace)
	}
	if c.Sink == nil {
		return c, badField("Sink", "is nil: say where messages go")
	}
	for taskQueue, sink := range c.Routes {
		if sink == nil {
			return c, badField(fmt.Sprintf("Routes[%q]", taskQueue), "is nil: say where its messages go")
		}
	}
	switch { // the comparisons refuse a NaN as well
	case c.Budget < 1:
		return c, badField("Budget", "is %d: give 1 or more", c.Budget)
	case !(c.High > 0 && c.High <= 1):
		return c, badField("High", "is %v: give more than 0, up to 1", c.High)
	case !(c.Low > 0 && c.Low <= c.High):
		return c, badField("Low", "is %v: give more than 0, up to High (%v)", c.Low, c.High)
	case !(c.Share > 0 && c.Share <= 1):
		return c, badField("Share", "is %v: give more than 0, up to 1", c.Share)
	}
	counts := map[string]int{"Batch": c.Batch, "Slots": c.Slots, "Queue": c.Queue, "Stash": c.Stash}
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if counts[name] < 1 {
			return c, badField(name, "is %d: give 1 or more", counts[name])
		}
	}
	c.PruneEvery = min(c.PruneEvery, longest)
	if err := c.Survey.check(); err != nil {
		return c, err
	}
	times := map[string]*time.Duration{
		"Tick": &c.Tick, "MinPause": &c.MinPause, "DeliveryTimeout": &c.DeliveryTimeout, "DrainTimeout": &c.DrainTimeout,
		"CallTimeout": &c.CallTimeout, "HeartbeatEvery": &c.HeartbeatEvery,
	}
	if c.RescueEvery != 0 {
		times["RescueEvery"] = &c.RescueEvery
	}
	for _, name := range slices.Sorted(maps.Keys(times)) {
		if *times[name] <= 0 {
			return c, badField(name, "is %v: give more than 0", *times[name])
		}
		*times[name] = min(*times[name], longest)
	}
	return c, nil
}
