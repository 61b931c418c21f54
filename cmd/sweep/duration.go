package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// duration is a time.Duration that also reads days: "7d", "1d12h", "90m", "0".
type duration time.Duration

// UnmarshalText reads what parseDuration reads.
func (d *duration) UnmarshalText(text []byte) error {
	v, err := parseDuration(string(text))
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

var errDuration = errors.New(`not a duration; write 30s, 15m, 12h, 7d or 1d12h`)

// parseDuration is time.ParseDuration with whole days before the rest. A sign before the
// days counts for the rest too.
func parseDuration(text string) (time.Duration, error) {
	before, rest, hasDays := strings.Cut(text, "d")
	if !hasDays {
		v, err := time.ParseDuration(text)
		if err != nil {
			return 0, fmt.Errorf("%q is %w", text, errDuration)
		}
		return v, nil
	}
	n, err := strconv.ParseInt(before, 10, 64)
	if err != nil || n > math.MaxInt64/int64(24*time.Hour) || n < math.MinInt64/int64(24*time.Hour) {
		return 0, fmt.Errorf("%q is %w", text, errDuration)
	}
	days, v := time.Duration(n)*24*time.Hour, time.Duration(0)
	if rest != "" {
		v, err = time.ParseDuration(rest)
	}
	if err != nil || strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "+") {
		return 0, fmt.Errorf("%q is %w", text, errDuration)
	}
	if strings.HasPrefix(before, "-") {
		v = -v
	}
	sum := days + v
	if (v > 0 && sum < days) || (v < 0 && sum > days) {
		return 0, fmt.Errorf("%q is %w", text, errDuration)
	}
	return sum, nil
}
