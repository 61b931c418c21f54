package main

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fairclaim/fairclaim/driver"
)

//go:embed bench.sql
var benchSQL string

const (
	fair  = "claim_fair"
	blind = "blind"
)

// blindIndex is the one index that the blind claim reads by.
const blindIndex = `create index if not exists pending_first_come on outbox.pending (visible_after, id)`

// claimer claims from an outbox over a connection of its own, one claim at a time.
type claimer struct {
	db     *database
	client *pgxpool.Pool
	via    driver.DB
	node   string
	shards []int32
	some   bool // a claim may bring less than it asks for, though not nothing in all

	held    [][]driver.Delivery // claimed and not settled, the oldest first
	took    []float64           // ms, of the timed claims
	brought []float64           // rows
}

// newClaimer makes one of the contenders fair and blind.
func newClaimer(ctx context.Context, db *database, contender string) (*claimer, error) {
	client, err := db.single(ctx)
	if err != nil {
		return nil, err
	}
	c := &claimer{db: db, client: client, via: client, node: contender}
	if contender == blind {
		c.via = blindDB{client}
	}
	c.shards, err = ask[[]int32](ctx, db.pool, `select outbox.all_shards()`)
	return c, err
}

func (c *claimer) close() { c.client.Close() }

// inFlight is how many claims stay unsettled, as those that are being delivered.
const inFlight = 1

// turn times one claim, as the client sees it: one transaction, its commit included.
// Then, untimed, it settles the claim before and replaces what that had brought.
func (c *claimer) turn(ctx context.Context, batch int) error {
	start := time.Now()
	claimed, err := driver.Claim(ctx, c.via, driver.ClaimRequest{Node: c.node, Shards: c.shards, Batch: batch})
	took := time.Since(start)
	if err != nil {
		return err
	}
	messages := claimed.Deliveries
	if len(messages) != batch && !c.some {
		return fmt.Errorf("%s: a claim of %d brought %d", c.node, batch, len(messages))
	}
	c.took = append(c.took, milliseconds(took))
	c.brought = append(c.brought, float64(len(messages)))
	c.held = append(c.held, messages)
	return c.settle(ctx, inFlight)
}

// settle settles all claims but the latest ones.
func (c *claimer) settle(ctx context.Context, keep int) error {
	for len(c.held) > keep {
		messages := c.held[0]
		c.held = c.held[1:]
		ids, tokens := make([]int64, len(messages)), make([]int64, len(messages))
		for i := range messages {
			ids[i], tokens[i] = messages[i].ID, messages[i].ClaimToken
		}
		settled, err := ask[int](ctx, c.db.pool, `select bench.replace($1, $2)`, ids, tokens)
		if err != nil {
			return err
		}
		if settled != len(ids) {
			return fmt.Errorf("%s: claimed %d messages and settled %d of them", c.node, len(ids), settled)
		}
	}
	return nil
}

// takeTurns lets the claimers claim in turn and returns what each took, in ms. Nothing
// stays claimed.
func (l *lab) takeTurns(ctx context.Context, rounds, batch int, claimers ...*claimer) ([]summary, error) {
	var steps []func(context.Context) error
	for _, c := range claimers {
		steps = append(steps, func(ctx context.Context) error { return c.turn(ctx, batch) })
	}
	if err := interleave(ctx, l.size.warmUp, steps...); err != nil {
		return nil, err
	}
	for _, c := range claimers {
		c.took, c.brought = nil, nil
	}
	if err := interleave(ctx, rounds, steps...); err != nil {
		return nil, err
	}
	var sums []summary
	for _, c := range claimers {
		if err := c.settle(ctx, 0); err != nil {
			return nil, err
		}
		if summarize(c.brought).Max == 0 {
			return nil, fmt.Errorf("%s: no claim of %d brought anything", c.node, batch)
		}
		sums = append(sums, summarize(c.took))
	}
	return sums, nil
}

// blindDB makes driver.Claim call the blind claim, and changes nothing else on its way.
type blindDB struct{ *pgxpool.Pool }

func (b blindDB) BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error) {
	tx, err := b.Pool.BeginTx(ctx, options)
	return blindTx{tx}, err
}

type blindTx struct{ pgx.Tx }

func (b blindTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	changed := strings.Replace(sql, "outbox.claim_fair(", "bench.claim_blind(", 1)
	if changed == sql {
		return nil, fmt.Errorf("no claim to replace in: %s", sql)
	}
	return b.Tx.Query(ctx, changed, args...)
}
