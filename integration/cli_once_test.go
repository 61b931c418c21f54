package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

// INV-2: the real webhooks go in through sweep enqueue and come out through sweep
// once, each exactly once, with its payload byte for byte; after that there is
// nothing left to do.
func TestCLIOnceWebhooks(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	file := webhookFile(t)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	sweep(t, db.DSN, "enqueue", file)

	type message struct {
		Namespace   string            `json:"namespace"`
		TaskQueue   string            `json:"task_queue"`
		DispatchKey string            `json:"dispatch_key"`
		ContentType string            `json:"content_type"`
		Headers     map[string]string `json:"headers"`
		Payload     json.RawMessage   `json:"payload"`
		Attempt     int               `json:"attempt"`
	}
	read := func(text []byte) map[string]message {
		all := map[string]message{}
		for line := range bytes.Lines(text) {
			var m message
			if err := json.Unmarshal(line, &m); err != nil {
				t.Fatalf("%v in: %s", err, line)
			}
			if _, twice := all[m.DispatchKey]; twice {
				t.Errorf("%s comes twice", m.DispatchKey)
			}
			all[m.DispatchKey] = m
		}
		return all
	}
	want := read(text)
	got := read([]byte(sweep(t, db.DSN, "once", "--sink", "stdout")))
	for key, w := range want {
		g := got[key]
		w.Attempt = 1
		if fmt.Sprint(g) != fmt.Sprint(w) {
			t.Errorf("%s came out otherwise than it went in", key)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d messages came out, %d went in", len(got), len(want))
	}
	if n := one[int](t, db.Pool, `select count(*) from outbox.settled where outcome = 'done' and attempts = 1`); n != len(want) {
		t.Errorf("%d are done at the first attempt", n)
	}
	if again := sweep(t, db.DSN, "once", "--sink", "stdout"); again != "" {
		t.Errorf("a second run delivered: %s", again)
	}
	if s := sweep(t, db.DSN, "status"); !strings.Contains(s, "No namespace has messages") || !strings.Contains(s, "once  not running, or run by cron") {
		t.Errorf("status:\n%s", s)
	}
}

// The summary of a run counts what became of the messages.
func TestCLIOnceSummary(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, `select outbox.configure('{"retry_base": "10 min"}')`) // it still waits when why looks
	put(t, db.Pool, "acme", "good", "g")
	put(t, db.Pool, "acme", "bad", "b")
	args := []string{"once", "--sink", "exec:true", "--route", "bad=exec:false", "--json"}
	got := fromJSON[map[string]int](t, sweep(t, db.DSN, args...))
	for name, want := range map[string]int{"claimed": 2, "done": 1, "retried": 1, "failed": 0, "lost": 0} {
		if got[name] != want {
			t.Errorf("%s is %d, want %d", name, got[name], want)
		}
	}
	if w := sweep(t, db.DSN, "why", "b"); !strings.Contains(w, "waits after a failed attempt") {
		t.Errorf("why:\n%s", w)
	}
	sweepFails(t, db.DSN, 2, []string{"once", "--sink", "stdout", "--json"}, "--json")
}

// What no node could work with is refused, by once and by run, before it connects.
func TestCLINodeUsage(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"once", "run"} {
		sweepFails(t, "", 2, []string{command}, "--sink")
		sweepFails(t, "", 2, []string{command, "--sink", "carrier-pigeon"}, "carrier-pigeon")
		sweepFails(t, "", 2, []string{command, "--sink", "stdout", "--route", "mail"}, "mail")
		for _, tt := range []struct{ flag, value string }{
			{"batch", "0"},
			{"batch", "-1"},
			{"slots", "0"},
			{"budget", "0"},
			{"budget", "lots"},
			{"high", "1.1"},
			{"high", "0"},
			{"high", "NaN"},
			{"low", "0.9"},
			{"low", "0"},
			{"share", "0"},
			{"share", "2"},
			{"min-pause", "0"},
			{"min-pause", "-1s"},
			{"delivery-timeout", "0s"},
			{"drain-timeout", "soon"},
			{"shards", "5-2"},
			{"shards", "1024"},
		} {
			sweepFails(t, "", 2, []string{command, "--sink", "stdout", "--" + tt.flag + "=" + tt.value}, "--"+tt.flag, tt.value)
		}
	}
	sweepFails(t, "", 2, []string{"run", "--sink", "stdout", "--tick", "0"}, "--tick")
	sweepFails(t, "", 2, []string{"once", "--sink", "stdout", "--max-sweeps", "-1"}, "--max-sweeps")
	sweepFails(t, "", 2, []string{"once", "--sink", "stdout", "--node", ""}, "--node")
}
