package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/docker/go-units"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink"
	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/stdout"
	"github.com/fairclaim/fairclaim/driver/node"
)

// nodeFlags are what once and run share: where messages go, and how much at a time.
type nodeFlags struct {
	Sink  string   `required:"" placeholder:"SINK" help:"Where messages go: stdout, exec:COMMAND or an http(s):// URL, in which {namespace} and {task_queue} may stand."`
	Route []string `sep:"none" placeholder:"QUEUE=SINK" help:"Where those of one task queue go instead. Repeat it for more; the variable holds one a line."`

	Batch    int           `default:"100" help:"Most rows of one claim (default ${default})."`
	Budget   byteSize      `default:"auto" help:"Payload bytes in flight, claimed and not settled; auto (the default) is 64MiB, or a quarter of the memory that the container may use where that is less."`
	High     float64       `default:"0.8" help:"Share of the budget at which claiming pauses (default ${default})."`
	Low      float64       `default:"0.5" help:"Share of the budget down to which it drains before claiming resumes (default ${default})."`
	MinPause time.Duration `default:"500ms" help:"Shortest pause (default ${default})."`
	Slots    int           `default:"64" help:"Deliveries at a time, for each sink (default ${default})."`
	Share    float64       `default:"0.5" help:"Part of a sink's slots, and of the low watermark's bytes, that deliveries of one namespace can hold (default ${default})."`

	DeliveryTimeout time.Duration `default:"30s" help:"Longest delivery; a claim's lease is extended that long (default ${default})."`
	DrainTimeout    time.Duration `default:"30s" help:"How long a stop waits for what is in flight (default ${default})."`
}

// Validate refuses what no node could work with: before it connects, and also a zero,
// which the driver would take for its default.
func (f *nodeFlags) Validate() error {
	for _, n := range []struct {
		flag  string
		value int
	}{{"--batch", f.Batch}, {"--slots", f.Slots}} {
		if n.value < 1 {
			return fmt.Errorf("%s must be 1 or more, not %d", n.flag, n.value)
		}
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{{"--min-pause", f.MinPause}, {"--delivery-timeout", f.DeliveryTimeout}, {"--drain-timeout", f.DrainTimeout}} {
		if d.value <= 0 {
			return fmt.Errorf("%s must be above 0, not %v", d.flag, d.value)
		}
	}
	switch { // a NaN is refused as well
	case !(f.High > 0 && f.High <= 1):
		return fmt.Errorf("--high must be above 0, up to 1, not %v", f.High)
	case !(f.Low > 0 && f.Low <= f.High):
		return fmt.Errorf("--low must be above 0, up to --high (%v), not %v", f.High, f.Low)
	case !(f.Share > 0 && f.Share <= 1):
		return fmt.Errorf("--share must be above 0, up to 1, not %v", f.Share)
	}
	return nil
}

// routeValues are the routes, one each: an environment variable holds one a line.
func (f *nodeFlags) routeValues() []string {
	var values []string
	for _, lines := range f.Route {
		for line := range strings.Lines(lines) {
			if line = strings.TrimSpace(line); line != "" {
				values = append(values, line)
			}
		}
	}
	return values
}

// byteSize is a number of bytes as a flag: 67108864, 64MiB, 1g; 0 is auto.
type byteSize int64

// UnmarshalText reads a size; units are powers of 1,024.
func (b *byteSize) UnmarshalText(text []byte) error {
	if string(text) == "auto" {
		*b = 0
		return nil
	}
	n, err := units.RAMInBytes(string(text))
	if err != nil || n <= 0 {
		return fmt.Errorf("%q is not a size in bytes; write 67108864, 64MiB, 1GiB, or auto", text)
	}
	*b = byteSize(n)
	return nil
}

// sweeper is a node on its way from flags to its end.
type sweeper struct {
	*node.Node
	toStdout bool // a sink writes to standard output
	close    func()
}

// newNode makes the sinks and the sweeper, and connects. A nil list of shards leaves the
// choice to the sweeper.
func (f *nodeFlags) newNode(ctx context.Context, a *app, name string, tick time.Duration, shards []int32) (*sweeper, error) {
	values := f.routeValues()
	routes, err := sink.NewRoutes(f.Sink, values, sink.Options{
		Stdout: a.stdout, HTTPTimeout: f.DeliveryTimeout, HTTPConns: f.Slots, ExecTimeout: f.DeliveryTimeout,
	})
	if err != nil {
		return nil, &usageError{err: err}
	}
	config := node.Config{
		Node: name, Shards: shards, Routes: map[string]node.Sink{},
		Batch: f.Batch, Tick: tick, Budget: int64(fitMemory(a, f.Budget)), High: f.High, Low: f.Low, MinPause: f.MinPause,
		Slots: f.Slots, Share: f.Share, DeliveryTimeout: f.DeliveryTimeout, DrainTimeout: f.DrainTimeout, Logger: a.log,
	}
	_, config.Sink = routes.For("") // no task queue has this name
	for _, value := range values {
		r, err := sink.ParseRoute(value)
		if err != nil {
			return nil, &usageError{err: err}
		}
		_, config.Routes[r.TaskQueue] = routes.For(r.TaskQueue)
	}
	pool, err := a.openPool(ctx, name, 4)
	if err != nil {
		routes.Close()
		return nil, err
	}
	n := &sweeper{close: func() { closePool(pool); routes.Close() }}
	for _, name := range routes.Names() {
		n.toStdout = n.toStdout || name == "stdout"
	}
	n.Node, err = node.New(pool, config)
	if err != nil {
		n.close()
		return nil, &usageError{err: err}
	}
	return n, nil
}

// echo is how long after the first signal another one counts as the same: timeout(1) and
// shells send it to the process and to its group.
const echo = 300 * time.Millisecond

var errSecondSignal = errors.New("stopped by a second signal: deliveries were cut short, their messages are released")

// work runs the sweeper. The first signal drains it, the second ends it at once.
func (n *sweeper) work(ctx context.Context, a *app, sweep func(context.Context) error) error {
	defer n.close()
	stdout.CatchBrokenPipe() // also of the log's: release what is claimed before the end
	hard, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	// Listening on before main's own listening ends with the first signal.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it, and means it
		signal.Notify(signals, syscall.SIGHUP)
	}
	ended := make(chan struct{})
	defer close(ended)
	defer signal.Stop(signals)
	go func() {
		var first time.Time
		for {
			select {
			case s := <-signals:
				switch {
				case first.IsZero():
					first = time.Now()
					a.log.Info("stopping; a second signal stops at once", "signal", s.String())
					n.Drain()
				case time.Since(first) > echo:
					cancel(errSecondSignal)
					return
				}
			case <-ended:
				return
			}
		}
	}()
	return sweep(hard)
}
