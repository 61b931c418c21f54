package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

type cancelCmd struct {
	Keys      []string `arg:"" optional:"" name:"key" help:"Dispatch keys of the messages to cancel."`
	Namespace string   `placeholder:"NAMESPACE" env:"SWEEP_CANCEL_NAMESPACE" help:"Cancel every message of this namespace that is pending or claimed."`
	Max       int64    `placeholder:"N" env:"SWEEP_CANCEL_MAX" help:"Most messages of the namespace to cancel; without it, all."`
	Yes       bool     `short:"y" env:"SWEEP_CANCEL_YES" help:"Cancel the namespace without asking."`
	jsonFlag
}

func (cancelCmd) Help() string {
	return `Settles messages as cancelled. A message that is claimed may still be delivered, but the outcome no longer counts. "sweep redrive KEY" makes a cancelled message pending again. The exit code is 1 when a key names no message, or a message that is done or failed.

The messages of a namespace are cancelled in chunks, each in a transaction of its own. Pause the namespace first if none of its messages may be claimed meanwhile. The command asks before it cancels a namespace; without a terminal it needs --yes.

Examples:

    sweep cancel acme/1 acme/2
    sweep cancel --namespace acme --yes
    sweep cancel --namespace acme --max 10000`
}

// Validate demands keys or a namespace, and not both.
func (c *cancelCmd) Validate() error {
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

type cancelResult struct {
	Cancelled int64       `json:"cancelled"`
	Keys      []keyResult `json:"keys,omitempty"`
}

// Run cancels.
func (c *cancelCmd) Run(ctx context.Context, a *app) error {
	if c.Namespace != "" {
		return c.namespace(ctx, a)
	}
	var r cancelResult
	var err error
	if r.Keys, err = a.changeKeys(ctx, c.Keys, cancelKeys); err != nil {
		return err
	}
	for _, k := range r.Keys {
		if k.Was == "pending" || k.Was == "claimed" {
			r.Cancelled++
		}
	}
	return a.printKeys(r.Keys, c.JSON, r, "cancelled", "cancelled")
}

// cancelKeys cancels messages, and returns a result for each key in their order.
func cancelKeys(ctx context.Context, tx pgx.Tx, keys []string) ([]keyResult, error) {
	rows, err := tx.Query(ctx, `select c.dispatch_key, c.was from outbox.cancel($1::text[]) as c`, keys)
	if err != nil {
		return nil, fmt.Errorf("cancel: %w", err)
	}
	was := map[string]string{}
	var key, state string
	_, err = pgx.ForEachRow(rows, []any{&key, &state}, func() error { was[key] = state; return nil })
	if err != nil {
		return nil, fmt.Errorf("cancel: %w", err)
	}
	rest := slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return was[k] != "" })
	states, err := findKeys(ctx, tx, rest)
	if err != nil {
		return nil, err
	}
	out := make([]keyResult, len(keys))
	for i, k := range keys {
		out[i] = keyResult{Key: k, Was: was[k], OK: true}
		if out[i].Was == "" {
			out[i].Was = "unknown"
			if m, ok := states[k]; ok {
				out[i].Was = m.status
			}
			out[i].OK = out[i].Was == "cancelled"
		}
	}
	return out, nil
}

// namespace cancels the messages of a namespace in chunks.
func (c *cancelCmd) namespace(ctx context.Context, a *app) error {
	if err := a.confirm(ctx, c.Yes, fmt.Sprintf("cancel all that is pending and claimed of namespace %q", c.Namespace)); err != nil {
		return err
	}
	return a.withConn(ctx, func(conn *pgx.Conn) error {
		done, err := a.inNamespace(ctx, conn, string(c.Namespace), c.Max, `select outbox.cancel_namespace($2::text, $1::int)`)
		return a.printCount(c.JSON, cancelResult{Cancelled: done}, "cancelled", done, err)
	})
}
