package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// What a sink answers decides what becomes of a message, however the answer is wrapped.
func TestSweepVerdicts(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	plain := errors.New("no\x00t \xff today")
	answers := map[string]struct {
		err     error
		status  string
		attempt int // charged when it is over
	}{
		"done":              {nil, "done", 1},
		"plain":             {plain, "pending", 1},
		"permanent":         {node.Permanent(plain), "failed", 1},
		"permanent wrapped": {fmt.Errorf("so: %w", node.Permanent(plain)), "failed", 1},
		"permanent joined":  {errors.Join(plain, node.Permanent(plain)), "failed", 1},
		"later":             {node.RetryAfter(plain, time.Hour), "pending", 1},
		"later joined":      {errors.Join(plain, fmt.Errorf("so: %w", node.RetryAfter(plain, 1<<62))), "pending", 1},
		"undelivered":       {node.Undelivered(plain), "pending", 0},
		"undelivered joined": {
			errors.Join(node.Permanent(plain), node.Undelivered(plain)), "pending", 0,
		},
		"unreachable":               {node.DestinationFailed(plain), "pending", 1},
		"broken":                    {fmt.Errorf("so: %w", node.DestinationBroken(plain)), "pending", 1},
		"busy":                      {node.Hold(plain, time.Hour), "pending", 0},
		"gone":                      {node.DestinationGone(plain), "pending", 0},
		"unreachable and permanent": {node.Permanent(node.DestinationFailed(plain)), "pending", 1},
		"nil error":                 {(*nilError)(nil), "pending", 1},
	}
	for name := range answers {
		put(t, db.Pool, "ns", name, name) // each to a destination of its own
	}
	put(t, db.Pool, "ns", "q", "panic")
	run(t, db.Pool, `select outbox.configure('{"retry_base": "1 h", "retry_cap": "1 h"}')`)
	s := newNode(t, db, node.SinkFunc(func(_ context.Context, m driver.Delivery) error {
		if m.DispatchKey == "panic" {
			panic("at\x00 the disco")
		}
		return answers[m.DispatchKey].err
	}))
	if err := s.Once(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	for name, want := range answers {
		got := one[string](t, db.Pool, "select status || ' ' || attempt from outbox.messages where dispatch_key = $1", name)
		if got != fmt.Sprint(want.status, " ", want.attempt) {
			t.Errorf("%s: %s, want %s %d", name, got, want.status, want.attempt)
		}
	}
	for name, want := range map[string]string{"unreachable": "failing", "broken": "failing", "busy": "held", "gone": "held"} {
		got, err := driver.Observe(t.Context(), db.Pool, []driver.Destination{{Namespace: "ns", TaskQueue: name}})
		if err != nil || len(got) != 1 || string(got[0].Health) != want || (want == "held") != (got[0].Reason != "") {
			t.Errorf("%s: the destination is %+v, %v, want %s", name, got, err, want)
		}
		if gone := len(got) == 1 && got[0].Until.Year() == 9999; gone != (name == "gone") {
			t.Errorf("%s: the destination is %+v", name, got)
		}
	}
	for name, part := range map[string]string{"panic": "panicked: at\uFFFD the disco", "plain": "no\uFFFDt \uFFFD today", "nil error": "nil"} {
		got := one[string](t, db.Pool, `select f.error from outbox.failure as f join outbox.message as m using (id) where m.dispatch_key = $1`, name)
		if !strings.Contains(got, part) {
			t.Errorf("%s failed for the reason %q, want %q in it", name, got, part)
		}
	}
	if !one[bool](t, db.Pool, `select visible_after between now() + interval '50 min' and now() + interval '1 h'
from outbox.messages where dispatch_key = 'later'`) {
		t.Error("RetryAfter of an hour was not honoured")
	}
	if !one[bool](t, db.Pool, `select visible_after > now() + interval '100 years' from outbox.messages where dispatch_key = 'later joined'`) {
		t.Error("RetryAfter of 146 years was not honoured")
	}
}

// nilError is the classic: a nil pointer in an error interface, whose method reads it.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }
