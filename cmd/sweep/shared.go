package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

type sharedCmd struct {
	Queue  string `arg:"" name:"task-queue" help:"The task queue."`
	Shared string `arg:"" enum:"yes,no,auto" help:"yes: failures of several namespaces in a row hold the task queue for all; no: never; auto: nodes say so, as they know it from their sinks."`
	jsonFlag
}

func (sharedCmd) Help() string {
	return `Where the messages of all namespaces go to one endpoint, ten failures in a row, of five namespaces at least, hold the task queue for all. A sink whose URL has the same host for every namespace says so by itself; commands do not, since they may call an endpoint of each namespace. A hold that is there already stays: "sweep lift --all" ends it.

Examples:

    sweep shared mail yes       # the command sends all through one provider
    sweep shared hooks no       # a gateway, with an endpoint of each tenant behind it
    sweep shared hooks auto`
}

// Validate demands a task queue.
func (c *sharedCmd) Validate() error {
	if c.Queue == "" {
		return errors.New("<task-queue> must not be empty")
	}
	return nil
}

// Run says so.
func (c *sharedCmd) Run(ctx context.Context, a *app) error {
	r := struct {
		TaskQueue string `json:"task_queue"`
		Shared    *bool  `json:"shared"` // null: nodes say so
	}{TaskQueue: c.Queue}
	text := "nodes say whether the namespaces of task queue %q share an endpoint"
	switch c.Shared {
	case "yes":
		r.Shared, text = new(true), "the namespaces of task queue %q share an endpoint: it is held for all of them"
	case "no":
		r.Shared, text = new(false), "the namespaces of task queue %q share no endpoint: it is held for each of them alone"
	}
	err := a.withConn(ctx, func(conn *pgx.Conn) error {
		return inLockTx(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `select outbox.set_shared($1::text, $2::boolean)`, c.Queue, r.Shared); err != nil {
				return fmt.Errorf("set shared: %w", err)
			}
			return nil
		})
	})
	switch {
	case err != nil:
		return err
	case c.JSON:
		return a.printJSON(r)
	}
	return a.printf(text, c.Queue)
}
