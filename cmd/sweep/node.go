package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/docker/go-units"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink"
	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/stdout"
	"github.com/fairclaim/fairclaim/driver/node"
)

// nodeFlags are the flags that once and run share: where messages go, and how many at a
// time. nodeVars gives the defaults.
type nodeFlags struct {
	Sink  string   `required:"" placeholder:"SINK" help:"Where messages go: stdout, exec:COMMAND, or an http:// or https:// URL, in which {namespace} and {task_queue} stand for those of the message."`
	Route []string `sep:"none" placeholder:"QUEUE=SINK" help:"Where the messages of one task queue go instead. Repeat the flag for more task queues; the variable has one on each line."`

	HTTP4xx string `name:"http-4xx" enum:"hold,fail" default:"hold" placeholder:"hold|fail" help:"What most HTTP answers of 4xx mean: hold (the default), that their destination is in trouble; fail, that their message fails for good."`

	Batch    int           `default:"${node_batch}" help:"Most messages of one claim (default ${default})."`
	Budget   byteSize      `default:"auto" help:"Most bytes of payloads in flight: claimed, and not settled. auto (the default) is ${node_budget}, or a quarter of the memory of the container where that is less."`
	High     float64       `default:"${node_high}" help:"Part of the budget at which claiming pauses (default ${default})."`
	Low      float64       `default:"${node_low}" help:"Part of the budget to which the bytes in flight must fall before claiming resumes (default ${default})."`
	MinPause time.Duration `default:"${node_min_pause}" help:"Shortest pause of claiming (default ${default})."`
	Slots    int           `default:"${node_slots}" help:"Most deliveries at a time, for each sink (default ${default})."`
	Spare    *int          `placeholder:"N" help:"Spare slots, for each sink: a delivery that lasts longer than a tick (once: ${node_tick}) opens one, for a namespace with no delivery under way (default: as many as there are slots, but none beside a single slot)."`
	Share    float64       `default:"${node_share}" help:"Part of a sink's slots, and of the bytes at the low watermark, that the deliveries of one namespace can hold (default ${default})."`

	DeliveryTimeout time.Duration `default:"${node_delivery_timeout}" help:"Longest delivery; the lease of the message is extended by as much (default ${default})."`
	DrainTimeout    time.Duration `default:"${node_drain_timeout}" help:"How long a stop takes at most: messages in flight are finished, and cut short a quarter of it (5s at most) before its end (default ${default})."`
}

// nodeVars are the variables in the tags of nodeFlags: the defaults of a node.
func nodeVars() kong.Vars {
	d := node.Defaults()
	return kong.Vars{
		"node_batch":            strconv.Itoa(d.Batch),
		"node_budget":           units.BytesSize(float64(d.Budget)),
		"node_delivery_timeout": d.DeliveryTimeout.String(),
		"node_drain_timeout":    d.DrainTimeout.String(),
		"node_high":             fmt.Sprint(d.High),
		"node_low":              fmt.Sprint(d.Low),
		"node_min_pause":        d.MinPause.String(),
		"node_share":            fmt.Sprint(d.Share),
		"node_slots":            strconv.Itoa(d.Slots),
		"node_tick":             d.Tick.String(),
	}
}

// config is the configuration of a node with these flags, in the fields that they set.
// An error names a flag.
func (f *nodeFlags) config() (node.Config, error) {
	for _, v := range []struct {
		flag  string
		value any
	}{
		{"--batch", f.Batch},
		{"--slots", f.Slots},
		{"--share", f.Share},
		{"--high", f.High},
		{"--low", f.Low},
		{"--min-pause", f.MinPause},
		{"--delivery-timeout", f.DeliveryTimeout},
		{"--drain-timeout", f.DrainTimeout},
	} {
		if reflect.ValueOf(v.value).IsZero() { // in a Config, that is the default
			return node.Config{}, usage("%s is %v: give more than 0", v.flag, v.value)
		}
	}
	if f.Low > f.High && f.High > 0 && f.High <= 1 {
		return node.Config{}, usage("--high is %v, and --low is %v: give a --low of --high at most", f.High, f.Low)
	}
	spare, err := f.spare()
	if err != nil {
		return node.Config{}, err
	}
	return node.Config{
		Batch: f.Batch, High: f.High, Low: f.Low, MinPause: f.MinPause, Slots: f.Slots, Spare: spare, Share: f.Share,
		DeliveryTimeout: f.DeliveryTimeout, DrainTimeout: f.DrainTimeout,
	}, nil
}

// spare is the value of --spare as a Config has it, where 0 is the default, and less is none.
func (f *nodeFlags) spare() (int, error) {
	switch {
	case f.Spare == nil:
		return 0, nil
	case *f.Spare < 0:
		return 0, usage("--spare is %d: give 0 or more", *f.Spare)
	case *f.Spare == 0:
		return -1, nil
	}
	return *f.Spare, nil
}

// lines are the values of a flag that is given more than once, and whose environment variable has one on
// each line.
func lines(flag []string) []string {
	var values []string
	for _, lines := range flag {
		for line := range strings.Lines(lines) {
			if line = strings.TrimSpace(line); line != "" {
				values = append(values, line)
			}
		}
	}
	return values
}

// sweeper is a node with its sinks and its pool.
type sweeper struct {
	*node.Node
	toStdout bool // a sink writes to standard output
	close    func()
}

// newNode checks the flags, makes the sinks, connects, and makes the node. A nil list of
// shards leaves the choice to the node. more sets further fields. watch, where it is not nil, is called before it connects.
func (f *nodeFlags) newNode(ctx context.Context, a *app, name string, tick time.Duration, shards []int32,
	more func(*node.Config), watch func(*sink.Routes) (node.Observer, error),
) (*sweeper, error) {
	config, err := f.config()
	if err != nil {
		return nil, err
	}
	routes, err := sink.NewRoutes(f.Sink, lines(f.Route), sink.Options{
		Stdout: a.stdout, HTTPTimeout: f.DeliveryTimeout, HTTPConns: f.Slots, HTTPFinal4xx: f.HTTP4xx == "fail",
		ExecTimeout: f.DeliveryTimeout,
	})
	if err != nil {
		return nil, &usageError{err: err}
	}
	config.Node, config.Shards, config.Tick, config.Logger = name, shards, tick, a.log
	config.Sink, config.Routes = routes.Default, routes.ByQueue
	more(&config)
	config.Budget = int64(fitMemory(a, f.Budget))
	if err := config.Check(); err != nil { // before it connects
		routes.Close()
		return nil, err
	}
	if watch != nil {
		if config.Observer, err = watch(routes); err != nil {
			routes.Close()
			return nil, err
		}
	}
	pool, err := a.openPool(ctx, name, 4)
	if err != nil {
		routes.Close()
		return nil, err
	}
	n := &sweeper{toStdout: routes.ToStdout, close: func() { closePool(pool); routes.Close() }}
	n.Node, err = node.New(pool, config)
	if err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

// echo is how long after the first signal another signal counts as the same one: timeout(1)
// and shells send a signal to the process and to its process group.
const echo = 300 * time.Millisecond

var errSecondSignal = errors.New("stopped by a second signal: deliveries were cut short, and their messages released")

// work runs the node. The first signal drains it, a second one ends it at once.
func (n *sweeper) work(ctx context.Context, a *app, sweep func(context.Context) error) error {
	defer n.close()
	stdout.CatchBrokenPipe() // a log that nobody reads must not end the process before it has released its messages
	hard, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	// main stops listening at the first signal; this goes on.
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
