package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/shards"
)

type runCmd struct {
	Node      string        `placeholder:"NAME" env:"SWEEP_NODE" help:"Name of this node, unlike that of any other; without it, the host's name and the process id."`
	Shards    shards.Choice `default:"auto" placeholder:"0-7,12" help:"Which shards to claim from: auto (the default), its part of those that no node names; all; or a list."`
	Tick      time.Duration `default:"${node_tick}" help:"Time between claims while there is little to do (default ${default})."`
	nodeFlags `embed:""`
}

func (runCmd) Help() string {
	return `Claims, delivers and settles until it is told to stop. The first SIGTERM, SIGINT or SIGHUP drains: no new claims, what is in flight is finished until --drain-timeout, the rest is released, exit 0. A second one releases at once, exit 1.

Any number of nodes may run, and come and go. The database gives each an even part of the shards, and those of a node that dies to the others once it has been silent for the setting node_lapse. With --shards and a list, or all, a node has those, and no other is given them. 'sweep nodes' shows who has which.

Examples:

    sweep run --sink 'https://hooks.example.com/{namespace}/{task_queue}'
    sweep run --node worker-1 --shards 0-7 --sink exec:/usr/local/bin/deliver
    sweep run --sink stdout --budget 256MiB --slots 128
    SWEEP_ROUTE=$'email=exec:send-mail\nsms=https://sms.example.com/send' sweep run --sink stdout`
}

// Validate checks the tick: the zero value in a node's configuration is the default.
func (c *runCmd) Validate() error {
	if c.Tick == 0 {
		return errors.New("--tick is 0s: give more than 0")
	}
	return nil
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
	n, err := c.newNode(ctx, a, name, c.Tick, list)
	if err != nil {
		return err
	}
	return n.work(ctx, a, n.Run)
}
