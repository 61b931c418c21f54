package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// What an error of the database means: who waits, and whether a Once ends.
func TestBackoffErrors(t *testing.T) {
	sqlstate := func(code string) error {
		return fmt.Errorf("claim: %w", &pgconn.PgError{Code: code, Message: "of a test"})
	}
	for name, test := range map[string]struct {
		err          error
		away, isOver bool
	}{
		"a time-out":                     {context.DeadlineExceeded, true, true},
		"a broken connection":            {&net.OpError{Op: "read", Err: errors.New("reset")}, true, true},
		"connection_failure":             {sqlstate("08006"), true, true},
		"admin_shutdown":                 {sqlstate("57P01"), true, true},
		"cannot_connect_now":             {sqlstate("57P03"), true, true},
		"idle_session_timeout":           {sqlstate("57P05"), true, true},
		"read_only_sql_transaction":      {sqlstate("25006"), true, true},
		"query_canceled":                 {sqlstate("57014"), false, true},
		"deadlock_detected":              {sqlstate("40P01"), false, false},
		"serialization_failure":          {sqlstate("40001"), false, false},
		"lock_not_available":             {sqlstate("55P03"), false, false},
		"insufficient_privilege":         {sqlstate("42501"), false, true},
		"undefined_function":             {sqlstate("42883"), false, true},
		"an argument the outbox refuses": {sqlstate("OB001"), false, true},
	} {
		b := &backoff{}
		wait := b.failed(100, time.Minute, test.err)
		if b.mayCall(100) || !b.mayCall(100+int64(wait)) {
			t.Errorf("%s: calls do not wait for %v", name, wait)
		}
		if waits := b.dutiesAt > 100; waits != test.away {
			t.Errorf("%s: duties wait is %t", name, waits)
		}
		if got := endsOnce(test.err); got != test.isOver {
			t.Errorf("%s: a Once ends is %t", name, got)
		}
	}
}

// Pauses double from 100 ms to 10 s, or a quarter of the lease, until a call works.
func TestBackoffGrows(t *testing.T) {
	boom := errors.New("boom")
	for _, test := range []struct {
		lease time.Duration
		want  []time.Duration // before jitter
	}{
		{time.Minute, []time.Duration{100e6, 200e6, 400e6, 800e6, 1600e6, 3200e6, 6400e6, 10e9, 10e9}},
		{2 * time.Second, []time.Duration{100e6, 200e6, 400e6, 500e6, 500e6}},
		{200 * time.Millisecond, []time.Duration{50e6, 50e6}},
	} {
		b := &backoff{}
		if b.worked() {
			t.Error("a call that works at the start works again")
		}
		for round := range 2 {
			for i, want := range test.want {
				if wait := b.failed(0, test.lease, boom); wait < want*8/10 || wait > want*12/10+1 {
					t.Errorf("lease %v, round %d: pause %d is %v, want about %v", test.lease, round, i, wait, want)
				}
			}
			if !b.worked() || b.worked() {
				t.Error("that the database answers again is not told once")
			}
		}
	}
}
