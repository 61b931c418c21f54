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
