package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/shards"
	"github.com/fairclaim/fairclaim/driver/node"
)

type onceCmd struct {
	Node      string        `default:"once" help:"Name of this node (default ${default})."`
	Shards    shards.Choice `default:"all" placeholder:"0-7,12" help:"Shards to claim from: all (the default), or a list."`
	MaxSweeps int           `placeholder:"N" env:"SWEEP_ONCE_MAX_SWEEPS" help:"End after N claims. Without it, end when a claim comes back empty and no message is in flight."`
	nodeFlags `embed:""`
	jsonFlag
}

func (onceCmd) Help() string {
	return `Delivers the messages that are due, and ends: for cron. Two runs may overlap: while one of them claims, the claim of the other is empty, and the other ends. A run also ends, before all is delivered, when it meets a thousand namespaces in a row (the setting max_visits) that are paused or at their ceiling; the next run goes on behind them.

The run also makes messages pending again that a dead node had claimed, once their leases have expired, and deletes messages that were settled longer ago than the setting retention: at least as many as it settles.

The exit code is 0 also where deliveries failed: those messages are retried, or end as failed.

Examples:

    sweep once --sink stdout
    sweep once --sink 'http://localhost:8080/hooks/{namespace}' --max-sweeps 100
    sweep once --sink stdout --route 'email=exec:/usr/local/bin/send-mail --from queue'`
}

// Validate checks the values.
func (c *onceCmd) Validate() error {
	if c.MaxSweeps < 0 {
		return fmt.Errorf("--max-sweeps must be 0 (no limit) or more, not %d", c.MaxSweeps)
	}
	if c.Node == "" {
		return errors.New("--node must not be empty")
	}
	if c.Shards.Auto {
		return errors.New("--shards auto is for run: the database gives no shards to once; give all, or a list")
	}
	return nil
}

type onceResult struct {
	Sweeps   int64 `json:"sweeps"`
	Claimed  int64 `json:"claimed"`
	Done     int64 `json:"done"`
	Retried  int64 `json:"retried"`
	Failed   int64 `json:"failed"`
	Released int64 `json:"released"`
	Lost     int64 `json:"lost"`
}

// Run delivers until there is nothing left to do.
func (c *onceCmd) Run(ctx context.Context, a *app) error {
	n, err := c.newNode(ctx, a, c.Node, 0, c.Shards.List, func(*node.Config) {}, nil)
	if err != nil {
		return err
	}
	if n.toStdout && c.JSON {
		n.close()
		return usage("--json and the sink stdout both write to standard output: leave one of them out")
	}
	err = n.work(ctx, a, func(ctx context.Context) error { return n.Once(ctx, c.MaxSweeps) })
	if n.toStdout {
		return err
	}
	s := n.Stats()
	r := onceResult{s.Sweeps, s.Claimed, s.Done, s.Retried, s.Failed, s.Released, s.Lost}
	if c.JSON {
		return errors.Join(err, a.printJSON(r))
	}
	return errors.Join(err, a.printf("claimed %d: done %d, to be retried %d, failed %d, released %d, lost %d",
		r.Claimed, r.Done, r.Retried, r.Failed, r.Released, r.Lost))
}
