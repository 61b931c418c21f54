package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// TestBench runs every experiment at tiny size: each checks its own result. No time is
// judged.
func TestBench(t *testing.T) {
	ctx := t.Context()
	l, err := openLab(ctx, tiny(), pgtest.Options{Log: t.Output()}, os.Getenv("PGMQ_SQL"), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.close(ctx); err != nil {
			t.Error(err)
		}
	}()
	for _, e := range experiments() {
		if err := l.conduct(ctx, e); err != nil {
			t.Fatal(err)
		}
		figures, _ := l.report.section(e.name)
		if len(figures) == 0 {
			t.Errorf("%s reports nothing", e.name)
		}
		for _, f := range figures {
			if f.N == 0 {
				t.Errorf("%s: %s, %s: nothing was measured", e.name, f.Case, f.Contender)
			}
		}
	}
	for _, rival := range []string{"River: ", "pgmq: "} {
		if !strings.Contains(strings.Join(l.report.remarks("throughput"), "\n"), rival) {
			t.Errorf("the report does not say how %s was set up, or why it is absent: %v", rival, l.report.Setups)
		}
	}

	var text bytes.Buffer
	if err := l.report.writeJSON("-", &text); err != nil {
		t.Fatal(err)
	}
	var back report
	if err := json.Unmarshal(text.Bytes(), &back); err != nil || len(back.Figures) != len(l.report.Figures) {
		t.Errorf("the JSON gives %d figures of %d back, error %v", len(back.Figures), len(l.report.Figures), err)
	}
	if strings.Contains(text.String(), "postgres://") {
		t.Error("the JSON has a connection string in it")
	}
}

// TestRivals: the first read of each rival is fair; what a second one gets while the first has not
// committed is what the documentation says; and in the end every message was read, once.
func TestRivals(t *testing.T) {
	ctx := t.Context()
	c := skew{rows: 1000, heavy: 500, others: 150}
	l, err := openLab(ctx, size{}, pgtest.Options{Log: t.Output()}, os.Getenv("PGMQ_SQL"), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.close(ctx); err != nil {
			t.Error(err)
		}
	}()
	readers, err := l.openReaders(ctx, c, true)
	if err != nil {
		t.Fatal(err)
	}
	if len(l.report.Setups) != len(allRivals()) {
		t.Errorf("the report says of %d rivals, not of %d, how they were set up or why they are absent", len(l.report.Setups), len(allRivals()))
	}
	for _, r := range readers {
		t.Run(r.name, func(t *testing.T) {
			defer r.client.Close()
			r.readWhole(t, c)
		})
	}
}

// besideOpen is how many messages a read brings while another one has not committed.
var besideOpen = map[string]int{fair: 0, pgmqFair: 0, rowNumber: readBatch, eachOne: readBatch}

