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
