package driver_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/sql/migrations"
)

// The schema is installed, or brought up to date, by a role that may create it. Many processes
// may do so at once.
func Example_migrate() {
	ctx := context.Background()
	result, err := migrations.Up(ctx, "postgres://owner@db.example.com/app", migrations.Options{})
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("from version %d to %d", result.From, result.To)
}

// A message is enqueued in the transaction that makes it true.
func ExampleEnqueue() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://app@db.example.com/app")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "insert into orders (id, customer) values ($1, $2)", 17, "acme"); err != nil {
			return err
		}
		_, err := driver.Enqueue(ctx, tx, driver.Message{
			Namespace: "acme", TaskQueue: "webhook", DispatchKey: "acme/order/17",
			Payload: []byte(`{"order": 17}`),
		})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}

// Thousands of messages are enqueued in one call. Those whose key the namespace has already are
// told apart, and no error.
func ExampleEnqueueBatch() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://app@db.example.com/app")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	var messages []driver.Message
	for id := range 1000 {
		messages = append(messages, driver.Message{
			Namespace: "acme", TaskQueue: "email", DispatchKey: fmt.Sprint("acme/reminder/", id), Delay: time.Hour,
		})
	}
	results, err := driver.EnqueueBatch(ctx, pool, messages)
	if err != nil {
		log.Fatal(err)
	}
	for i, result := range results {
		if result.Duplicate {
			log.Printf("%s is there already", messages[i].DispatchKey)
		}
	}
}

// A consumer in the same database completes each message in the transaction of its own work:
// the invoice is written exactly once, whatever dies on the way.
func ExampleComplete() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://biller@db.example.com/app")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	settings, err := driver.Settings(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	var shards []int32
	for shard := range settings.ShardCount {
		shards = append(shards, int32(shard))
	}

	claimed, err := driver.Claim(ctx, pool, driver.ClaimRequest{Node: "biller", Shards: shards, Batch: 10})
	if err != nil {
		log.Fatal(err)
	}
	errLost := errors.New("another claimer has the message")
	for _, d := range claimed.Deliveries {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "insert into invoices (order_key) values ($1)", d.DispatchKey); err != nil {
				return err
			}
			lost, err := driver.Complete(ctx, tx, []driver.Ref{d.Ref()})
			if err == nil && len(lost) > 0 {
				err = errLost // and roll the invoice back
			}
			return err
		})
		if err == nil || errors.Is(err, errLost) {
			continue
		}
		if _, err := driver.Retry(ctx, pool, []driver.Failure{{Ref: d.Ref(), Reason: err.Error()}}); err != nil {
			log.Print(err) // the lease expires, and the message is due again
		}
	}
}

// What no outbox could take is found before the database is asked.
func ExampleMessage_Validate() {
	err := driver.Message{Namespace: "acme", TaskQueue: "webhook"}.Validate()
	fmt.Println(err)
	fmt.Println(errors.Is(err, driver.ErrBadArgument))
	// Output:
	// bad argument: dispatch_key has 0 bytes, not 1 to 512
	// true
}

// The backoff doubles from a second on, up to an hour, with the defaults of an outbox.
func ExampleRetryPolicy_Backoff() {
	policy := driver.RetryPolicy{MaxAttempts: 20, Base: time.Second, Cap: time.Hour, Multiplier: 2, Jitter: 0.2}
	for _, attempt := range []int32{1, 2, 3, 10, 19} {
		fmt.Println(attempt, policy.Backoff(attempt, 0.5))
	}
	// Output:
	// 1 1s
	// 2 2s
	// 3 4s
	// 10 8m32s
	// 19 1h0m0s
}

// The trace of a request goes along with what the request enqueues. With OpenTelemetry, inject is
//
//	func(ctx context.Context, headers map[string]string) {
//		otel.GetTextMapPropagator().Inject(ctx, propagation.MapCarrier(headers))
//	}
//
// and whoever gets the message continues the trace:
//
//	ctx = otel.GetTextMapPropagator().Extract(ctx, propagation.MapCarrier(delivery.Headers))
func ExampleFillHeaders() {
	type traceKey struct{} // stands for a propagator's own
	inject := func(ctx context.Context, headers map[string]string) {
		if trace, ok := ctx.Value(traceKey{}).(string); ok {
			headers["traceparent"] = trace
		}
	}
	withHeaders := driver.FillHeaders(context.Background(), inject) // once, where the program starts

	var pool *pgxpool.Pool
	handle := func(ctx context.Context) error { // of a request
		_, err := driver.Enqueue(ctx, pool, driver.Message{
			Namespace: "acme", TaskQueue: "webhook", DispatchKey: "acme/order/17", Payload: []byte(`{"order": 17}`),
		})
		return err
	}
	request := context.WithValue(withHeaders, traceKey{}, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	if pool != nil {
		if err := handle(request); err != nil {
			log.Fatal(err)
		}
	}
}
