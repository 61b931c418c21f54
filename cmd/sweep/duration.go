package main

import (
	"strconv"
	"strings"
	"time"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/when"
)

// duration is a time.Duration that also reads days: "7d", "1d12h", "90m", "0".
type duration time.Duration

// UnmarshalText reads what when.ParseDuration reads.
func (d *duration) UnmarshalText(text []byte) error {
	v, err := when.ParseDuration(string(text))
	*d = duration(v)
	return err
}

// interval is the form that PostgreSQL reads.
func (d duration) interval() string {
	return strconv.FormatInt(time.Duration(d).Microseconds(), 10) + " microseconds"
}

// String is the form that is read, with whole days: "7d", "1d12h", "90s".
func (d duration) String() string {
	v := time.Duration(d)
	days, rest := v/(24*time.Hour), v%(24*time.Hour)
	if days == 0 {
		return plain(rest)
	}
	text := strconv.FormatInt(int64(days), 10) + "d"
	if rest != 0 {
		text += strings.TrimPrefix(plain(rest), "-")
	}
	return text
}

// plain is a duration without the parts at its end that are 0: "2h", not "2h0m0s".
func plain(v time.Duration) string {
	text := v.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
