package stamp

import (
	"testing"
	"time"
)

// Texts have UTC and all microseconds, the last ones too where they are 0.
func TestText(t *testing.T) {
	east := time.FixedZone("", 2*60*60)
	for want, at := range map[string]time.Time{
		"2026-01-02T22:04:05.678900Z": time.Date(2026, 1, 3, 0, 4, 5, 678_900_000, east),
		"2026-01-02T03:04:05.000000Z": time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		"0001-01-01T00:00:00.000000Z": {},
		"9999-12-31T23:59:59.999999Z": time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC),
	} {
		if got := Text(at); got != want {
			t.Errorf("%v is written %s, want %s", at, got, want)
		}
	}
}
