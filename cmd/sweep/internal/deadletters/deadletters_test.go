package deadletters

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// Numbers and ids fold; what says what went wrong stays.
func TestFoldError(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                             "",
		"no reason given":                              "no reason given",
		"dial tcp 10.0.0.12:443: refused":              "dial tcp #.#.#.#:#: refused",
		"HTTP 503 from acme/order/17":                  "HTTP 503 from acme/order/#",
		"status 404: no user u12":                      "status 404: no user u#",
		"HTTP/1.1 500 after 3 tries":                   "HTTP/1.1 500 after # tries",
		"exit status 65, 1.5 s":                        "exit status 65, #.# s",
		"SQLSTATE 40P01 in 12 ms":                      "SQLSTATE 40P01 in # ms",
		"statuses 12, code7":                           "statuses #, code#",
		"order ord_9fk2x8Q is locked":                  "order # is locked",
		"9b2e8a10-4c1f-4f6e-9d58-0c6f2b7f1a55 expired": "# expired",
		"9B2E8A10-4C1F-4F6E-9D58-0C6F2B7F1A55 expired": "# expired",
		"deadbeef is no id, decade is not":             "deadbeef is no id, decade is not",
		"заказ 17 не найден":                           "заказ # не найден",
	} {
		if got := Fold(text); got != want {
			t.Errorf("%q folds to %q, want %q", text, got, want)
		}
	}
}

// The memory for groups is bounded, and nothing is left out of the counts.
func TestGrouperBound(t *testing.T) {
	t.Parallel()
	var g Grouper
	const n = maxGroups + 500
	for i := range n {
		text := fmt.Sprint("error ", letters(i))
		g.Add(Letter{TaskQueue: "q", Namespace: "n", Error: &text, FailedAt: time.Unix(int64(i), 0)})
	}
	if len(g.groups) > maxGroups+1 {
		t.Errorf("%d groups", len(g.groups))
	}
	largest := g.Largest(1)
	if len(largest) != 1 || largest[0].Error != "other errors" || largest[0].Count != 500 || largest[0].Last != time.Unix(n-1, 0) {
		t.Errorf("%+v", largest)
	}
}

// letters writes a number without digits.
func letters(n int) string {
	if n < 26 {
		return string(rune('a' + n))
	}
	return letters(n/26) + string(rune('a'+n%26))
}

func TestRate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text  string
		chunk int64
		done  int64
		gone  time.Duration
		wait  time.Duration
	}{
		{"50/s", 50, 50, 0, time.Second},
		{"50/s", 50, 100, 500 * time.Millisecond, 1500 * time.Millisecond},
		{"50/s", 50, 100, 3 * time.Second, 0},
		{"50/s", 50, 0, 0, 0},
		{"5000/s", 1000, 1000, 0, 200 * time.Millisecond},
		{"30/m", 1, 1, 0, 2 * time.Second},
		{"600/m", 10, 10, 0, time.Second},
		{"5/h", 1, 1, 0, 12 * time.Minute},
		{"1/h", 1, 10_000_000, 0, math.MaxInt64 / 2},
	} {
		var r Rate
		if err := r.UnmarshalText([]byte(c.text)); err != nil {
			t.Fatalf("%s: %v", c.text, err)
		}
		if got := r.Chunk(); got != c.chunk {
			t.Errorf("%s: chunks of %d, want %d", c.text, got, c.chunk)
		}
		if got := r.Wait(c.done, c.gone); got.Round(time.Hour) != c.wait.Round(time.Hour) && c.done > 1_000_000 || got != c.wait && c.done < 1_000_000 {
			t.Errorf("%s: after %d in %v it waits %v, want %v", c.text, c.done, c.gone, got, c.wait)
		}
	}
	for _, text := range []string{"", "50", "/s", "0/s", "-1/s", "5/d", "5/s/s", "1e3/s", "99999999999/s"} {
		if err := new(Rate).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q was read", text)
		}
	}
	if (*Rate)(nil).Wait(1000, 0) != 0 || (*Rate)(nil).Chunk() != ChunkRows {
		t.Error("without a rate it waits, or its chunks are small")
	}
}

func TestCursor(t *testing.T) {
	t.Parallel()
	want := Cursor{time.Date(2026, 1, 31, 3, 0, 0, 123456000, time.UTC), 17}
	var got Cursor
	if err := got.UnmarshalText([]byte(want.String())); err != nil || got != want {
		t.Errorf("%s is read as %v, %v", &want, got, err)
	}
	for _, text := range []string{"", "17", "2026-01-31T03:00:00Z", "2026-01-31T03:00:00Z/", "2026-01-31T03:00:00Z/x", "2026-01-31T03:00:00Z/1x"} {
		if err := got.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}
