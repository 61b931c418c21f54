package watermark_test

import (
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/watermark"
)

func TestParamsFromBudget(t *testing.T) {
	const top = math.MaxInt64
	below1 := math.Nextafter(1, 0)
	for _, test := range []struct {
		budget    int64
		high, low float64
		want      watermark.Params
	}{
		{64 << 20, 0.8, 0.5, watermark.Params{HighBytes: 53_687_091, LowBytes: 33_554_432}},
		{1000, 1, 1, watermark.Params{HighBytes: 1000, LowBytes: 1000}},
		{1000, 0.5, 0.25, watermark.Params{HighBytes: 500, LowBytes: 250}},
		{1, 0.8, 0.5, watermark.Params{HighBytes: 1, LowBytes: 0}},
		{1, 1, 1, watermark.Params{HighBytes: 1, LowBytes: 1}},
		{3, 0.1, 0.1, watermark.Params{HighBytes: 1, LowBytes: 0}},
		{1000, math.SmallestNonzeroFloat64, math.SmallestNonzeroFloat64, watermark.Params{HighBytes: 1, LowBytes: 0}},
		{top, 1, 1, watermark.Params{HighBytes: top, LowBytes: top}},
		{top, below1, 0.5, watermark.Params{HighBytes: top - 1023, LowBytes: 1 << 62}},
		{top - 1, 1, below1, watermark.Params{HighBytes: top - 1, LowBytes: top - 1023}},
		{1<<53 + 1, 1, below1, watermark.Params{HighBytes: 1<<53 + 1, LowBytes: 1<<53 - 1}},
	} {
		t.Run(fmt.Sprint(test.budget, test.high, test.low), func(t *testing.T) {
			got, err := watermark.ParamsFromBudget(test.budget, test.high, test.low, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			test.want.MinPause = time.Second
			if got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestParamsFromBudgetRejects(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	above1 := math.Nextafter(1, 2)
	for _, test := range []struct {
		budget    int64
		high, low float64
		minPause  time.Duration
		want      string // the argument and its value
	}{
		{0, 0.8, 0.5, 0, "budgetBytes is 0"},
		{-1, 0.8, 0.5, 0, "budgetBytes is -1"},
		{math.MinInt64, 0.8, 0.5, 0, "budgetBytes is -9223372036854775808"},
		{1000, 0, 0.5, 0, "highRatio is 0,"},
		{1000, -0.8, 0.5, 0, "highRatio is -0.8"},
		{1000, above1, 0.5, 0, "highRatio is 1.0000000000000002"},
		{1000, nan, 0.5, 0, "highRatio is NaN"},
		{1000, inf, 0.5, 0, "highRatio is +Inf"},
		{1000, -inf, 0.5, 0, "highRatio is -Inf"},
		{1000, 0.8, 0, 0, "lowRatio is 0,"},
		{1000, 0.8, math.Copysign(0, -1), 0, "lowRatio is -0,"},
		{1000, 0.8, -0.5, 0, "lowRatio is -0.5"},
		{1000, 0.8, 0.9, 0, "lowRatio is 0.9, want more than 0 and at most highRatio, 0.8"},
		{1000, 0.8, nan, 0, "lowRatio is NaN"},
		{1000, 0.8, inf, 0, "lowRatio is +Inf"},
		{1000, 0.8, -inf, 0, "lowRatio is -Inf"},
		{1000, nan, nan, 0, "highRatio is NaN"},
		{1000, 0.8, 0.5, -1, "minPause is -1ns"},
	} {
		t.Run(test.want, func(t *testing.T) {
			got, err := watermark.ParamsFromBudget(test.budget, test.high, test.low, test.minPause)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want one with %q", err, test.want)
			}
			if got != (watermark.Params{}) {
				t.Errorf("got %+v beside the error, want the zero value", got)
			}
		})
	}
}

func TestNewRejects(t *testing.T) {
	valid := watermark.Params{HighBytes: 800, LowBytes: 500, MinPause: time.Second}
	for _, test := range []struct {
		want   string
		params watermark.Params
		now    func() time.Time
	}{
		{"HighBytes is 0", watermark.Params{}, time.Now},
		{"HighBytes is -1", watermark.Params{HighBytes: -1, LowBytes: -1}, time.Now},
		{"LowBytes is -1", watermark.Params{HighBytes: 800, LowBytes: -1}, time.Now},
		{"LowBytes is 801, want 0 to HighBytes, 800", watermark.Params{HighBytes: 800, LowBytes: 801}, time.Now},
		{"MinPause is -1ns", watermark.Params{HighBytes: 800, LowBytes: 500, MinPause: -1}, time.Now},
		{"now is nil", valid, nil},
	} {
		t.Run(test.want, func(t *testing.T) {
			c, err := watermark.New(test.params, test.now)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want one with %q", err, test.want)
			}
			if c != nil {
				t.Error("a controller beside the error")
			}
		})
	}

	c, err := watermark.New(valid, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if c.Params() != valid {
		t.Errorf("params are %+v, want %+v", c.Params(), valid)
	}
	if c.Paused() || c.Reason() != watermark.NotPaused {
		t.Errorf("a new controller is paused: %v", c.Reason())
	}
}

// FuzzParamsFromBudget: whatever goes in, there comes out an error, or params
// that New takes and that are what exact arithmetic makes of budget and ratio.
func FuzzParamsFromBudget(f *testing.F) {
	f.Add(int64(64<<20), 0.8, 0.5, int64(500*time.Millisecond))
	f.Add(int64(1), 1.0, 1.0, int64(0))
	f.Add(int64(math.MaxInt64), math.Nextafter(1, 0), 0.5, int64(math.MaxInt64))
	f.Add(int64(math.MaxInt64-512), 1.0, 1.0, int64(1))
	f.Add(int64(1<<53+1), math.SmallestNonzeroFloat64, math.SmallestNonzeroFloat64, int64(0))
	f.Add(int64(1<<53+103), 5.0/6, 0.5, int64(0)) // both roundings downwards
	f.Add(int64(0), math.NaN(), math.Inf(1), int64(-1))
	f.Add(int64(math.MinInt64), -0.5, 2.0, int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, budget int64, high, low float64, minPause int64) {
		p, err := watermark.ParamsFromBudget(budget, high, low, time.Duration(minPause))
		valid := budget >= 1 && high > 0 && high <= 1 && low > 0 && low <= high && minPause >= 0
		if valid != (err == nil) {
			t.Fatalf("error is %v, arguments are valid: %t", err, valid)
		}
		if !valid {
			return
		}
		if _, err := watermark.New(p, time.Now); err != nil {
			t.Fatalf("New does not take %+v: %v", p, err)
		}
		if p.HighBytes < 1 || p.HighBytes > budget || p.LowBytes < 0 || p.LowBytes > p.HighBytes {
			t.Fatalf("%+v of a budget of %d", p, budget)
		}
		if p.MinPause != time.Duration(minPause) {
			t.Fatalf("min pause is %v, want %v", p.MinPause, time.Duration(minPause))
		}
		near(t, "low", p.LowBytes, budget, low)
		if p.HighBytes > 1 {
			near(t, "high", p.HighBytes, budget, high)
		}
	})
}

// near checks that got is the floor of ratio x budget, give or take the two
// roundings to a float64 (a part in 2^53 each) and the one to a byte.
func near(t *testing.T, name string, got, budget int64, ratio float64) {
	exact := new(big.Float).SetPrec(200).SetInt64(budget)
	exact.Mul(exact, big.NewFloat(ratio))
	off, _ := exact.Sub(exact, new(big.Float).SetInt64(got)).Float64()
	slack := float64(budget) / (1 << 52)
	if off < -slack || off >= 1+slack {
		t.Errorf("%s watermark is %d, %g below %g of %d", name, got, off, ratio, budget)
	}
}
