package integration

import (
	"strings"
	"testing"
)

// TestCLICheck: nothing found is exit 0, a violation exit 1; an operator may ask.
func TestCLICheck(t *testing.T) {
	t.Parallel()
	db := checkOutbox(t)
	role := db.Role(t)
	run(t, db.Pool, "select outbox.grant_operator($1)", role.Name)
	for _, dsn := range []string{db.DSN, role.DSN} {
		if got := sweep(t, dsn, "check"); got != "No violation found.\n" {
			t.Errorf("printed %q", got)
		}
		if got := sweep(t, dsn, "check", "--json"); got != "[]\n" {
			t.Errorf("printed %q", got)
		}
	}
	run(t, db.Pool, "delete from outbox.pending where id in (1, 2)")
	run(t, db.Pool, "grant execute on function outbox.shard_of to public")
	got := sweepFails(t, role.DSN, 1, []string{"check"}, "violates its guarantees")
	if strings.Count(got.stdout, "is in no state") != 2 || strings.Count(got.stdout, "->") != 2 {
		t.Errorf("printed\n%s", got.stdout)
	}
	got = sweepFails(t, db.DSN, 1, []string{"check", "--json"})
	rows := fromJSON[[]violation](t, got.stdout)
	if len(rows) != 3 || rows[0].Guarantee != "INV-2" || rows[0].Subject != "message 1" || rows[0].Hint == "" || rows[2].Guarantee != "rights" {
		t.Errorf("%+v", rows)
	}
	got = sweepFails(t, db.DSN, 1, []string{"check", "--newest", "11", "--max", "1"})
	if strings.Contains(got.stdout, "message 1:") || !strings.Contains(got.stdout, "message 2") {
		t.Errorf("--newest 11 printed\n%s", got.stdout)
	}
	got = sweepFails(t, db.DSN, 1, []string{"check", "--max", "1"})
	if !strings.Contains(got.stdout, "1 more like this") {
		t.Errorf("--max 1 printed\n%s", got.stdout)
	}
	// Long enough for more than a millisecond.
	run(t, db.Pool, "select count(outbox.enqueue('n', 'q', 'x' || i, '')) from generate_series(1, 3000) as i")
	sweepFails(t, db.DSN, 1, []string{"check", "--timeout", "1ms"}, "statement timeout", "--newest")
	producer := db.Role(t)
	run(t, db.Pool, "select outbox.grant_producer($1)", producer.Name)
	sweepFails(t, producer.DSN, 1, []string{"check"}, "permission denied", "grant_")
}
