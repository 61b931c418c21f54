package driver

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestJudge(t *testing.T) {
	boom := errors.New("boom")
	minute := time.Minute
	none := time.Duration(0)
	for _, test := range []struct {
		name    string
		err     error
		verdict verdict
		delay   *time.Duration
		closed  bool
	}{
		{"nil", nil, done, nil, false},
		{"nil permanent", Permanent(nil), done, nil, false},
		{"nil later", RetryAfter(nil, time.Hour), done, nil, false},
		{"nil undelivered", Undelivered(nil), done, nil, false},
		{"plain", boom, again, nil, false},
		{"permanent", Permanent(boom), failed, nil, false},
		{"permanent wrapped", fmt.Errorf("a: %w", Permanent(boom)), failed, nil, false},
		{"permanent joined", errors.Join(boom, Permanent(boom)), failed, nil, false},
		{"later", RetryAfter(boom, minute), again, &minute, false},
		{"later wrapped", fmt.Errorf("a: %w", RetryAfter(boom, minute)), again, &minute, false},
		{"later joined", errors.Join(boom, RetryAfter(boom, minute)), again, &minute, false},
		{"later, negative", RetryAfter(boom, -minute), again, &none, false},
		{"later, twice", RetryAfter(RetryAfter(boom, time.Hour), minute), again, &minute, false},
		{"not before", RetryNotBefore(boom, minute), again, &minute, false},
		{"not before, negative", RetryNotBefore(boom, -minute), again, &none, false},
		{"nil not before", RetryNotBefore(nil, time.Hour), done, nil, false},
		{"settled", ErrSettled, settled, nil, false},
		{"settled wrapped", fmt.Errorf("a: %w", ErrSettled), settled, nil, false},
		{"undelivered", Undelivered(boom), untried, nil, false},
		{"undelivered joined", errors.Join(boom, Undelivered(boom)), untried, nil, false},
		{"closed", ErrSinkClosed, untried, nil, true},
		{"closed wrapped", fmt.Errorf("a: %w", ErrSinkClosed), untried, nil, true},
		{"closed joined", errors.Join(boom, ErrSinkClosed), untried, nil, true},
		// Where an error says two things, the message's own fault goes last: it must be
		// true of a message that it was tried.
		{"closed and permanent", Permanent(ErrSinkClosed), untried, nil, true},
		{"closed and undelivered", Undelivered(ErrSinkClosed), untried, nil, true},
		{"undelivered and permanent", Permanent(Undelivered(boom)), untried, nil, false},
		{"undelivered and later", RetryAfter(Undelivered(boom), minute), untried, nil, false},
		{"permanent and later", RetryAfter(Permanent(boom), minute), failed, nil, false},
	} {
		got := judge(test.err)
		if got.verdict != test.verdict || got.closed != test.closed {
			t.Errorf("%s: verdict %d, closed %t; want %d, %t", test.name, got.verdict, got.closed, test.verdict, test.closed)
		}
		if (got.delay == nil) != (test.delay == nil) || got.delay != nil && *got.delay != *test.delay {
			t.Errorf("%s: delay %v, want %v", test.name, got.delay, test.delay)
		}
		if test.err != nil && got.reason != test.err.Error() {
			t.Errorf("%s: reason %q, want %q", test.name, got.reason, test.err)
		}
	}
}

func TestCleanReason(t *testing.T) {
	for in, want := range map[string]string{
		"":                     "",
		"plain":                "plain",
		"a\nb\tc":              "a\nb\tc",
		"nul\x00":              "nul\uFFFD",
		"bell\a, \x1b[31m, \r": "bell\uFFFD, \uFFFD[31m, \uFFFD",
		"\u0085 \u009b":        "\uFFFD \uFFFD",
		"bad \xff\xfe utf":     "bad \uFFFD utf",
		"\xed\xa0\x80":         "\uFFFD", // half of a surrogate pair
		"héllo \u202e 🎉":       "héllo \u202e 🎉",
	} {
		if got := cleanReason(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		in := string(rapid.SliceOfN(rapid.Byte(), 0, 3*maxReason).Draw(t, "bytes"))
		got := cleanReason(in)
		if !utf8.ValidString(got) || strings.ContainsRune(got, 0) || len(got) > 3*maxReason {
			t.Fatalf("%q becomes %q", in, got)
		}
		if cleanReason(got[:min(len(got), maxReason)]) == "" && in != "" {
			t.Fatalf("nothing is left of %q", in)
		}
	})
	for _, before := range []string{"", "x"} { // so that the cuts are within characters, or are not
		got := cleanReason(before + "first " + strings.Repeat("é", maxReason) + " last" + before)
		if want := maxReason - 4; len(got) > maxReason || len(got) < want || strings.ContainsRune(got, '\uFFFD') ||
			!strings.HasPrefix(got, before+"first é") || !strings.HasSuffix(got, "é last"+before) || !strings.Contains(got, "é…é") {
			t.Errorf("a long reason is cut to %d bytes, want %d of both ends: %.20q", len(got), want, got)
		}
	}
}

// jitter stays within a fifth, uses both sides of it, and takes any time that a
// configuration can hold.
func TestJitter(t *testing.T) {
	for _, d := range []time.Duration{0, 1, 2, 3, 4, 5, 10, time.Millisecond, time.Hour, longest} {
		low, high := time.Duration(math.MaxInt64), time.Duration(0)
		for range 2000 {
			got := jitter(d)
			low, high = min(low, got), max(high, got)
		}
		if low < d-d/5 || high > d+d/5+1 {
			t.Errorf("jitter of %v gives %v to %v", d, low, high)
		}
		if d >= time.Millisecond && (low > d-d/6 || high < d+d/6) {
			t.Errorf("jitter of %v gives only %v to %v", d, low, high)
		}
	}
}

func TestInterval(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 microseconds", time.Second: "1000000 microseconds", 999: "0 microseconds",
		math.MaxInt64: "9223372036854775 microseconds",
	} {
		if got := interval(d); got != want {
			t.Errorf("%v is written %q, want %q", d, got, want)
		}
	}
}
