package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// A destination that asks for a retry sooner than the policy gets the policy's backoff, as the
// database computes it; one that asks for a later one gets that.
func TestRetryNotBeforeIsAFloor(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, `select outbox.configure('{"retry_base": "7 s", "retry_multiplier": 1.9, "retry_cap": "1 h", "retry_jitter": 0, "max_attempts": 100}')`)
	const most = 15
	for attempt := range most {
		for _, name := range []string{"sooner", "later"} {
			id := put(t, db.Pool, name, "q", fmt.Sprint(name, attempt))
			run(t, db.Pool, "update outbox.pending set attempt = $2 where id = $1", id, attempt)
		}
	}
	s := newNode(t, db, node.SinkFunc(func(_ context.Context, m driver.Delivery) error {
		if m.Namespace == "sooner" {
			return node.RetryNotBefore(errors.New("busy"), time.Second)
		}
		return fmt.Errorf("so: %w", node.RetryNotBefore(errors.New("busy"), 2*time.Hour))
	}))
	if err := s.Once(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if got := s.Stats(); got.Retried != 2*most {
		t.Fatalf("stats are %+v, want %d retried", got, 2*most)
	}
	for _, wrong := range list[string](t, db.Pool, `
select format('%s, attempt %s: due after %s, not %s', p.namespace, p.attempt, p.visible_after - f.at, x.want)
from outbox.pending as p join outbox.failure as f on f.id = p.id
cross join lateral (select case p.namespace when 'later' then interval '2 h'
                      else outbox.retry_delay(p.attempt, '7 s', 1.9, '1 h', 0, 0.5) end as want) as x
where p.visible_after - f.at - x.want not between '-1 ms' and '1 ms'`) {
		t.Error(wrong)
	}
}

// A message whose last attempt has failed is counted and logged as failed, not as one to be
// retried.
func TestUsedUpAttemptsCountAsFailed(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, `select outbox.configure('{"max_attempts": 2}')`)
	for i := range 5 {
		id := put(t, db.Pool, "ns", "q", fmt.Sprint(i))
		run(t, db.Pool, "update outbox.pending set attempt = $2 where id = $1", id, min(i, 1))
	}
	var log strings.Builder
	s := newNode(t, db, node.SinkFunc(func(context.Context, driver.Delivery) error { return errors.New("boom") }),
		func(c *node.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	if err := s.Once(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, db.Pool, map[string]int{"failed": 4, "pending": 1})
	if got := s.Stats(); got.Failed != 4 || got.Retried != 1 {
		t.Errorf("%d failed and %d to be retried, want 4 and 1", got.Failed, got.Retried)
	}
	retried, failed := 0, 0 // over all reports
	for _, report := range regexp.MustCompile(`to_be_retried=(\d+) failed=(\d+)`).FindAllStringSubmatch(log.String(), -1) {
		r, _ := strconv.Atoi(report[1])
		f, _ := strconv.Atoi(report[2])
		retried, failed = retried+r, failed+f
	}
	if retried != 1 || failed != 4 {
		t.Errorf("the log says %s", log.String())
	}
}

// What a command says first and last comes through to the operator, whatever it says between,
// and a time-out is called one.
func TestCLIReasonsTellBothEnds(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	for name, script := range map[string]string{
		"long":  "echo the cause; yes 0123456789 | head -c 100000; echo; echo the last words; exit 1",
		"short": "echo the cause; echo the last words; exit 1",
		"slow":  "echo the cause; echo the last words; sleep 600",
	} {
		put(t, db.Pool, name, name, name)
		sweep(t, db.DSN, "once", "--delivery-timeout", "3s", "--sink", "exec:sh -c '"+script+"'")
		got := one[string](t, db.Pool, "select f.error from outbox.failure as f join outbox.message as m using (id) where m.dispatch_key = $1", name)
		wants := []string{": the cause ", "the last words", map[bool]string{true: "timed out after 3s", false: "exit status 1"}[name == "slow"]}
		for _, want := range wants {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q is not in the reason %q", name, want, got)
			}
		}
		run(t, db.Pool, "delete from outbox.pending")
	}
}
