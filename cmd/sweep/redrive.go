package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"
)

type redriveCmd struct {
	Keys      []string `arg:"" optional:"" name:"key" help:"Dispatch keys of failed or cancelled messages."`
	ID        []int64  `name:"id" placeholder:"ID" env:"SWEEP_REDRIVE_ID" help:"Ids of failed or cancelled messages: repeat the flag, or separate ids by commas."`
	Namespace string   `placeholder:"NAMESPACE" env:"SWEEP_REDRIVE_NAMESPACE" help:"Redrive every failed message of this namespace, the oldest first."`
	Max       int64    `placeholder:"N" env:"SWEEP_REDRIVE_MAX" help:"Most messages of the namespace to redrive; without it, all."`
	jsonFlag
}

func (redriveCmd) Help() string {
	return `Makes messages pending and due again. Their attempts count from 0 again; their failures stay on record. By key or id, failed and cancelled messages are redriven; by --namespace, only failed ones. The exit code is 1 when a key or an id could not be redriven.

Examples:

    sweep redrive acme/1
    sweep redrive --id 17,18
    sweep redrive --namespace acme --max 100`
}

// Validate demands exactly one way to name messages.
func (c *redriveCmd) Validate() error {
	ways := 0
	for _, given := range []bool{len(c.Keys) > 0, len(c.ID) > 0, c.Namespace != ""} {
		if given {
			ways++
		}
	}
	switch {
	case ways == 0:
		return errors.New("give a <key> or more, --id, or --namespace")
	case ways > 1:
		return errors.New("<key>, --id and --namespace exclude each other: give one of them")
	case c.Max > 0 && c.Namespace == "":
		return errors.New("--max goes with --namespace")
	case slices.Contains(c.Keys, ""):
		return errors.New("<key> must not be empty")
	}
	return checkMax(c.Max)
}

type redriveResult struct {
	Redriven int64       `json:"redriven"`
	Keys     []keyResult `json:"keys,omitempty"` // or by id: Key is the id
}

// Run redrives messages.
func (c *redriveCmd) Run(ctx context.Context, a *app) error {
	if c.Namespace != "" {
		return c.namespace(ctx, a)
	}
	var r redriveResult
	names, redrive := c.Keys, redriveKeys
	if len(c.ID) > 0 {
		names, redrive = texts(c.ID), redriveIDs
	}
	var err error
	if r.Keys, err = a.changeKeys(ctx, names, redrive); err != nil {
		return err
	}
	for _, k := range r.Keys {
		if k.OK {
			r.Redriven++
		}
	}
	return a.printKeys(r.Keys, c.JSON, r, "pending", "brought back")
}

func texts(ids []int64) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = strconv.FormatInt(id, 10)
	}
	return out
}

func redriveKeys(ctx context.Context, tx pgx.Tx, keys []string) ([]keyResult, error) {
	messages, err := findKeys(ctx, tx, keys)
	if err != nil {
		return nil, err
	}
	var ids []int64
	for _, m := range messages {
		ids = append(ids, m.id)
	}
	back, err := redriveCall(ctx, tx, ids)
	if err != nil {
		return nil, err
	}
	out := make([]keyResult, len(keys))
	for i, k := range keys {
		m, ok := messages[k]
		if !ok {
			m.status = "unknown"
		}
		out[i] = keyResult{Key: k, Was: m.status, OK: back[m.id]}
	}
	return out, nil
}

func redriveIDs(ctx context.Context, tx pgx.Tx, names []string) ([]keyResult, error) {
	ids := make([]int64, len(names))
	for i, name := range names {
		ids[i], _ = strconv.ParseInt(name, 10, 64) // texts wrote them
	}
	if err := byIndex(ctx, tx); err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, `select m.id, m.status from outbox.messages as m where m.id = any ($1::bigint[])`, ids)
	if err != nil {
		return nil, fmt.Errorf("look up the ids: %w", err)
	}
	was := map[int64]string{}
	var id int64
	var status *string
	_, err = pgx.ForEachRow(rows, []any{&id, &status}, func() error {
		was[id] = "moving"
		if status != nil {
			was[id] = *status
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look up the ids: %w", err)
	}
	back, err := redriveCall(ctx, tx, ids)
	if err != nil {
		return nil, err
	}
	out := make([]keyResult, len(ids))
	for i, id := range ids {
		out[i] = keyResult{Key: names[i], Was: was[id], OK: back[id]}
		if out[i].Was == "" {
			out[i].Was = "unknown"
		}
	}
	return out, nil
}

// redriveCall redrives messages, and returns the ids of those that were.
func redriveCall(ctx context.Context, tx pgx.Tx, ids []int64) (map[int64]bool, error) {
	rows, err := tx.Query(ctx, `select r from outbox.redrive(coalesce($1::bigint[], '{}')) as r`, ids)
	if err != nil {
		return nil, fmt.Errorf("redrive: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("redrive: %w", err)
	}
	back := make(map[int64]bool, len(list))
	for _, id := range list {
		back[id] = true
	}
	return back, nil
}

// namespace redrives the failed messages of a namespace in chunks.
func (c *redriveCmd) namespace(ctx context.Context, a *app) error {
	return a.withConn(ctx, func(conn *pgx.Conn) error {
		done, err := a.inChunks(ctx, conn, c.Max, `select outbox.redrive($2::text, $1::int)`, c.Namespace)
		return a.printCount(c.JSON, redriveResult{Redriven: done}, "redriven", done, err)
	})
}
