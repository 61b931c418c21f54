package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/deadletters"
)

type redriveCmd struct {
	Keys         []string `arg:"" optional:"" name:"key" help:"Dispatch keys of failed or cancelled messages."`
	ID           []int64  `name:"id" placeholder:"ID" env:"SWEEP_REDRIVE_ID" help:"Ids of failed or cancelled messages: repeat the flag, or separate ids by commas."`
	failedFilter `embed:"" envprefix:"SWEEP_REDRIVE_"`
	Max          int64             `placeholder:"N" env:"SWEEP_REDRIVE_MAX" help:"Most messages to redrive, the oldest first; without it, all."`
	Rate         *deadletters.Rate `placeholder:"N/s" env:"SWEEP_REDRIVE_RATE" help:"Redrive no faster than this, in chunks: 50/s, 600/m, 5/h."`
	DryRun       bool              `env:"SWEEP_REDRIVE_DRY_RUN" help:"Only count what would be redriven."`
	Yes          bool              `short:"y" env:"SWEEP_REDRIVE_YES" help:"Redrive without asking."`
	jsonFlag
}

func (redriveCmd) Help() string {
	return `Makes messages pending and due again. Their attempts count from 0 again; their failures stay on record. By key or id, failed and cancelled messages are redriven; by --namespace, --route, --error, --since and --until, only failed ones: those that "sweep failed" lists with the same flags, the oldest first. What fails again meanwhile is not redriven twice. The exit code is 1 when a key or an id could not be redriven.

Where the flags choose more than 1000 messages, the command asks first; without a terminal it then needs --yes.

Examples:

    sweep redrive acme/1
    sweep redrive --id 17,18
    sweep redrive --namespace acme --max 100
    sweep redrive --error 'connection refused' --since 2h --dry-run
    sweep redrive --error 'connection refused' --since 2h --rate 50/s --yes`
}

// Validate demands exactly one way to name messages.
func (c *redriveCmd) Validate() error {
	ways := 0
	for _, given := range []bool{len(c.Keys) > 0, len(c.ID) > 0, c.Namespace != "" || c.narrows()} {
		if given {
			ways++
		}
	}
	switch {
	case ways == 0:
		return errors.New("give a <key> or more, --id, or what to choose dead letters by: --namespace, --route, --error, --since, --until")
	case ways > 1:
		return errors.New("<key>, --id and --namespace (or --route, --error, --since, --until) exclude each other: give one of them")
	case c.Max > 0 && c.Namespace == "" && !c.narrows():
		return errors.New("--max goes with --namespace, --route, --error, --since or --until")
	case len(c.Keys)+len(c.ID) > 0 && (c.DryRun || c.Rate != nil):
		return errors.New("--dry-run and --rate go with --namespace, --route, --error, --since or --until")
	case slices.Contains(c.Keys, ""):
		return errors.New("<key> must not be empty")
	}
	if err := c.checkWindow(); err != nil {
		return err
	}
	return checkMax(c.Max)
}

type redriveResult struct {
	Redriven int64       `json:"redriven"`
	Would    *int64      `json:"would_redrive,omitempty"` // with --dry-run
	Keys     []keyResult `json:"keys,omitempty"`          // or by id: Key is the id
}

// Run redrives messages.
func (c *redriveCmd) Run(ctx context.Context, a *app) error {
	switch {
	case c.narrows() || c.Rate != nil || c.DryRun:
		return c.some(ctx, a)
	case c.Namespace != "":
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
	back, err := deadletters.RedriveIDs(ctx, tx, ids)
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
	back, err := deadletters.RedriveIDs(ctx, tx, ids)
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
