package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

type runCmd struct {
	Node      string        `placeholder:"NAME" env:"SWEEP_NODE" help:"Name of this node, unlike that of any other; without it, the host's name and the process id."`
	Tick      time.Duration `default:"500ms" help:"Time between claims while there is little to do (default ${default})."`
	nodeFlags `embed:""`
}

func (runCmd) Help() string {
	return `Claims, delivers and settles until it is told to stop. The first SIGTERM or SIGINT drains: no new claims, what is in flight is finished until --drain-timeout, the rest is released, exit 0. A second one releases at once, exit 1.

Any number of nodes may run. Shards tell them apart: give each its own, or let all have all; a node finds those that another one is claiming from taken, and passes them over.

Examples:

    sweep run --sink 'https://hooks.example.com/{namespace}/{task_queue}'
    sweep run --node worker-1 --shards 0-7 --sink exec:/usr/local/bin/deliver
    sweep run --sink stdout --budget 256MiB --slots 128`
}

// Validate refuses what no node could work with.
func (c *runCmd) Validate() error {
	if c.Tick <= 0 {
		return fmt.Errorf("--tick must be above 0, not %v", c.Tick)
	}
	return c.nodeFlags.Validate()
}

// Run works as a node.
func (c *runCmd) Run(ctx context.Context, a *app) error {
	name := c.Node
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return withHint(fmt.Errorf("name this node: %w", err), "--node names it.")
		}
		name = fmt.Sprintf("%s-%d", host, os.Getpid())
	}
	n, err := c.newNode(ctx, a, name, c.Tick)
	if err != nil {
		return err
	}
	return n.work(ctx, a, n.Run)
}
