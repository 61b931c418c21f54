package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/shards"
)

type onceCmd struct {
	Node      string        `default:"once" help:"Name of this node (default ${default})."`
	Shards    shards.Choice `default:"all" placeholder:"0-7,12" help:"Which shards to claim from: all (the default), or a list."`
	MaxSweeps int           `placeholder:"N" env:"SWEEP_ONCE_MAX_SWEEPS" help:"End after so many claims; without it, when a claim comes back empty and nothing is in flight."`
	nodeFlags `embed:""`
	jsonFlag
}

func (onceCmd) Help() string {
	return `Delivers what is due and ends: for cron. Two that overlap do no harm: while one claims, the other's claim is empty, and it ends. So it does where a thousand namespaces in a row (max_visits) are paused or at their ceiling; the next one goes on behind them.

It also takes back what a dead node had claimed, once its lease has run out, and deletes what was settled longer ago than the setting retention: at least as many messages as it settles.

Examples:

    sweep once --sink stdout
    sweep once --sink 'http://localhost:8080/hooks/{namespace}' --max-sweeps 100
    sweep once --sink stdout --route 'email=exec:/usr/local/bin/send-mail --from queue'`
}

// Validate refuses numbers that mean nothing.
func (c *onceCmd) Validate() error {
	if c.MaxSweeps < 0 {
		return fmt.Errorf("--max-sweeps must be 0 (no limit) or more, not %d", c.MaxSweeps)
	}
	if c.Node == "" {
		return errors.New("--node must not be empty")
	}
	if c.Shards.Auto {
		return errors.New("--shards auto is for run: once is no node that shards are given to; name all, or a list")
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

// Run sweeps until there is nothing left to do.
func (c *onceCmd) Run(ctx context.Context, a *app) error {
	n, err := c.newNode(ctx, a, c.Node, 0, c.Shards.List)
	if err != nil {
		return err
	}
	if n.toStdout && c.JSON {
		n.close()
		return usage("--json and a stdout sink both want standard output: leave one out")
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
