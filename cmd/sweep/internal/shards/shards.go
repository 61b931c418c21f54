// Package shards reads and writes lists of shards: "0-7,12".
package shards

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Max is the most shards that an outbox can have.
const Max = 1024

// Parse reads a list of shard numbers and ranges, separated by commas: "0-7,12".
// White space around them is ignored. The result is sorted and has each shard once;
// an empty list is an error, and so is a number outside 0 to [Max] - 1.
func Parse(text string) ([]int32, error) {
	var all []int32
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		from, to, isRange := strings.Cut(part, "-")
		low, err := number(from)
		if err != nil {
			return nil, fmt.Errorf("shards %q: %w", text, err)
		}
		high := low
		if isRange {
			if high, err = number(to); err != nil {
				return nil, fmt.Errorf("shards %q: %w", text, err)
			}
		}
		if low > high {
			return nil, fmt.Errorf("shards %q: %d-%d runs backwards", text, low, high)
		}
		for s := low; s <= high; s++ {
			all = append(all, s)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

func number(text string) (int32, error) {
	text = strings.TrimSpace(text)
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number; write 0-7,12", text)
	}
	if n >= Max {
		return 0, fmt.Errorf("%d is outside 0 to %d", n, Max-1)
	}
	return int32(n), nil
}

// Format writes shards as Parse reads them, in order, with runs of two and more as
// ranges. No shards are "".
func Format(shards []int32) string {
	sorted := slices.Clone(shards)
	slices.Sort(sorted)
	sorted = slices.Compact(sorted)
	var b strings.Builder
	for i := 0; i < len(sorted); {
		j := i
		for j+1 < len(sorted) && sorted[j+1] == sorted[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(int(sorted[i])))
		if j > i {
			b.WriteString("-" + strconv.Itoa(int(sorted[j])))
		}
		i = j + 1
	}
	return b.String()
}

// List is a list of shards as a flag; nil where it was not given.
type List []int32

// UnmarshalText reads what [Parse] reads.
func (l *List) UnmarshalText(text []byte) error {
	all, err := Parse(string(text))
	if err != nil {
		return err
	}
	*l = all
	return nil
}
