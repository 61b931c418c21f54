package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// queue is a contender in a database of its own: messages go in, nodes get them, deliver
// them and say so.
type queue interface {
	// setUp installs it; where it is absent the error is an absence.
	setUp(ctx context.Context, l *lab) error
	// enqueue writes messages in one transaction, in the fastest way that it has.
	enqueue(ctx context.Context, jobs []job) error
	// flood makes n small messages of the tenant flood pending.
	flood(ctx context.Context, n int) error
	// work starts nodes that call deliver for each message, from many goroutines.
	work(ctx context.Context, nodes int, deliver deliverFunc) (crew, error)
	// done counts the messages that are settled in the database.
	done(ctx context.Context) (int, error)
	// name, and the database it is in; set-up says how it was set up, in a line.
	name() string
	base() *database
	setup() string
}

// deliverFunc gets a message's JSON, and the token of the claim that brought it; 0 where
// claims have none.
type deliverFunc func(payload []byte, claim int64)

// crew is nodes at work.
type crew interface {
	settled() int64 // messages delivered and settled since the start
	stop(ctx context.Context) error
}

// absence is why a contender does not take part.
type absence string

func (a absence) Error() string { return string(a) }

// job is what all queues carry: the same JSON.
type job struct {
	Tenant string `json:"tenant"`
	N      int    `json:"n"`
	Sent   int64  `json:"sent"` // nanoseconds since 1970
	Pad    string `json:"pad"`
}

// newJob makes one whose JSON has the given length in bytes.
func newJob(tenant string, n, bytes int) job {
	j := job{Tenant: tenant, N: n, Sent: time.Now().UnixNano()}
	j.Pad = strings.Repeat("x", max(bytes-len(j.json()), 0))
	return j
}

func (j job) json() []byte {
	text, err := json.Marshal(j)
	if err != nil {
		panic(fmt.Sprintf("a job of numbers and plain text: %v", err))
	}
	return text
}

const (
	flood      = "flood"
	quiet      = "quiet"
	floodBytes = 200
)

// nodePool is what each node of each contender gets: eight connections.
func nodePool(ctx context.Context, dsn string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 8
	return pgxpool.NewWithConfig(ctx, config)
}

// openQueues sets up all contenders of an experiment. Those that are absent are left out,
// and the report says why.
func (l *lab) openQueues(ctx context.Context, experiment string, fairclaim *outboxQueue) ([]queue, error) {
	var queues []queue
	for _, q := range []queue{fairclaim, &riverQueue{}, &pgmqQueue{}} {
		about := q.setup()
		switch err := q.setUp(ctx, l).(type) {
		case nil:
			queues = append(queues, q)
		case absence:
			about = err.Error()
			l.say("%s is %v", q.name(), err)
		default:
			return nil, fmt.Errorf("set up %s: %w", q.name(), err)
		}
		l.report.Setups = append(l.report.Setups, setup{experiment, q.name(), about})
	}
	return queues, nil
}

func (l *lab) closeQueues(ctx context.Context, queues []queue) error {
	for _, q := range queues {
		if err := l.drop(ctx, q.base()); err != nil {
			return err
		}
	}
	return nil
}
