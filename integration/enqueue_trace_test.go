package integration

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fairclaim/fairclaim/driver"
)

// A trace goes with a message to each kind of sink, as it was enqueued, by every call that
// enqueues; docs/delivery.md shows these commands.
func TestTraceGoesAlong(t *testing.T) {
	t.Parallel()
	const trace, state = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "vendor=value,other=1"
	db := pg.New(t)
	ctx := driver.FillHeaders(t.Context(), func(_ context.Context, h map[string]string) { h["traceparent"], h["tracestate"] = trace, state })
	sqlDB := stdlib.OpenDBFromPool(db.Pool)
	defer sqlDB.Close()
	message := func(queue, key string) driver.Message {
		return driver.Message{Namespace: "n", TaskQueue: queue, DispatchKey: key, Payload: []byte("{}")}
	}
	want := 0
	for _, queue := range []string{"http", "exec", "stdout"} {
		_, err := driver.Enqueue(ctx, db.Pool, message(queue, queue+"1"))
		if err == nil {
			_, err = driver.EnqueueBatch(ctx, db.Pool, []driver.Message{message(queue, queue+"2")})
		}
		if err == nil {
			_, err = driver.EnqueueSQL(ctx, sqlDB, message(queue, queue+"3"))
		}
		if err == nil {
			_, err = driver.EnqueueBatchSQL(ctx, sqlDB, []driver.Message{message(queue, queue+"4")})
		}
		if err != nil {
			t.Fatal(err)
		}
		run(t, db.Pool, `select outbox.enqueue('n', $1, $2, '{}', headers => jsonb_build_object('traceparent', $3::text, 'tracestate', $4::text))`,
			queue, queue+"5", trace, state)
		want += 5
	}
	got := make(chan http.Header, want)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header }))
	defer server.Close()
	dir := t.TempDir()
	script := filepath.Join(dir, "deliver")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nprintf '%s' \"$FAIRCLAIM_HEADERS\" >\"$1/$FAIRCLAIM_DISPATCH_KEY\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	out := sweepCall{dsn: db.DSN, args: []string{
		"once", "--sink", "stdout", "--route", "http=" + server.URL, "--route", "exec=exec:" + script + " " + dir,
	}}.do(t)
	if len(got) != 5 {
		t.Fatalf("%d requests, want 5: %s", len(got), out.stderr)
	}
	for range 5 {
		if h := <-got; h.Get("Traceparent") != trace || h.Get("Tracestate") != state {
			t.Errorf("a request has %v", h)
		}
	}
	lines := 0
	for decoder := json.NewDecoder(strings.NewReader(out.stdout)); decoder.More(); lines++ {
		var line struct{ Headers map[string]string }
		if err := decoder.Decode(&line); err != nil || line.Headers["traceparent"] != trace || line.Headers["tracestate"] != state {
			t.Errorf("a line has %v, %v", line.Headers, err)
		}
	}
	if lines != 5 {
		t.Errorf("%d lines, want 5", lines)
	}
	for _, key := range []string{"exec1", "exec2", "exec3", "exec4", "exec5"} {
		var headers map[string]string
		text, err := os.ReadFile(filepath.Join(dir, key))
		if err == nil {
			err = json.Unmarshal(text, &headers)
		}
		if err != nil || headers["traceparent"] != trace || headers["tracestate"] != state {
			t.Errorf("the command got %s, %v", text, err)
		}
	}
}
