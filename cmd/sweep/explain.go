package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/shards"
)

type explainCmd struct {
	Node     string        `default:"explain" help:"Plan the next claim of this node: it starts where the last claim of the node stopped, or for a name that never claimed, where the last claim from the same shards did, or any (default ${default})."`
	Shards   shards.Choice `default:"all" placeholder:"0-7,12" help:"Shards to claim from: all (the default), auto for those that --node owns, or a list."`
	Batch    int           `default:"${node_batch}" help:"Most messages of the claim (default ${default})."`
	MaxBytes *int64        `placeholder:"BYTES" env:"SWEEP_EXPLAIN_MAX_BYTES" help:"End the claim with the message that brings it to this many bytes of payload."`
	Only     *filled       `placeholder:"NAMESPACE" env:"SWEEP_EXPLAIN_ONLY" help:"Plan for this namespace alone, whether or not the claim would come to it."`
	tableFlags
}

func (explainCmd) Help() string {
	return `Plans a claim and prints the plan: it claims nothing, writes nothing and takes no lock. Prints a row for each namespace that the claim would visit, in the order of the visits. HEADROOM is how many more messages of the namespace may be claimed (CEILING less CLAIMED). The claim would take PASS 1 messages as the namespace's slice, and then PASS 2 of what the slices leave of the batch.

Examples:

    sweep explain
    sweep explain --only acme
    sweep explain --node worker-1 --shards auto
    sweep explain --shards 0-7 --batch 500 --json`
}

// Validate checks the values.
func (c *explainCmd) Validate() error {
	if c.Batch < 1 {
		return fmt.Errorf("--batch must be 1 or more, not %d", c.Batch)
	}
	if c.Node == "" {
		return errors.New("--node must not be empty")
	}
	return nil
}

type explainRow struct {
	Namespace *string `json:"namespace"` // null: the row is about the claim as a whole
	Due       *int64  `json:"due"`
	Claimed   *int32  `json:"claimed"`
	Quota     *int32  `json:"quota"`
	Ceiling   *int32  `json:"ceiling"`
	Headroom  *int32  `json:"headroom"`
	Slice     *int32  `json:"slice"`
	Pass1     *int32  `json:"pass1"`
	Pass2     *int32  `json:"pass2"`
	Reason    string  `json:"reason"`
}

// Run prints the plan.
func (c *explainCmd) Run(ctx context.Context, a *app) error {
	var plan []explainRow
	err := a.withConn(ctx, func(conn *pgx.Conn) error {
		return inReadTx(ctx, conn, func(tx pgx.Tx) error {
			list, err := c.shards(ctx, tx)
			if err != nil {
				return err
			}
			plan, err = rowsOf[explainRow](ctx, tx, "explain", `
				select e.namespace, e.due, e.claimed, e.quota, e.ceiling, e.headroom, e.slice, e.pass1, e.pass2, e.reason
				from outbox.explain_claim($1::text, coalesce($2::int[], outbox.all_shards()), $3::int, $4::bigint, $5::text) as e`,
				c.Node, list, c.Batch, c.MaxBytes, c.Only)
			return err
		})
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return a.printJSON(plan)
	}
	return printPlan(a, c.Wide, plan)
}

// shards returns the shards to claim from; nil is all.
func (c *explainCmd) shards(ctx context.Context, tx pgx.Tx) (list []int32, err error) {
	if !c.Shards.Auto {
		return c.Shards.List, nil
	}
	err = tx.QueryRow(ctx, `select n.shards from outbox.nodes as n where n.node = $1::text and n.live`, c.Node).Scan(&list)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, withHint(fmt.Errorf("there is no live node %q", c.Node), "Give --node the name of a node that 'sweep nodes' shows as live.")
	}
	if err != nil {
		return nil, fmt.Errorf("read the node's shards: %w", err)
	}
	return list, nil
}

func printPlan(a *app, wide bool, plan []explainRow) error {
	visited := 0
	for _, r := range plan {
		if r.Namespace == nil {
			if err := a.printf("%s", visible(r.Reason)); err != nil {
				return err
			}
			continue
		}
		visited++
	}
	if visited == 0 {
		if len(plan) > 0 {
			return nil
		}
		return a.printf("nothing is pending on these shards")
	}
	t := newTable(a.stdout, wide, "NAMESPACE", "DUE", "CLAIMED", "QUOTA", "CEILING", "HEADROOM", "SLICE", "PASS 1", "PASS 2", "REASON")
	for _, r := range plan {
		if r.Namespace != nil {
			t.row(r.Namespace, r.Due, r.Claimed, r.Quota, r.Ceiling, r.Headroom, r.Slice, r.Pass1, r.Pass2, r.Reason)
		}
	}
	return t.flush()
}
