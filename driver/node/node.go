package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/fairclaim/fairclaim/budget"
	"github.com/fairclaim/fairclaim/driver"
)

// Node is one node of an outbox: it claims, hands on to sinks, and settles. Make one with
// [New], and call [Node.Run] or [Node.Once], once. [Node.Drain] and [Node.Stats] may be called from
// any goroutine.
type Node struct {
	db     driver.DB
	config Config
	stats  counters
	budget budget.Inflight

	drain     chan struct{}
	drainOnce sync.Once
	used      atomic.Bool
}

// New makes a node. db is best a *pgxpool.Pool of three connections or more, and one more where the node surveys: settles
// and prunes are made beside claims then. With two connections settles are, and with any other db all calls are made one
// at a time. It stays the caller's to close. The error names the field of config that no node could work with.
func New(db driver.DB, config Config) (*Node, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	return &Node{db: db, config: config, drain: make(chan struct{})}, nil
}

// Drain makes Run or Once come to an orderly end: no new claims; what is in flight is
// finished, until Config.DrainTimeout; the rest is released. It returns at once and may
// be called from anywhere, more than once.
func (n *Node) Drain() { n.drainOnce.Do(func() { close(n.drain) }) }

// Run works until it is told to end: by [Node.Drain], in good order, and it returns
// nil; or by ctx, at once: deliveries are cancelled, all is released, and it returns the
// cause of ctx's end. It also ends when a sink says [ErrSinkClosed], with that error.
// Errors of the database end it only before the first claim; later ones are logged and
// tried again, with growing pauses.
//
// No goroutine outlives Run, unless a sink ignores the end of its context for more than
// five seconds; then Run returns an error that says so. No transaction is open while a
// sink works.
func (n *Node) Run(ctx context.Context) error { return n.work(ctx, true, 0) }

// Once works until a claim that is made with nothing in flight has looked at all and brings
// nothing, or, with maxClaims above 0, for that many claims; then it finishes what is in flight.
// While other claims have its shards, it tries again, for twice the setting claim_idle_timeout;
// then it fails. It is no live node: it sends no heartbeats. Otherwise as [Node.Run], but an
// error of the database ends it, unless the call may work when made again, and so does a sink that
// hands back all that a claim brought as [Undelivered]: the next claim would bring it again.
func (n *Node) Once(ctx context.Context, maxClaims int) error { return n.work(ctx, false, maxClaims) }

// Stats returns the counts so far. It may be called at any time, from any goroutine.
func (n *Node) Stats() Stats { return n.stats.read(n.budget.Usage()) }

func (n *Node) work(ctx context.Context, live bool, maxClaims int) error {
	if n.used.Swap(true) {
		return errors.New("node: it has run already, make another")
	}
	l := &loop{db: n.db, config: n.config, stats: &n.stats, drain: n.drain, live: live}
	if err := l.start(ctx, &n.budget, maxClaims); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	return l.run(ctx)
}
