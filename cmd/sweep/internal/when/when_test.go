package when

import (
	"math/big"
	"strings"
	"testing"
	"time"
)

func TestParseDuration(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for _, tt := range []struct {
		text string
		want time.Duration
		ok   bool
	}{
		{"0", 0, true},
		{"30s", 30 * time.Second, true},
		{"1h30m", 90 * time.Minute, true},
		{"7d", 7 * day, true},
		{"1d12h", 36 * time.Hour, true},
		{"1d0.5s", day + 500*time.Millisecond, true},
		{"0d", 0, true},
		{"-2d", -2 * day, true},
		{"-1d12h", -36 * time.Hour, true},
		{"106751d", 106751 * day, true},
		{"106752d", 0, false},
		{"106751d24h", 0, false},
		{"-106751d24h", 0, false},
		{"", 0, false},
		{"d", 0, false},
		{"7", 0, false},
		{"1.5d", 0, false},
		{"7days", 0, false},
		{"1d-12h", 0, false},
		{"1d+12h", 0, false},
		{"1d1d", 0, false},
		{"12h1d", 0, false},
		{"0d-12h", 0, false},
		{"-0d12h", -12 * time.Hour, true},
		{"NaN", 0, false},
	} {
		got, err := ParseDuration(tt.text)
		if (err == nil) != tt.ok || got != tt.want {
			t.Errorf("ParseDuration(%q) = %v, %v; want %v", tt.text, got, err, tt.want)
		}
	}
}

// Without days it is time.ParseDuration; days are 24 hours put before the rest, and
// nothing overflows.
func FuzzParseDuration(f *testing.F) {
	for _, text := range []string{"0", "30s", "7d", "1d12h", "-1d0.5s", "106751d23h47m16.854775807s", "106752d", "-106752d", "1d-1h", "d", "1dd", "+1d", "0d-1h", "-0d1h"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseDuration(text)
		days, rest, hasDays := strings.Cut(text, "d")
		if !hasDays {
			want, wantErr := time.ParseDuration(text)
			if (err == nil) != (wantErr == nil) || err == nil && got != want {
				t.Fatalf("ParseDuration(%q) = %v, %v; want %v, %v", text, got, err, want, wantErr)
			}
			return
		}
		if err != nil {
			if got != 0 {
				t.Fatalf("ParseDuration(%q) = %v beside %v", text, got, err)
			}
			return
		}
		n, _ := new(big.Int).SetString(days, 10)
		if n == nil {
			t.Fatalf("ParseDuration(%q) = %v, with days that are no number", text, got)
		}
		want := new(big.Int).Mul(n, big.NewInt(int64(24*time.Hour)))
		if rest != "" {
			v, err := time.ParseDuration(rest)
			if err != nil || v < 0 {
				t.Fatalf("ParseDuration(%q) = %v, behind the days %v, %v", text, got, v, err)
			}
			if strings.HasPrefix(days, "-") {
				v = -v
			}
			want.Add(want, big.NewInt(int64(v)))
		}
		if want.Cmp(big.NewInt(int64(got))) != 0 {
			t.Fatalf("ParseDuration(%q) = %d, want %d", text, got, want)
		}
	})
}
