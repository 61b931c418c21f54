package node

import (
	"errors"
	"fmt"
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
		{"nil", nil, toComplete, nil, false},
		{"nil permanent", Permanent(nil), toComplete, nil, false},
		{"nil later", RetryAfter(nil, time.Hour), toComplete, nil, false},
		{"nil undelivered", Undelivered(nil), toComplete, nil, false},
		{"plain", boom, toRetry, nil, false},
		{"permanent", Permanent(boom), toFail, nil, false},
		{"permanent wrapped", fmt.Errorf("a: %w", Permanent(boom)), toFail, nil, false},
		{"permanent joined", errors.Join(boom, Permanent(boom)), toFail, nil, false},
		{"later", RetryAfter(boom, minute), toRetry, &minute, false},
		{"later wrapped", fmt.Errorf("a: %w", RetryAfter(boom, minute)), toRetry, &minute, false},
		{"later joined", errors.Join(boom, RetryAfter(boom, minute)), toRetry, &minute, false},
		{"later, negative", RetryAfter(boom, -minute), toRetry, &none, false},
		{"later, twice", RetryAfter(RetryAfter(boom, time.Hour), minute), toRetry, &minute, false},
		{"not before", RetryNotBefore(boom, minute), toRetry, &minute, false},
		{"not before, negative", RetryNotBefore(boom, -minute), toRetry, &none, false},
		{"nil not before", RetryNotBefore(nil, time.Hour), toComplete, nil, false},
		{"unreachable", DestinationFailed(boom), toFailDestination, nil, false},
		{"broken, wrapped", fmt.Errorf("a: %w", DestinationBroken(boom)), toFailDestination, nil, false},
		{"gone, joined", errors.Join(boom, DestinationGone(boom)), toFailDestination, nil, false},
		{"busy", Hold(boom, minute), toFailDestination, &minute, false},
		{"busy, negative", Hold(boom, -minute), toFailDestination, &none, false},
		{"nil unreachable", DestinationFailed(nil), toComplete, nil, false},
		{"nil busy", Hold(nil, time.Hour), toComplete, nil, false},
		{"settled", ErrSettled, settledBySink, nil, false},
		{"settled wrapped", fmt.Errorf("a: %w", ErrSettled), settledBySink, nil, false},
		{"undelivered", Undelivered(boom), toRelease, nil, false},
		{"undelivered joined", errors.Join(boom, Undelivered(boom)), toRelease, nil, false},
		{"closed", ErrSinkClosed, toRelease, nil, true},
		{"closed wrapped", fmt.Errorf("a: %w", ErrSinkClosed), toRelease, nil, true},
		{"closed joined", errors.Join(boom, ErrSinkClosed), toRelease, nil, true},
		// Where an error says two things, the message's own fault goes last: it must be
		// true of a message that it was tried.
		{"closed and permanent", Permanent(ErrSinkClosed), toRelease, nil, true},
		{"closed and undelivered", Undelivered(ErrSinkClosed), toRelease, nil, true},
		{"undelivered and permanent", Permanent(Undelivered(boom)), toRelease, nil, false},
		{"undelivered and later", RetryAfter(Undelivered(boom), minute), toRelease, nil, false},
		{"unreachable and permanent", Permanent(DestinationFailed(boom)), toFailDestination, nil, false},
		{"unreachable and later", RetryAfter(DestinationFailed(boom), minute), toFailDestination, nil, false},
		{"undelivered and unreachable", DestinationFailed(Undelivered(boom)), toRelease, nil, false},
		{"permanent and later", RetryAfter(Permanent(boom), minute), toFail, nil, false},
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
