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
	Node      string        `placeholder:"NAME" env:"SWEEP_NODE" help:"Name of this node, which no other node may have; without it, the name of the host and the process id."`
	Shards    shards.Choice `default:"auto" placeholder:"0-7,12" help:"Shards to claim from: auto (the default) for the part that the database gives this node, all, or a list."`
	Tick      time.Duration `default:"${node_tick}" help:"Time between claims while there is little to do (default ${default})."`
	nodeFlags `embed:""`
}

func (runCmd) Help() string {
	return `Claims, delivers and settles messages until it is told to stop. The first SIGTERM, SIGINT or SIGHUP drains the node: it claims no more, finishes the messages in flight, releases those that are not finished after --drain-timeout, and ends with exit code 0. A second signal releases all of them at once, exit code 1.

Any number of nodes may run, and each may start and stop at any time. The database gives each node an even part of the shards. When a node dies, its shards go to other nodes after the setting node_lapse. A node with --shards all or a list claims from these shards, and they are given to no other node. 'sweep nodes' shows who owns which.

Examples:

    sweep run --sink 'https://hooks.example.com/{namespace}/{task_queue}'
    sweep run --node worker-1 --shards 0-7 --sink exec:/usr/local/bin/deliver
    sweep run --sink stdout --budget 256MiB --slots 128
    SWEEP_ROUTE=$'email=exec:send-mail\nsms=https://sms.example.com/send' sweep run --sink stdout`
}

// Validate refuses a tick of 0, which in the configuration of a node is the default.
func (c *runCmd) Validate() error {
	if c.Tick == 0 {
		return errors.New("--tick is 0s: give more than 0")
	}
	return nil
}

// Run claims and delivers until a signal.
func (c *runCmd) Run(ctx context.Context, a *app) error {
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
	n, err := c.newNode(ctx, a, name, c.Tick, list)
	if err != nil {
		return err
	}
	return n.work(ctx, a, n.Run)
}
