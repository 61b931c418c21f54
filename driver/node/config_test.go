package node

import (
	"context"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

var nowhere = SinkFunc(func(context.Context, driver.Delivery) error { return nil })

func TestConfigDefaults(t *testing.T) {
	got, err := Config{Node: "n", Sink: nowhere}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if got.Batch != 100 || got.Tick != 500*time.Millisecond || got.Budget != 64<<20 || got.High != 0.8 || got.Low != 0.5 ||
		got.MinPause != 500*time.Millisecond || got.Slots != 64 || got.Share != 0.5 || got.Queue != 1000 ||
		got.DeliveryTimeout != 30*time.Second || got.DrainTimeout != 30*time.Second || got.CallTimeout != 15*time.Second ||
		got.RescueEvery != 0 || got.HeartbeatEvery != 2*time.Second || got.PruneEvery != time.Minute ||
		got.Shards != nil || got.Logger == nil {
		t.Errorf("defaults are %+v", got)
	}
	for _, test := range []struct{ slots, spare, want int }{
		{0, 0, 64},
		{8, 0, 8},
		{8, 3, 3},
		{8, 100, 100},
		{8, -1, 0},
		{1, 0, 0},
		{1, 2, 2}, // one slot may be meant as one at a time
	} {
		if got, err := (Config{Node: "n", Sink: nowhere, Slots: test.slots, Spare: test.spare}).withDefaults(); err != nil || got.Spare != test.want {
			t.Errorf("with %d slots and Spare %d it has %d spare ones (%v), want %d", test.slots, test.spare, got.Spare, err, test.want)
		}
	}
	if got, err := (Config{Node: "n", Sink: nowhere, Batch: 7}).withDefaults(); err != nil || got.Queue != 70 {
		t.Errorf("with a batch of 7 the queue holds %d (%v), want 70", got.Queue, err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Config)
		want   string // in the error; "": it is taken
	}{
		"as it is":          {func(*Config) {}, ""},
		"no node":           {func(c *Config) { c.Node = "" }, "Node has 0 bytes"},
		"long node":         {func(c *Config) { c.Node = strings.Repeat("x", 513) }, "Node has 513 bytes"},
		"longest node":      {func(c *Config) { c.Node = strings.Repeat("é", 256) }, ""},
		"node not UTF-8":    {func(c *Config) { c.Node = "\xff" }, "UTF-8"},
		"node with a NUL":   {func(c *Config) { c.Node = "a\x00b" }, "NUL"},
		"no sink":           {func(c *Config) { c.Sink = nil }, "Sink is nil"},
		"no sink of route":  {func(c *Config) { c.Routes = map[string]Sink{"mail": nil} }, `Routes["mail"] is nil`},
		"batch":             {func(c *Config) { c.Batch = -1 }, "Batch is -1"},
		"slots":             {func(c *Config) { c.Slots = -1 }, "Slots is -1"},
		"queue":             {func(c *Config) { c.Queue = -1 }, "Queue is -1"},
		"share":             {func(c *Config) { c.Share = 1.1 }, "Share is 1.1"},
		"share negative":    {func(c *Config) { c.Share = -0.1 }, "Share is -0.1"},
		"share not one":     {func(c *Config) { c.Share = math.NaN() }, "Share is NaN"},
		"share tiny":        {func(c *Config) { c.Share = math.SmallestNonzeroFloat64 }, ""},
		"budget":            {func(c *Config) { c.Budget = -1 }, "-1"},
		"high":              {func(c *Config) { c.High = 1.5 }, "1.5"},
		"high not a number": {func(c *Config) { c.High = math.NaN() }, "NaN"},
		"low above high":    {func(c *Config) { c.High, c.Low = 0.3, 0.4 }, "0.4"},
		"min pause":         {func(c *Config) { c.MinPause = -1 }, "-1ns"},
		"tick":              {func(c *Config) { c.Tick = -time.Second }, "Tick is -1s"},
		"delivery time-out": {func(c *Config) { c.DeliveryTimeout = -1 }, "DeliveryTimeout is -1ns"},
		"drain time-out":    {func(c *Config) { c.DrainTimeout = -1 }, "DrainTimeout is -1ns"},
		"call time-out":     {func(c *Config) { c.CallTimeout = -1 }, "CallTimeout is -1ns"},
		"rescue":            {func(c *Config) { c.RescueEvery = -1 }, "RescueEvery is -1ns"},
		"heartbeat":         {func(c *Config) { c.HeartbeatEvery = -1 }, "HeartbeatEvery is -1ns"},
		"prune never":       {func(c *Config) { c.PruneEvery = -1 }, ""},
	} {
		c := Config{Node: "n", Sink: nowhere}
		test.change(&c)
		s, err := New(nil, c)
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: got %v, want an error with %q", name, err, test.want)
		case err != nil && s != nil:
			t.Errorf("%s: a node came with the error", name)
		}
	}
}

// Endless times are taken for very long ones: a sum with the clock does not overflow.
func TestConfigEndlessTimes(t *testing.T) {
	c, err := Config{
		Node: "n", Sink: nowhere, Logger: slog.New(slog.DiscardHandler),
		Tick: math.MaxInt64, DrainTimeout: math.MaxInt64, PruneEvery: math.MaxInt64, DeliveryTimeout: math.MaxInt64,
	}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	clock := func() int64 { return int64(longest) }
	l := &loop{config: c, log: c.Logger, clock: clock, live: true, ledger: newLedger(ledgerLimits{}, nil, new(counters), nil, nil)}
	l.beginDrain()
	if l.drainUntil <= l.clock() {
		t.Errorf("an endless drain ends at %d, now is %d", l.drainUntil, l.clock())
	}
	for _, d := range []time.Duration{c.Tick, c.DrainTimeout, c.PruneEvery, c.DeliveryTimeout} {
		if d < longest || int64(longest)+int64(jitter(d)) < 0 {
			t.Errorf("an endless time became %v", d)
		}
	}
}
