package integration

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// queryModes are pgx's ways to run a query, and whether the package driver takes them
// behind a pooler in transaction mode. The command sweep takes them all: it uses
// cache_describe in place of those that cannot work there.
var queryModes = map[string]bool{
	"cache_statement": false, "cache_describe": true, "describe_exec": false, "exec": true, "simple_protocol": true,
}

// pooled is the database's connection string by way of pgbouncer. A machine that has none
// skips the test, but for CI.
func pooled(t *testing.T, db *pgtest.DB, mode string, options ...string) string {
	t.Helper()
	dsn, err := pgtest.StartPooler(t, db.DSN, options...)
	if errors.Is(err, pgtest.ErrNoPooler) && os.Getenv("FAIRCLAIM_CI") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	separator := " "
	if strings.Contains(dsn, "://") {
		separator = "&"
	}
	return dsn + separator + "default_query_exec_mode=" + mode
}

// All of sweep works behind pgbouncer, whatever query mode its connection string asks for.
func TestPoolerAndSweep(t *testing.T) {
	t.Parallel()
	for mode := range queryModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			b := newBadDay(t, pg.New(t))
			dsn := pooled(t, b.db, mode)
			nodes := []*sweepProcess{b.node("one", dsn), b.node("two", dsn)}
			var lines strings.Builder
			for i := range 300 {
				b.keys = append(b.keys, fmt.Sprint("k", i))
				fmt.Fprintf(&lines, `{"namespace": "ns%d", "task_queue": "q", "dispatch_key": "k%d", "payload": {"n": %d}}`+"\n", i%7, i, i)
			}
			for range 3 { // the second and third time they are duplicates
				sweepWith(t, dsn, lines.String(), "enqueue", "-")
				if got := sweep(t, dsn, "status"); !strings.Contains(got, "ns1") && !strings.Contains(got, "two") {
					t.Errorf("status names no tenant: %q", got)
				}
			}
			b.settled()
			for _, n := range nodes {
				n.stop(t)
				n.quiet(t, 10)
			}
			b.account(0, 0)

			sweep(t, dsn, "quota", "ns1", "3")
			sweep(t, dsn, "pause", "ns1")
			put(t, b.db.Pool, "ns1", "q", "held")
			if got := sweep(t, dsn, "why", "held"); !strings.Contains(got, "paused") {
				t.Errorf("why does not say that the tenant is paused: %q", got)
			}
			if got := sweep(t, dsn, "explain", "--only", "ns1"); !strings.Contains(got, "paused") {
				t.Errorf("explain says %q", got)
			}
			sweep(t, dsn, "resume", "ns1")
			if got := sweep(t, dsn, "once", "--sink", "stdout"); !strings.Contains(got, `"held"`) {
				t.Errorf("once delivered %q", got)
			}
			sweep(t, dsn, "prune", "--older-than", "0s", "--yes")
		})
	}
}

// The package driver works behind pgbouncer, or a node refuses at the start and says
// what to set.
func TestPoolerAndDriver(t *testing.T) {
	t.Parallel()
	for mode, works := range queryModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			db := pg.New(t)
			pool, err := pgxpool.New(t.Context(), pooled(t, db, mode))
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			var sink collector
			node := func(db driver.DB) *node.Node {
				s, err := node.New(db, node.Config{Node: "n1", Sink: &sink, Batch: 7})
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			if !works {
				err := node(pool).Once(t.Context(), 0)
				if !errors.Is(err, driver.ErrPooler) || !strings.Contains(err.Error(), "default_query_exec_mode=cache_describe") {
					t.Errorf("Once returns %v", err)
				}
				if err := node(db.Pool).Once(t.Context(), 0); err != nil { // without a pooler it is fine
					t.Error(err)
				}
				return
			}
			const messages = 100
			for i := range messages {
				m := driver.Message{Namespace: fmt.Sprint("ns", i%3), TaskQueue: "q", DispatchKey: fmt.Sprint("k", i), Payload: []byte{0, 255, byte(i)}}
				if i%2 == 0 {
					_, err = driver.Enqueue(t.Context(), pool, m)
				} else {
					_, err = driver.EnqueueBatch(t.Context(), pool, []driver.Message{m})
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := node(pool).Once(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			if got := len(sink.keys()); got != messages {
				t.Errorf("%d deliveries, want %d", got, messages)
			}
			wantOutcomes(t, db.Pool, map[string]int{"done": messages})
		})
	}
}
