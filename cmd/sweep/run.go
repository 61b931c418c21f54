package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/monitor"
	"github.com/fairclaim/fairclaim/cmd/sweep/internal/shards"
	"github.com/fairclaim/fairclaim/driver/node"
)

type runCmd struct {
	Node    string        `placeholder:"NAME" env:"SWEEP_NODE" help:"Name of this node, which no other node may have; without it, the name of the host and the process id."`
	Shards  shards.Choice `default:"auto" placeholder:"0-7,12" help:"Shards to claim from: auto (the default) for the part that the database gives this node, all, or a list."`
	Tick    time.Duration `default:"${node_tick}" help:"Time between claims while there is little to do (default ${default})."`
	Listen  string        `placeholder:"HOST:PORT" help:"Serve /metrics (for Prometheus), /healthz and /readyz at this address, without authentication. Without the flag nothing listens."`
	UI      string        `name:"ui" placeholder:"HOST:PORT" env:"SWEEP_UI" help:"Serve the pages of 'sweep ui' at this address. Without the flag there are none."`
	uiFlags `embed:"" prefix:"ui-"`

	MetricsTenants   int           `default:"10" help:"How many namespaces have time series of their own at /metrics: those whose oldest due messages have waited longest (default ${default}); 0: none."`
	MetricsNamespace []string      `sep:"none" placeholder:"NAME" help:"A namespace that always has. Repeat the flag for more; the variable has one on each line."`
	SurveyEvery      time.Duration `default:"15s" help:"With --listen or --events-namespace, time between two surveys of the outbox as a whole, by the node that owns shard 0 (default ${default}); 0: none."`
	CheckEvery       time.Duration `default:"1h" help:"With --listen or --events-namespace, time between two audits of the newest messages, by the node that owns shard 0 (default ${default}); 0: none."`
	EventsNamespace  string        `placeholder:"NAME" help:"Enqueue events (docs/events.md) as messages of this namespace, too. Without the flag they are lines of the log alone."`

	nodeFlags `embed:""`
}

func (runCmd) Help() string {
	return `Claims, delivers and settles messages until it is told to stop. The first SIGTERM, SIGINT or SIGHUP drains the node: it claims no more, finishes the messages in flight, releases those that are not finished shortly before --drain-timeout is over, and ends with exit code 0. A second signal releases all of them at once, exit code 1.

With --listen the node shows its metrics at /metrics; the node that owns shard 0 shows there how the outbox as a whole is, too. /healthz answers 200 while its loop turns, /readyz while the database answers and the node has shards, or stands by for some; otherwise both answer 503. A request asks nothing of the database.

With --ui it also serves the pages of 'sweep ui', over connections of their own. They need the rights of an operator (outbox.grant_operator), which a node alone does not.

Any number of nodes may run, and each may start and stop at any time. The database gives each node an even part of the shards. When a node dies, its shards go to other nodes after the setting node_lapse. A node with --shards all or a list claims from these shards, and they are given to no other node. 'sweep nodes' shows who owns which.

Examples:

    sweep run --sink 'https://hooks.example.com/{namespace}/{task_queue}'
    sweep run --node worker-1 --shards 0-7 --sink exec:/usr/local/bin/deliver
    sweep run --sink stdout --budget 256MiB --slots 128
    sweep run --sink stdout --listen 127.0.0.1:9464     # curl http://127.0.0.1:9464/metrics
    sweep run --sink stdout --listen 127.0.0.1:9464 --metrics-tenants 20 --metrics-namespace acme
    SWEEP_ROUTE=$'email=exec:send-mail\nsms=https://sms.example.com/send' sweep run --sink stdout`
}

// Validate refuses a tick of 0, which in the configuration of a node is the default, and what is no
// address.
func (c *runCmd) Validate() error {
	if c.Tick == 0 {
		return errors.New("--tick is 0s: give more than 0")
	}
	if c.MetricsTenants < 0 || c.MetricsTenants > 1000 { // as a Config has it
		return fmt.Errorf("--metrics-tenants must be 0 to 1000, not %d", c.MetricsTenants)
	}
	if c.SurveyEvery < 0 {
		return fmt.Errorf("--survey-every must be 0 or more, not %v", c.SurveyEvery)
	}
	if c.CheckEvery < 0 {
		return fmt.Errorf("--check-every must be 0 or more, not %v", c.CheckEvery)
	}
	if c.Listen != "" {
		if err := monitor.CheckAddress(c.Listen); err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
	}
	if c.UI != "" {
		if err := monitor.CheckAddress(c.UI); err != nil {
			return fmt.Errorf("--ui: %w", err)
		}
	}
	return nil
}

// Run claims and delivers until a signal.
func (c *runCmd) Run(ctx context.Context, a *app) error {
	if err := c.checkGiven(a); err != nil {
		return err
	}
	name := c.Node
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return withHint(fmt.Errorf("find a name for this node: %w", err), "Give it one with --node.")
		}
		name = fmt.Sprintf("%s-%d", host, os.Getpid())
	}
	list := c.Shards.List
	if list == nil && !c.Shards.Auto {
		err := a.withConn(ctx, func(conn *pgx.Conn) error {
			return inReadTx(ctx, conn, func(tx pgx.Tx) error {
				return tx.QueryRow(ctx, `select outbox.all_shards()`).Scan(&list)
			})
		})
		if err != nil {
			return err
		}
	}
	w := watcher{address: c.Listen, node: name, survey: c.survey()}
	defer w.close() // last: who asks learns how the node ends
	n, err := c.newNode(ctx, a, name, c.Tick, list, func(config *node.Config) {
		config.Survey, config.EventsNamespace = w.survey, c.EventsNamespace
	}, w.watch(ctx, a))
	if err != nil {
		return err
	}
	if c.UI != "" {
		stop, err := c.serve(ctx, a, name, c.UI, uiNames{listen: "--ui", users: "--ui-users"})
		if err != nil {
			n.close()
			return err
		}
		defer stop()
	}
	return n.work(ctx, a, n.Run)
}

// checkGiven refuses flags on the command line that change nothing. Variables of the environment may be there
// for another command.
func (c *runCmd) checkGiven(a *app) error {
	for _, flag := range []string{"--ui-users", "--ui-actions"} {
		if c.UI == "" && a.given(flag) {
			return usage("%s goes with --ui", flag)
		}
	}
	if c.EventsNamespace == "" && a.given("--events-namespace") {
		return usage("--events-namespace must not be empty")
	}
	return nil
}

// survey is what the node finds out about the outbox as a whole: nothing, where nobody can see it.
func (c *runCmd) survey() node.SurveyConfig {
	if c.Listen == "" && c.EventsNamespace == "" {
		return node.SurveyConfig{}
	}
	return node.SurveyConfig{Every: c.SurveyEvery, Namespaces: c.MetricsTenants, Names: lines(c.MetricsNamespace), CheckEvery: c.CheckEvery}
}
