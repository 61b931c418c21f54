package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

type retryCmd struct {
	Keys      []string `arg:"" optional:"" name:"key" help:"Dispatch keys of pending messages."`
	Namespace string   `placeholder:"NAMESPACE" env:"SWEEP_RETRY_NAMESPACE" help:"Every message of this namespace that waits, what is due first at the head."`
	Max       int64    `placeholder:"N" env:"SWEEP_RETRY_MAX" help:"Most messages of the namespace; without it, all."`
	jsonFlag
}

func (retryCmd) Help() string {
	return `Makes pending messages due now that wait for their backoff after a failed attempt, or were enqueued with a delay: after an endpoint is well again, say. Their attempts stay as they are. For dead letters there is "sweep redrive". The exit code is 1 when a key names no pending message.

Examples:

    sweep retry acme/1 acme/2
    sweep retry --namespace acme
    sweep retry --namespace acme --max 100`
}

// Validate demands keys or a namespace, and not both.
func (c *retryCmd) Validate() error {
	switch {
	case len(c.Keys) > 0 && c.Namespace != "":
		return errors.New("<key> and --namespace exclude each other: give one of them")
	case len(c.Keys) == 0 && c.Namespace == "":
		return errors.New("give a <key> or more, or --namespace")
	case c.Max > 0 && c.Namespace == "":
		return errors.New("--max goes with --namespace")
	case slices.Contains(c.Keys, ""):
		return errors.New("<key> must not be empty")
	}
	return checkMax(c.Max)
}

type retryResult struct {
	Due  int64       `json:"due"` // made due by this command
	Keys []keyResult `json:"keys,omitempty"`
}

// Run makes messages due.
func (c *retryCmd) Run(ctx context.Context, a *app) error {
	if c.Namespace != "" {
		return a.withConn(ctx, func(conn *pgx.Conn) error {
			done, err := a.inNamespace(ctx, conn, string(c.Namespace), c.Max, `select outbox.retry_now($2::text, $1::int)`)
			return a.printCount(c.JSON, retryResult{Due: done}, "made due", done, err)
		})
	}
	var r retryResult
	var err error
	if r.Keys, err = a.changeKeys(ctx, c.Keys, retryKeys); err != nil {
		return err
	}
	for _, k := range r.Keys {
		if k.Was == "waiting" {
			r.Due++
		}
	}
	return a.printKeys(r.Keys, c.JSON, r, "due", "made due")
}

// retryKeys makes messages due, and returns a result for each key in their order.
func retryKeys(ctx context.Context, tx pgx.Tx, keys []string) ([]keyResult, error) {
	rows, err := tx.Query(ctx, `select r from outbox.retry_now($1::text[]) as r`, keys)
	if err != nil {
		return nil, fmt.Errorf("retry: %w", err)
	}
	due, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("retry: %w", err)
	}
	made := make(map[string]bool, len(due))
	for _, key := range due {
		made[key] = true
	}
	states, err := findKeys(ctx, tx, slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return made[k] }))
	if err != nil {
		return nil, err
	}
	out := make([]keyResult, len(keys))
	for i, k := range keys {
		out[i] = keyResult{Key: k, Was: "waiting", OK: true}
		if !made[k] {
			out[i].Was = "unknown"
			if m, ok := states[k]; ok {
				out[i].Was = m.status
			}
			out[i].OK = out[i].Was == "pending" // it is due already
		}
	}
	return out, nil
}
