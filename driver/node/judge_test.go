package node

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"
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
