// Package when reads spans and instants as operators write them, on the command line and on the pages.
package when

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

var errDuration = errors.New(`not a duration; write 30s, 15m, 12h, 7d or 1d12h`)

// ParseDuration is [time.ParseDuration] with whole days before the rest. A sign before the
// days counts for the rest too.
func ParseDuration(text string) (time.Duration, error) {
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

// ParseInstant reads a time, of this machine's time zone where it names none.
func ParseInstant(text string) (time.Time, bool) {
	for _, form := range []string{time.RFC3339, "2006-01-02 15:04:05Z07:00", "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.ParseInLocation(form, text, time.Local); err == nil {
			return at, true
		}
	}
	return time.Time{}, false
}
