package main

import (
	"fmt"
	"time"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/when"
)

// moment is a point in time: an age before now by the database's clock ("2h", "1d12h"), or
// a time ("2026-01-31T03:00:00Z", "2026-01-31 03:00", "2026-01-31"), of this machine's time
// zone where it names none.
type moment struct {
	ago time.Duration
	at  time.Time // the zero value: ago counts
}

// UnmarshalText reads an age or a time.
func (m *moment) UnmarshalText(text []byte) error {
	s := string(text)
	if at, ok := when.ParseInstant(s); ok {
		*m = moment{at: at}
		return nil
	}
	age, err := when.ParseDuration(s)
	if err != nil || age < 0 {
		return fmt.Errorf("%q is neither an age such as 15m, 12h or 7d, nor a time such as 2026-01-31T03:00:00Z or 2026-01-31 03:00", s)
	}
	*m = moment{ago: age}
	return nil
}

// instant is a time that is not seen from now: to come, say.
type instant time.Time

// UnmarshalText reads a time.
func (i *instant) UnmarshalText(text []byte) error {
	at, ok := when.ParseInstant(string(text))
	if !ok {
		return fmt.Errorf("%q is not a time such as 2026-01-31T03:00:00Z or 2026-01-31 03:00", text)
	}
	*i = instant(at)
	return nil
}

// time is the moment, seen from now; nil for none.
func (m *moment) time(now time.Time) *time.Time {
	if m == nil {
		return nil
	}
	at := m.at
	if at.IsZero() {
		at = now.Add(-m.ago)
	}
	return &at
}
