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

// parseDuration is time.ParseDuration with whole days before the rest.
func parseDuration(text string) (time.Duration, error) {
	rest, days := text, time.Duration(0)
	if before, after, ok := strings.Cut(text, "d"); ok {
		n, err := strconv.ParseInt(before, 10, 64)
		if err != nil || n > math.MaxInt64/int64(24*time.Hour) || n < math.MinInt64/int64(24*time.Hour) {
			return 0, fmt.Errorf("%q is %w", text, errDuration)
		}
		days, rest = time.Duration(n)*24*time.Hour, after
		if rest == "" {
			return days, nil
		}
	}
	v, err := time.ParseDuration(rest)
	if err != nil || (days != 0 && (v < 0 || strings.HasPrefix(rest, "+"))) {
		return 0, fmt.Errorf("%q is %w", text, errDuration)
	}
	if days < 0 {
		v = -v
	}
	sum := days + v
	if (days > 0 && sum < days) || (days < 0 && sum > days) {
		return 0, fmt.Errorf("%q is %w", text, errDuration)
	}
	return sum, nil
}
