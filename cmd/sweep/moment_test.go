package main

import (
	"testing"
	"time"
)

func TestMoment(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	local := func(h, m, s int) time.Time { return time.Date(2026, 1, 30, h, m, s, 0, time.Local) }
	for text, want := range map[string]time.Time{
		"0": now, "90m": now.Add(-90 * time.Minute), "1d12h": now.Add(-36 * time.Hour),
		"2026-01-30T03:04:05Z": time.Date(2026, 1, 30, 3, 4, 5, 0, time.UTC), "2026-01-30T03:04:05+02:00": time.Date(2026, 1, 30, 1, 4, 5, 0, time.UTC),
		"2026-01-30 03:04:05Z": time.Date(2026, 1, 30, 3, 4, 5, 0, time.UTC), "2026-01-30 03:04:05+02:00": time.Date(2026, 1, 30, 1, 4, 5, 0, time.UTC),
		"2026-01-30 03:04:05": local(3, 4, 5), "2026-01-30T03:04:05": local(3, 4, 5), "2026-01-30 03:04": local(3, 4, 0), "2026-01-30": local(0, 0, 0),
	} {
		var m moment
		if err := m.UnmarshalText([]byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		} else if got := m.time(now); !got.Equal(want) {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
	}
	for _, text := range []string{"", "yesterday", "-1h", "2026-02-30", "2026-01-30 25:00", "12"} {
		if err := new(moment).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q was read", text)
		}
	}
	if (*moment)(nil).time(now) != nil {
		t.Error("no moment is a time")
	}
	// What a table shows as a time is read as that time.
	var m moment
	if err := m.UnmarshalText([]byte(timeText(now))); err != nil || !m.at.Equal(now) {
		t.Errorf("%q is read as %v, %v", timeText(now), m.at, err)
	}
}
