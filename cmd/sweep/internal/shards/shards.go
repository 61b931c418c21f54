// Package shards reads and writes choices of shards: "0-7,12", "all", "auto".
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
// an empty list and a number outside 0 to [Max] - 1 are errors.
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
		return 0, fmt.Errorf("%q is not a number; write auto, all, or a list such as 0-7,12", text)
	}
	if n >= Max {
		return 0, fmt.Errorf("%d is outside 0 to %d", n, Max-1)
	}
	return int32(n), nil
}

// Format writes shards in the form that Parse reads, in order, with two and more shards in
// a row as a range. Of no shards it returns "".
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

// Choice is the value of a flag --shards: auto, all, or a list. The zero value is all.
type Choice struct {
	Auto bool    // the shards that the outbox gives the node
	List []int32 // these shards; nil is all, unless Auto
}

// UnmarshalText reads auto, all, or what [Parse] reads.
func (c *Choice) UnmarshalText(text []byte) (err error) {
	switch word := strings.TrimSpace(string(text)); word {
	case "auto":
		*c = Choice{Auto: true}
	case "all":
		*c = Choice{}
	default:
		c.Auto = false
		c.List, err = Parse(word)
	}
	return err
}
