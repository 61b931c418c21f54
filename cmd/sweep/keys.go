package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// found is a message that was looked up by its key.
type found struct {
	id     int64
	status string
}

// findKeys looks up messages by their keys. Keys that no message has are left out.
func findKeys(ctx context.Context, tx pgx.Tx, keys []string) (map[string]found, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	if err := byIndex(ctx, tx); err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, `
		select m.dispatch_key, m.id, m.status from outbox.messages as m where m.dispatch_key = any ($1::text[])`, keys)
	if err != nil {
		return nil, fmt.Errorf("look up the keys: %w", err)
	}
	all := make(map[string]found, len(keys))
	var key string
	var id int64
	var status *string // null for a moment, while the message moves to another table
	_, err = pgx.ForEachRow(rows, []any{&key, &id, &status}, func() error {
		f := found{id: id, status: "moving"}
		if status != nil {
			f.status = *status
		}
		all[key] = f
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look up the keys: %w", err)
	}
	return all, nil
}

// keyResult is the result for one key.
type keyResult struct {
	Key string `json:"key"`
	Was string `json:"was"` // the message's state before; "unknown" where there is none
	OK  bool   `json:"ok"`
}

// changeKeys runs change, which gives a result for each key in their order, for chunks
// of the keys, each in a transaction of its own.
func (a *app) changeKeys(ctx context.Context, keys []string, change func(context.Context, pgx.Tx, []string) ([]keyResult, error)) ([]keyResult, error) {
	var all []keyResult
	err := a.withConn(ctx, func(conn *pgx.Conn) error {
		for chunk := range slices.Chunk(keys, chunkRows) {
			var results []keyResult
			err := inLockTx(ctx, conn, func(tx pgx.Tx) (err error) {
				results, err = change(ctx, tx, chunk)
				return err
			})
			if err != nil {
				return err
			}
			all = append(all, results...)
		}
		return nil
	})
	return all, err
}

// printKeys prints the result for each key, as a table, or result as JSON. now is the
// state of the keys that are OK. Where a key is not OK, it returns an error.
func (a *app) printKeys(keys []keyResult, asJSON bool, result any, now, verb string) error {
	if asJSON {
		if err := a.printJSON(result); err != nil {
			return err
		}
	} else {
		t := newTable(a.stdout, true, "KEY", "WAS", "NOW")
		for _, k := range keys {
			state := now
			if !k.OK {
				state = k.Was
			}
			t.row(k.Key, k.Was, state)
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	missed := int64(0)
	for _, k := range keys {
		if !k.OK {
			missed++
		}
	}
	if missed > 0 {
		return fmt.Errorf("%s not %s", plural(missed, "key"), verb)
	}
	return nil
}
