package ui

import (
	"testing"
	"time"
)

// The pages read the times that the commands print, and ages; a limit that is none is told, not read as something else.
func TestReadMoment(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)
	for value, want := range map[string]string{
		"2026-01-31 03:00:00+02:00": "2026-01-31T01:00:00Z",
		"2026-01-31T03:00:00.5Z":    "2026-01-31T03:00:00.5Z",
		"1d12h":                     "2026-01-30T12:00:00Z",
		"0":                         "2026-02-01T00:00:00Z",
		"-2h":                       "", "106752d": "", "1d+5h": "", "yesterday": "",
	} {
		at, err := readMoment("From", value, now)
		switch {
		case want == "" && err == nil:
			t.Errorf("%q is read as %v", value, at)
		case want != "" && (err != nil || at.UTC().Format(time.RFC3339Nano) != want):
			t.Errorf("%q: %v, %v, want %s", value, at, err, want)
		}
	}
	if at, err := readMoment("From", "", now); at != nil || err != nil {
		t.Errorf("nothing is read as %v, %v", at, err)
	}
}
