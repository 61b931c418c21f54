package integration

import (
	"fmt"
	"testing"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// An interval argument is taken for how long it lasts, not for how it compares: to the
// comparison, which says that a year has 360 days, this is a week, and it lasts for less
// than no time.
const lessThanNone = "-10 years 3607 days"

func TestSpansOfArguments(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	worker := db.Role(t)
	run(t, conn, "select outbox.grant_worker($1)", worker.Name)
	id := put(t, conn, "n", "q", "k")
	claimed := claimOne(t, conn, "n1")
	settle(t, conn, "complete", claimed.ID, claimed.Token)
	run(t, conn, "update outbox.settled set settled_at = settled_at - interval '6 days'")
	for who, as := range map[string][]pgtest.ConnOption{"the owner": nil, "a worker": {pgtest.As(worker)}} {
		_, err := db.Connect(t, as...).Exec(t.Context(), fmt.Sprintf("select outbox.prune('%s')", lessThanNone))
		wantError(t, err, "OB001", "older_than")
		if got := status(t, conn, id); got != "done" {
			t.Fatalf("%s pruned a message of 6 days: it is %q", who, got)
		}
	}
	// To the comparison this is 7 days, the retention; it lasts for 6 days and 18 hours less.
	_, err := db.Connect(t, pgtest.As(worker)).Exec(t.Context(), "select outbox.prune('-1 year 367 days')")
	wantError(t, err, "42501", "only operators")

	put(t, conn, "n", "q", "k2")
	claimed = claimOne(t, conn, "n1")
	for _, lease := range []string{lessThanNone, "-10 years 3600 days 1 h", "0", "1 day 1 ms"} {
		_, err := conn.Exec(t.Context(), "select outbox.extend(array[$1::bigint], array[$2::bigint], $3::text::interval)", claimed.ID, claimed.Token, lease)
		wantError(t, err, "OB001", "lease")
	}
	if !one[bool](t, conn, "select lease_until > clock_timestamp() from outbox.claimed where id = $1", claimed.ID) {
		t.Error("the lease was cut off")
	}
	// Delays below none are none.
	put(t, conn, "delays", "q", "k3")
	claimed = claimOne(t, conn, "n1")
	run(t, conn, "select outbox.retry(array[$1::bigint], array[$2::bigint], '{x}', array[$3::text::interval])", claimed.ID, claimed.Token, lessThanNone)
	run(t, conn, "select outbox.enqueue('delays', 'q', 'k4', '\\x'::bytea, delay => $1::text::interval)", lessThanNone)
	run(t, conn, "select outbox.enqueue_batch('{delays}', '{q}', '{k5}', array['\\x'::bytea], delays => array[$1::text::interval])", lessThanNone)
	if n := one[int](t, conn, "select count(*) from outbox.pending where namespace = 'delays' and visible_after <= clock_timestamp() and visible_after > clock_timestamp() - interval '1 min'"); n != 3 {
		t.Errorf("%d messages are due, want 3", n)
	}
}

// A setting that compares as one within its bounds, and lasts for less than no time, is
// refused, and so is an update of the table past configure.
func TestSpansOfSettings(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	settings := list[string](t, conn, "select attname from pg_attribute where attrelid = 'outbox.config'::regclass and atttypid = 'interval'::regtype and attnum > 0 order by 1")
	for _, name := range settings {
		for _, span := range []string{"-10 years 3600 days 1 h", "-10 years 3601 days", lessThanNone} {
			_, err := conn.Exec(t.Context(), "select outbox.configure(jsonb_build_object($1::text, $2::text))", name, span)
			wantError(t, err, "OB001", name, "does not fit")
			_, err = conn.Exec(t.Context(), fmt.Sprintf("update outbox.config set %s = '%s'", name, span))
			wantError(t, err, "23514", name)
		}
	}
	// What the constraints take is taken, months and years too.
	run(t, conn, `select outbox.configure('{"retention": "1 year", "retry_cap": "1 year"}')`)
	run(t, conn, `select outbox.configure('{"retention": "36500 days", "retry_cap": "365 days", "lease": "1 day", "node_lapse": "1 day", "claim_idle_timeout": "1 h", "retry_base": "1 day"}')`)
	run(t, conn, `select outbox.configure('{"retention": "0", "lease": "1 s", "node_lapse": "1 s", "claim_idle_timeout": "100 ms", "retry_base": "1 ms", "retry_cap": "1 ms"}')`)
}
