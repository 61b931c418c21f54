package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

var errDown = errors.New("connection refused")

// script is a sink that answers as the test says, message by message.
type script struct {
	answers func(m driver.Delivery) error
	begun   chan driver.Delivery // where it is not nil, each delivery waits for let
	let     chan error
}

func (s *script) Deliver(ctx context.Context, m driver.Delivery) error {
	if s.begun == nil {
		return s.answers(m)
	}
	s.begun <- m
	select {
	case err := <-s.let:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// next is the delivery that begins next.
func (s *script) next(t testing.TB) driver.Delivery {
	t.Helper()
	select {
	case m := <-s.begun:
		return m
	case <-time.After(patience()):
		t.Fatal("no delivery begins")
		return driver.Delivery{}
	}
}

// A probe that is cancelled, fails by its own fault, or fails by its destination, is followed by another one: one
// at a time, and none of it is charged but the message's own failure. The first that comes through opens for all.
func TestProbesUntilOneComesThrough(t *testing.T) {
	t.Parallel()
	db := setUp(t, holdForLong+`; select outbox.hold('ns', 'q', '1 h')`)
	fill(t, db.Pool, "ns", "q", 30, 1)
	s := &script{begun: make(chan driver.Delivery, 100), let: make(chan error)}
	n := startNode(t, newNode(t, db, s))
	out := func() int {
		return one[int](t, db.Pool, "select count(*) from outbox.claimed")
	}
	probe := func(what string) driver.Delivery {
		endHolds(t, db.Pool)
		m := s.next(t)
		if !m.Probe || m.Pass != 0 || out() != 1 {
			t.Errorf("%s: %+v, and %d are claimed, want the probe alone", what, m, out())
		}
		return m
	}

	m := probe("to be cancelled")
	run(t, db.Pool, "select outbox.cancel(array[$1])", m.DispatchKey)
	s.let <- nil
	await(t, db.Pool, "select count(*) = 0 from outbox.claimed")
	if got := heldNow(t, db.Pool); fmt.Sprint(got) != "[ns/q]" {
		t.Errorf("held are %v", got)
	}

	m = probe("poisonous")
	s.let <- node.Permanent(errors.New("cannot be parsed"))
	await(t, db.Pool, "select exists (select from outbox.settled where id = $1 and outcome = 'failed' and attempts = 1)", m.ID)

	m = probe("fails by its destination")
	s.let <- node.DestinationFailed(errDown)
	await(t, db.Pool, "select exists (select from outbox.pending where id = $1 and attempt = 0)", m.ID)
	await(t, db.Pool, "select held_until > clock_timestamp() from outbox.destination where namespace = 'ns'")

	another := probe("comes through")
	if another.ID == m.ID {
		t.Errorf("message %d is the probe again, with others waiting", m.ID)
	}
	s.let <- nil
	await(t, db.Pool, "select state = 'recovering' from outbox.destination where namespace = 'ns'")
	recovered(t, db.Pool)
	run(t, db.Pool, "select outbox.retry_now('ns', 10)") // the probe that failed waits for an hour
	for range 27 {
		s.next(t)
		s.let <- nil
	}
	await(t, db.Pool, "select count(*) = 28 from outbox.settled where outcome = 'done'")
	if st := n.drained(t); st.Failed != 1 || st.Lost != 1 || st.Retried != 1 {
		t.Errorf("stats are %+v", st)
	}
}

// A probe that takes longer than its lease is extended, and stays the only one.
func TestProbeIsExtended(t *testing.T) {
	t.Parallel()
	lease := scaled(time.Second)
	db := setUp(t, holdForLong+`; select outbox.hold('ns', 'q', '1 h')`)
	run(t, db.Pool, `select outbox.configure(jsonb_build_object('lease', $1::text))`, fmt.Sprint(lease.Milliseconds(), " ms"))
	fill(t, db.Pool, "ns", "q", 10, 1)
	s := &script{begun: make(chan driver.Delivery, 100), let: make(chan error)}
	startNode(t, newNode(t, db, s, func(c *node.Config) { c.DeliveryTimeout = time.Hour }))
	endHolds(t, db.Pool)
	m := s.next(t)
	for range 8 { // twice as long as the lease lasts
		await(t, db.Pool, "select lease_until > $1 from outbox.claimed",
			one[time.Time](t, db.Pool, "select lease_until from outbox.claimed"))
	}
	if len(s.begun) > 0 || one[int64](t, db.Pool, "select claim_token from outbox.claimed") != m.ClaimToken {
		t.Error("another probe was tried")
	}
	s.let <- nil
	await(t, db.Pool, "select state = 'recovering' from outbox.destination where namespace = 'ns'")
}

// A namespace fills the budget with messages of a route that hangs, and what it has more is parked. The probe
// of its other route is not: it is tried at once.
func TestProbeIsNotParked(t *testing.T) {
	t.Parallel()
	db := setUp(t, holdForLong+`; select outbox.hold('ns', 'held', '1 h')`)
	fill(t, db.Pool, "ns", "hangs", 40, 1000)
	probed := &collector{}
	hang := newHanging()
	n := startNode(t, newNode(t, db, hang, func(c *node.Config) {
		c.Budget, c.DeliveryTimeout, c.Slots, c.Share, c.Spare = 10_000, time.Hour, 3, 1, -1
		c.Routes = map[string]node.Sink{"held": probed}
	}))
	await(t, db.Pool, "select count(*) = 40 from outbox.claimed")
	eventually(t, "most is parked", func() bool { return n.Stats().Parked > 20 })
	run(t, db.Pool, `select outbox.enqueue('ns', 'held', 'held-' || i, repeat('x', 1000)::bytea) from generate_series(1, 5) as i`)
	endHolds(t, db.Pool)
	await(t, db.Pool, "select state = 'recovering' from outbox.destination where task_queue = 'held'")
	if m := probed.messages(); len(m) == 0 || !m[0].Probe {
		t.Errorf("delivered were %+v, want the probe first", m)
	}
	close(hang.let)
}

// Sixty-four deliveries are answered with 429 at the same moment: that is one hold, not sixty-four that add up, and
// no message pays for it.
func TestManyAnswersOf429AreOneHold(t *testing.T) {
	t.Parallel()
	db := setUp(t, `select outbox.configure('{"hold_base": "1 min", "hold_cap": "1 day"}')`)
	fill(t, db.Pool, "ns", "q", 200, 1)
	s := &script{begun: make(chan driver.Delivery, 1000), let: make(chan error)}
	n := startNode(t, newNode(t, db, s, func(c *node.Config) { c.Share, c.Spare = 1, -1 }))
	for range 64 {
		s.next(t)
	}
	for range 64 {
		s.let <- node.Hold(errors.New("slow down"), 0)
	}
	await(t, db.Pool, "select exists (select from outbox.destination where state = 'held' and namespace = 'ns')")
	await(t, db.Pool, "select count(*) = 0 from outbox.claimed")
	if len(s.begun) > 0 {
		t.Errorf("%d deliveries began afterwards", len(s.begun))
	}
	await(t, db.Pool, "select count(*) = 0 from outbox.report")
	if got := one[string](t, db.Pool, `select step || ' ' || (held_until - held_since between '48 s' and '72 s') from outbox.destination where namespace = 'ns'`); got != "1 true" {
		t.Errorf("the hold's step and its length of a minute: %s, want 1 true", got)
	}
	if charged := one[int](t, db.Pool, "select count(*) from outbox.pending where attempt > 0"); charged > 0 {
		t.Errorf("%d messages were charged", charged)
	}
	if st := n.drained(t); st.Retried != 64 || st.Released+st.Retried != st.Claimed {
		t.Errorf("stats are %+v", st)
	}
}

// Whatever a server asks for, its destination is held for a step at least and an hour at most, and tried again then.
func TestRetryAfterIsAHold(t *testing.T) {
	t.Parallel()
	db := setUp(t, `select outbox.configure('{"hold_base": "1 min", "hold_cap": "1 day"}')`)
	asks := map[string]struct {
		retryAfter string
		from, to   time.Duration
	}{
		"none":  {"0", 48 * time.Second, 72 * time.Second},
		"past":  {"Sun, 06 Nov 1994 08:49:37 GMT", 48 * time.Second, 72 * time.Second},
		"ten":   {"600", 10 * time.Minute, 10 * time.Minute},
		"year":  {"31536000", time.Hour, time.Hour},
		"words": {"soon", 48 * time.Second, 72 * time.Second},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", asks[r.URL.Path[1:]].retryAfter)
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	t.Cleanup(server.Close)
	for namespace := range asks {
		fill(t, db.Pool, namespace, "q", 3, 1)
	}
	startSweep(t, db.DSN, "n1", "--sink", server.URL+"/{namespace}")
	await(t, db.Pool, "select count(*) = $1 from outbox.destination where state = 'held' and namespace is not null", len(asks))
	for namespace, want := range asks {
		held := time.Duration(one[int64](t, db.Pool, "select extract(epoch from held_until - held_since)::numeric * 1000000 from outbox.destination where namespace = $1", namespace)) * time.Microsecond
		if held < want.from || held > want.to {
			t.Errorf("%s: held for %v, want %v to %v", namespace, held, want.from, want.to)
		}
	}
}

// Somebody else holds a destination: what the node has waiting for it goes back with its next heartbeat, uncharged; and
// in a drain, too, nothing of it is tried.
func TestNodeGivesBackWhatIsHeld(t *testing.T) {
	t.Parallel()
	db := setUp(t, holdForLong)
	fill(t, db.Pool, "ns", "q", 100, 1)
	fill(t, db.Pool, "other", "q", 100, 1)
	var log lockedBuffer
	hang := newHanging()
	n := startNode(t, newNode(t, db, hang, func(c *node.Config) {
		c.Slots, c.Share, c.Spare, c.DeliveryTimeout = 4, 0.5, -1, time.Hour
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	}))
	await(t, db.Pool, "select count(*) = 200 from outbox.claimed")
	eventually(t, "the slots are in use", func() bool { return len(hang.begun) == 4 })
	run(t, db.Pool, "select outbox.hold('ns', 'q', '1 h', 'a migration')")
	await(t, db.Pool, "select count(*) = 98 from outbox.pending where namespace = 'ns' and attempt = 0")
	await(t, db.Pool, "select count(*) = 2 from outbox.claimed where namespace = 'ns'")
	if n := one[int](t, db.Pool, "select count(*) from outbox.claimed where namespace = 'other'"); n != 100 {
		t.Errorf("%d messages of the other one are claimed, want 100", n)
	}
	if lines := strings.Count(log.String(), "destinations are held"); lines != 1 || !strings.Contains(log.String(), "a migration") {
		t.Errorf("the log tells of it %d times, want once:\n%s", lines, &log)
	}

	// The next one is held while the node drains.
	n.Drain()
	run(t, db.Pool, "select outbox.hold('other', 'q', '1 h')")
	await(t, db.Pool, "select count(*) = 98 from outbox.pending where namespace = 'other' and attempt = 0")
	close(hang.let)
	if st := n.drained(t); st.Done != 4 || st.Released != 196 || len(hang.begun) != 4 {
		t.Errorf("stats are %+v, and %d deliveries began", st, len(hang.begun))
	}
	wantOutcomes(t, db.Pool, map[string]int{"done": 4, "pending": 196})
}

// A role that was not given its rights again after an upgrade, or an outbox of the version before, cannot be told what is
// down: a node retries as before, says so once, and goes on.
func TestNodeThatCannotReport(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"no right":     "revoke execute on function outbox.fail_destination, outbox.observe from %s",
		"no functions": "drop function outbox.fail_destination, outbox.observe; comment on role %s is ''",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := setUp(t, `select outbox.configure('{"retry_base": "1 h", "retry_cap": "1 h"}')`)
			role := db.Role(t)
			run(t, db.Pool, "select outbox.grant_worker($1)", role.Name)
			run(t, db.Admin(t), fmt.Sprintf(sql, role.Name))
			fill(t, db.Pool, "ns", "q", 50, 1)
			n := startSweep(t, role.DSN, "n1", "--sink", "exec:sh -c 'exit 69'")
			await(t, db.Pool, "select count(*) = 50 from outbox.pending where attempt = 1")
			n.stop(t)
			if lines := strings.Count(n.log.String(), "cannot report destinations in trouble"); lines != 1 || strings.Contains(n.log.String(), "the database failed a call") {
				t.Errorf("the log tells of it %d times, want once:\n%s", lines, n.log)
			}
			if got := one[int](t, db.Pool, "select count(*) from outbox.destination"); got != 0 {
				t.Errorf("%d destinations are known", got)
			}
		})
	}
}
