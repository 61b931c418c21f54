package integration

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fairclaim/fairclaim/driver"
)

// enqueuer is one way to enqueue, as the tests below use it.
type enqueuer struct {
	name  string
	one   func(ctx context.Context, m driver.Message) (driver.Enqueued, error)
	batch func(ctx context.Context, ms []driver.Message) ([]driver.Enqueued, error)
}

var execModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement,
	pgx.QueryExecModeCacheDescribe,
	pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec,
	pgx.QueryExecModeSimpleProtocol,
}

// enqueuers returns every way into the database: each query execution mode of pgx
// through a connection, a transaction (committed at once) and database/sql.
func enqueuers(t *testing.T, dsn string) []enqueuer {
	t.Helper()
	var all []enqueuer
	for _, mode := range execModes {
		config, err := pgx.ParseConfig(dsn)
		if err != nil {
			t.Fatal(err)
		}
		config.DefaultQueryExecMode = mode
		conn, err := pgx.ConnectConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(context.Background()) })
		db := stdlib.OpenDB(*config)
		t.Cleanup(func() { db.Close() })
		all = append(all,
			enqueuer{
				mode.String() + "/conn",
				func(ctx context.Context, m driver.Message) (driver.Enqueued, error) {
					return driver.Enqueue(ctx, conn, m)
				},
				func(ctx context.Context, ms []driver.Message) ([]driver.Enqueued, error) {
					return driver.EnqueueBatch(ctx, conn, ms)
				},
			},
			enqueuer{
				mode.String() + "/tx",
				func(ctx context.Context, m driver.Message) (e driver.Enqueued, err error) {
					err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { e, err = driver.Enqueue(ctx, tx, m); return err })
					return e, err
				},
				func(ctx context.Context, ms []driver.Message) (es []driver.Enqueued, err error) {
					err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { es, err = driver.EnqueueBatch(ctx, tx, ms); return err })
					return es, err
				},
			},
			enqueuer{
				mode.String() + "/sql",
				func(ctx context.Context, m driver.Message) (driver.Enqueued, error) {
					return driver.EnqueueSQL(ctx, db, m)
				},
				func(ctx context.Context, ms []driver.Message) ([]driver.Enqueued, error) {
					return driver.EnqueueBatchSQL(ctx, db, ms)
				},
			})
	}
	return all
}

// oddMessages are messages whose texts and bytes try every quoting on the way.
func oddMessages(prefix string) []driver.Message {
	var ms []driver.Message
	for i, s := range []string{
		`plain`, `it's`, `say "hi"`, `back\slash`, `\\x41`, `{1,2}`, `NULL`, `null`, `,`, ` pad `, "tab\tline\nfeed\r", `100%`, `$1`, `$$`, `;--`,
		"e\u0301", "\u00e9", "שלום", "\u202eevil", "🦉", "\x01\x1b[31m", strings.Repeat("ü", 125),
	} {
		ms = append(ms, driver.Message{
			Namespace: s, TaskQueue: s, DispatchKey: prefix + s, ContentType: "text/" + s,
			Payload: []byte(s), Headers: map[string]string{s: s, "n": fmt.Sprint(i)},
		})
	}
	return append(ms,
		driver.Message{Namespace: "bytes", TaskQueue: "q", DispatchKey: prefix + "nil"},
		driver.Message{Namespace: "bytes", TaskQueue: "q", DispatchKey: prefix + "all", Payload: allBytes()},
		driver.Message{Namespace: "bytes", TaskQueue: "q", DispatchKey: prefix + "hex", Payload: []byte(`\x4142`)})
}

func allBytes() []byte {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// stored is a message as the tables hold it.
func stored(t *testing.T, q querier, key string) driver.Message {
	t.Helper()
	rows, _ := q.Query(t.Context(), `select namespace, task_queue, dispatch_key, content_type, headers, payload
		from outbox.message where dispatch_key = $1`, key)
	m, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (m driver.Message, err error) {
		err = row.Scan(&m.Namespace, &m.TaskQueue, &m.DispatchKey, &m.ContentType, &m.Headers, &m.Payload)
		return m, err
	})
	if err != nil {
		t.Fatalf("message %q: %v", key, err)
	}
	return m
}

func wantStored(t *testing.T, q querier, want driver.Message) {
	t.Helper()
	if want.ContentType == "" {
		want.ContentType = "application/json"
	}
	if want.Headers == nil {
		want.Headers = map[string]string{}
	}
	if want.Payload == nil {
		want.Payload = []byte{}
	}
	if got := stored(t, q, want.DispatchKey); !reflect.DeepEqual(got, want) {
		t.Errorf("stored %+v, want %+v", got, want)
	}
}
