package watermark_test

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/watermark"
)

// TestScenarios runs the files in testdata. A file is one controller's life: its
// params, then one event a line, with the clock's reading and, after a tick, the
// transition, and the reason in parentheses while paused (INV-12).
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("no scenario in testdata")
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			runScenario(t, file)
		})
	}
}

func runScenario(t *testing.T, file string) {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	var s scenario
	lines := bufio.NewScanner(f)
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		event, want, _ := strings.Cut(line, "->")
		got, err := s.do(strings.Fields(event))
		if err != nil {
			t.Fatalf("%s:%d: %q: %v", file, number, line, err)
		}
		if want := strings.TrimSpace(want); got != want {
			t.Errorf("%s:%d: %q: got %q", file, number, line, got)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if s.ticks == 0 {
		t.Errorf("%s has no tick", file)
	}
}

type scenario struct {
	clock
	controller *watermark.Controller
	ticks      int
}

// do runs one line's event and returns its answer, empty where it has none.
func (s *scenario) do(words []string) (string, error) {
	if words[0] == "params" {
		var p watermark.Params
		var minPause string
		if err := scan(words[1:], "high=%d low=%d min-pause=%s", &p.HighBytes, &p.LowBytes, &minPause); err != nil {
			return "", err
		}
		var err error
		if p.MinPause, err = time.ParseDuration(minPause); err != nil {
			return "", err
		}
		s.controller, err = watermark.New(p, s.now)
		return "", err
	}
	reading, err := time.ParseDuration(words[0])
	if err != nil {
		return "", err
	}
	s.reading = reading
	if len(words) == 2 && words[1] == "rejected" {
		s.controller.OnSendRejected()
		return "", nil
	}
	var usage int64
	var queues string
	if err := scan(words[1:], "tick usage=%d queues=%s", &usage, &queues); err != nil {
		return "", err
	}
	if queues != "low" && queues != "full" {
		return "", fmt.Errorf("queues are low or full, not %q", queues)
	}
	s.ticks++
	answer := s.controller.Tick(usage, queues == "low").String()
	if s.controller.Paused() {
		answer += fmt.Sprintf(" (%v)", s.controller.Reason())
	}
	return answer, nil
}

func scan(words []string, format string, into ...any) error {
	_, err := fmt.Sscanf(strings.Join(words, " "), format, into...)
	return err
}

// clock is one that a test sets, to a reading before or after an arbitrary instant.
type clock struct{ reading time.Duration }

func (c *clock) now() time.Time {
	return time.Date(2025, 10, 26, 0, 0, 0, 0, time.UTC).Add(c.reading)
}
