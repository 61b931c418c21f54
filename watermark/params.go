package watermark

import (
	"fmt"
	"time"
)

// Params are the two watermarks and the shortest pause. The zero value is not
// valid; [ParamsFromBudget] makes valid ones, and [New] checks.
type Params struct {
	// HighBytes is the usage, in bytes, from which on claiming pauses: 1 or more.
	HighBytes int64
	// LowBytes is the usage, in bytes, down to which it must drain before
	// claiming resumes: from 0 (nothing in flight) to HighBytes. With LowBytes
	// equal to HighBytes only MinPause keeps the controller from flapping.
	LowBytes int64
	// MinPause is how long a pause lasts at least, counted anew from each send
	// that is rejected while paused: 0 or more.
	MinPause time.Duration
}

// ParamsFromBudget returns the watermarks at the given parts of a budget in
// bytes, rounded down to whole bytes (for a budget above 2^53 bytes, to the
// nearest number that a float64 can tell apart). The high one is at least 1:
// a high of 0 would pause an empty process for ever. The low one may be 0, which
// a drained process reaches (INV-12).
//
// An error names the argument and its value: a budget of 0 or less, ratios
// outside 0 < lowRatio <= highRatio <= 1 (NaN is outside), a minPause below 0.
func ParamsFromBudget(budgetBytes int64, highRatio, lowRatio float64, minPause time.Duration) (Params, error) {
	// Each comparison is one that NaN fails.
	switch {
	case budgetBytes <= 0:
		return Params{}, fmt.Errorf("watermark: budgetBytes is %d, want more than 0", budgetBytes)
	case !(0 < highRatio && highRatio <= 1):
		return Params{}, fmt.Errorf("watermark: highRatio is %v, want more than 0 and at most 1", highRatio)
	case !(0 < lowRatio && lowRatio <= highRatio):
		return Params{}, fmt.Errorf("watermark: lowRatio is %v, want more than 0 and at most highRatio, %v", lowRatio, highRatio)
	case minPause < 0:
		return Params{}, fmt.Errorf("watermark: minPause is %v, want 0 or more", minPause)
	}
	return Params{
		HighBytes: max(1, part(budgetBytes, highRatio)),
		LowBytes:  part(budgetBytes, lowRatio),
		MinPause:  minPause,
	}, nil
}

// part returns ratio x budget, for a ratio from 0 to 1, rounded down. The float64
// nearest to the budget may lie above it, for the largest even at 2^63, which no
// int64 holds: a product that reaches it stands for the whole budget, and the
// next smaller float64 is below the budget.
func part(budgetBytes int64, ratio float64) int64 {
	whole := float64(budgetBytes)
	product := whole * ratio
	if product >= whole {
		return budgetBytes
	}
	return int64(product)
}

func (p Params) validate() error {
	switch {
	case p.HighBytes < 1:
		return fmt.Errorf("watermark: HighBytes is %d, want 1 or more", p.HighBytes)
	case p.LowBytes < 0 || p.LowBytes > p.HighBytes:
		return fmt.Errorf("watermark: LowBytes is %d, want 0 to HighBytes, %d", p.LowBytes, p.HighBytes)
	case p.MinPause < 0:
		return fmt.Errorf("watermark: MinPause is %v, want 0 or more", p.MinPause)
	}
	return nil
}
