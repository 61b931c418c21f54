package deadletters

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Rate is a number of messages in a time: "50/s", "600/m", "5/h".
type Rate struct {
	messages int64
	per      time.Duration
}

// UnmarshalText reads a rate.
func (r *Rate) UnmarshalText(text []byte) error {
	number, unit, _ := strings.Cut(string(text), "/")
	per := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}[unit]
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 1 || n > 1_000_000_000 || per == 0 {
		return fmt.Errorf("%q is not a rate: write 50/s, 600/m or 5/h", text)
	}
	*r = Rate{n, per}
	return nil
}

// Chunk is how many messages to change at a time, at most: those of a second, and at least one.
func (r *Rate) Chunk() int64 {
	if r == nil {
		return ChunkRows
	}
	return min(max(r.messages*int64(time.Second)/int64(r.per), 1), ChunkRows)
}

// Wait is how long to wait until more may follow, when done messages were changed in the time
// that has gone by.
func (r *Rate) Wait(done int64, gone time.Duration) time.Duration {
	if r == nil {
		return 0
	}
	due := min(float64(done)/float64(r.messages)*float64(r.per), float64(math.MaxInt64/2))
	return max(time.Duration(due)-gone, 0)
}
