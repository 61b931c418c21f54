package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// webhook posts messages, and says what becomes of those that are not accepted.
type webhook struct{ url string }

func (w webhook) Deliver(ctx context.Context, d driver.Delivery) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(d.Payload))
	if err != nil {
		return node.Undelivered(err) // it was not tried: its attempt is given back
	}
	request.Header.Set("Content-Type", d.ContentType)
	request.Header.Set("Idempotency-Key", d.DispatchKey)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err // retried, by the policy's backoff
	}
	defer response.Body.Close()
	err = fmt.Errorf("%s answers %s", w.url, response.Status)
	switch {
	case response.StatusCode < 300:
		return nil // done
	case response.StatusCode == http.StatusGone:
		return node.Permanent(err) // failed: a dead letter
	case response.StatusCode == http.StatusTooManyRequests:
		return node.RetryAfter(err, time.Minute)
	default:
		return err
	}
}

// A node delivers until the process is told to stop; then it finishes what is in flight.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://sweeper@db.example.com/app")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	n, err := node.New(pool, node.Config{Node: "worker-1", Sink: webhook{"https://hooks.example.com/"}})
	if err != nil {
		log.Fatal(err)
	}
	stop, cancel := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer cancel()
	context.AfterFunc(stop, n.Drain)
	if err := n.Run(ctx); err != nil {
		log.Fatal(err)
	}
	log.Printf("delivered %d messages", n.Stats().Done)
}

// Task queues can have sinks of their own, each with its own slots: one that hangs keeps the
// others' messages from nothing.
func ExampleConfig_routes() {
	c := node.Config{
		Node: "worker-1",
		Sink: webhook{"https://hooks.example.com/"},
		Routes: map[string]node.Sink{
			"audit": node.SinkFunc(func(_ context.Context, d driver.Delivery) error {
				log.Printf("%s: %s", d.DispatchKey, d.Payload)
				return nil
			}),
		},
		Slots: 16,
	}
	fmt.Println(c.Check())
	c.Share = 2
	fmt.Println(c.Check())
	// Output:
	// <nil>
	// config.Share is 2: give more than 0, up to 1
}

// A sink that works in the outbox's database settles each message in the transaction of its
// work: the invoice is written exactly once.
func ExampleErrSettled() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://biller@db.example.com/app")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	biller := node.SinkFunc(func(ctx context.Context, d driver.Delivery) error {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "insert into invoices (order_key) values ($1)", d.DispatchKey); err != nil {
				return err
			}
			lost, err := driver.Complete(ctx, tx, []driver.Ref{d.Ref()})
			if err == nil && len(lost) > 0 {
				err = errors.New("another node has the message by now") // and roll the invoice back
			}
			return err
		})
		if err != nil {
			return err
		}
		return node.ErrSettled
	})
	n, err := node.New(pool, node.Config{Node: "biller", Sink: biller})
	if err != nil {
		log.Fatal(err)
	}
	if err := n.Once(ctx, 0); err != nil {
		log.Fatal(err)
	}
}

// The verdicts wrap an error, and keep its text and what it holds.
func ExamplePermanent() {
	boom := errors.New("no such customer")
	err := node.Permanent(fmt.Errorf("deliver: %w", boom))
	fmt.Println(err, errors.Is(err, boom))
	fmt.Println(node.Permanent(nil))
	// Output:
	// deliver: no such customer true
	// <nil>
}