func (r *reader) readWhole(t *testing.T, c skew) {
	ctx := t.Context()
	tx, err := r.db.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	all, err := r.take(ctx, tx, readBatch)
	if err != nil {
		t.Fatal(err)
	}
	if tenants, most := spread(all); len(all) != readBatch || tenants != readBatch || most != 1 {
		t.Errorf("the first read brought %d messages of %d tenants, at most %d of one; want %d, each of another", len(all), tenants, most, readBatch)
	}
	second, err := r.take(ctx, r.client, readBatch)
	if err != nil {
		t.Fatal(err)
	}
	if len(second) != besideOpen[r.name] {
		t.Errorf("beside an open read another one brought %d messages, want %d", len(second), besideOpen[r.name])
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	all = append(all, second...)
	if err := r.finish(ctx, r.client, all); err != nil {
		t.Fatal(err)
	}
	for {
		messages, err := r.take(ctx, r.client, readBatch)
		if err != nil {
			t.Fatal(err)
		}
		if len(messages) == 0 {
			break
		}
		if len(messages) > readBatch {
			t.Errorf("a read of %d brought %d messages", readBatch, len(messages))
		}
		if err := r.finish(ctx, r.client, messages); err != nil {
			t.Fatal(err)
		}
		all = append(all, messages...)
	}
	r.got = all
	if err := r.verify(c); err != nil {
		t.Error(err)
	}
	if tenants, most := spread(all); len(all) != c.rows || tenants != c.others+1 || most != c.heavy {
		t.Errorf("%d messages of %d tenants were read, at most %d of one; want %d of %d, %d", len(all), tenants, most, c.rows, c.others+1, c.heavy)
	}
}

func TestSummarize(t *testing.T) {
	var values []float64
	for v := 200; v > 0; v-- {
		values = append(values, float64(v))
	}
	if got, want := summarize(values), (summary{N: 200, Median: 100.5, P99: 198, Min: 1, Max: 200}); got != want {
		t.Errorf("1 to 200: got %+v, want %+v", got, want)
	}
	if got, want := summarize([]float64{3, 1, 2}), (summary{N: 3, Median: 2, P99: 3, Min: 1, Max: 3}); got != want {
		t.Errorf("1 to 3: got %+v, want %+v", got, want)
	}
	if got := summarize(nil); got != (summary{}) {
		t.Errorf("nothing: got %+v", got)
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 10_000_000: "10,000,000"} {
		if got := count(n); got != want {
			t.Errorf("count(%d) = %q, want %q", n, got, want)
		}
	}
}

// TestMarkdownOnly: a run of one experiment replaces its section and nothing else, and a run of all that are usual keeps the
// sections of the others.
func TestMarkdownOnly(t *testing.T) {
	file := filepath.Join(t.TempDir(), "benchmarks.md")
	write := func(only, name, value string) string {
		t.Helper()
		r := report{Only: only}
		for _, e := range experiments() {
			if e.name == name {
				r.begin(e)
			}
		}
		r.add(figure{Experiment: name, Case: value, Contender: fair, Unit: "ms", summary: summarize([]float64{1})})
		if err := r.writeMarkdown(file); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	write("", "latency", "usual 1")
	write("steady", "steady", "alone 1")
	text := write("steady", "steady", "alone 2")
	for part, want := range map[string]int{"usual 1": 1, "alone 1": 0, "alone 2": 1, "`make bench ONLY=steady`": 1, byHand: 1} {
		if n := strings.Count(text, part); n != want {
			t.Errorf("%q is there %d times, want %d:\n%s", part, n, want, text)
		}
	}
	text = write("", "latency", "usual 2")
	for part, want := range map[string]int{"usual 1": 0, "usual 2": 1, "alone 2": 1, "# Benchmarks\n": 1, byHand: 1} {
		if n := strings.Count(text, part); n != want {
			t.Errorf("after a usual run, %q is there %d times, want %d:\n%s", part, n, want, text)
		}
	}
}

// TestMarkdown: what stands in the report by hand outlives a new run.
func TestMarkdown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "benchmarks.md")
	var r report
	r.begin(experiment{name: "latency", title: "Claim latency"})
	r.add(figure{Experiment: "latency", Case: "a claim", Contender: fair, Unit: "ms", summary: summarize([]float64{1, 1, 1, 1, 1, 2, 2, 2, 2, 2})})
	r.atMost("latency", "a claim", 2.5, 1.5)
	for range 2 {
		if err := r.writeMarkdown(file); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"## Claim latency", "| a claim | claim_fair | 1.50 | 2.00 | ms | 10 |", "**not reached**"} {
			if !strings.Contains(string(text), part) {
				t.Errorf("the report lacks %q:\n%s", part, text)
			}
		}
		if strings.Count(string(text), byHand) != 1 {
			t.Errorf("the report has not one place for what is written by hand:\n%s", text)
		}
		if err := os.WriteFile(file, append(text, "kept\n"...), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if text, _ := os.ReadFile(file); strings.Count(string(text), "kept\n") != 2 {
		t.Errorf("what was written by hand is gone:\n%s", text)
	}
}
