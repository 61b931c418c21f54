package integration

import (
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

// wantInstants checks when a claimed message was enqueued, came due and was claimed.
func wantInstants(t *testing.T, q querier, m driver.Delivery) {
	t.Helper()
	for _, instant := range []struct {
		name, sql string
		got       time.Time
	}{
		{"created_at", "select m.created_at from outbox.message as m where m.id = $1", m.CreatedAt},
		{"due_at", "select c.visible_after from outbox.claimed as c where c.id = $1", m.DueAt},
		{"claimed_at", "select c.claimed_at from outbox.claimed as c where c.id = $1", m.ClaimedAt},
	} {
		if want := one[time.Time](t, q, instant.sql, m.ID); !instant.got.Equal(want) {
			t.Errorf("%s: %s is %v, want %v", m.DispatchKey, instant.name, instant.got, want)
		}
	}
}

// A claim tells when messages were enqueued, came due and were claimed, to the microsecond; for each
// claim of a message anew. Instants that Go or JSON do not have fail no claim.
func TestClaimTellsInstants(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, `select outbox.enqueue('n', 'q', k, '') from unnest(array['now', 'always', 'ancient', 'eternal', 'late']) as k`)
	run(t, db.Pool, `update outbox.pending as p set visible_after = x.due
		from (values ('always', '-infinity'::timestamptz), ('ancient', '4000-01-01 BC'), ('late', '2000-01-02 03:04:05.678901Z')) as x(key, due)
		join outbox.message as m on m.dispatch_key = x.key where p.id = m.id`)
	run(t, db.Pool, `update outbox.message set created_at = 'infinity' where dispatch_key = 'eternal'`)
	claimed := func() map[string]driver.Delivery {
		t.Helper()
		c, err := driver.Claim(t.Context(), db.Pool, driver.ClaimRequest{Node: "n1", Shards: one[[]int32](t, db.Pool, "select outbox.all_shards()"), Batch: 10, WithoutPayloads: true})
		if err != nil || len(c.Deliveries) == 0 {
			t.Fatalf("%+v, %v", c, err)
		}
		messages := map[string]driver.Delivery{}
		for _, m := range c.Deliveries {
			messages[m.DispatchKey] = m
		}
		return messages
	}
	first := claimed()
	if len(first) != 5 {
		t.Fatalf("claimed %v", first)
	}
	wantInstants(t, db.Pool, first["now"])
	wantInstants(t, db.Pool, first["late"])
	for what, got := range map[string][2]time.Time{
		"always due is as old as the message": {first["always"].DueAt, first["always"].CreatedAt},
		"a due time before the year 1":        {first["ancient"].DueAt, {}},
		"created after 9999":                  {first["eternal"].CreatedAt, time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC)},
	} {
		if !got[0].Equal(got[1]) {
			t.Errorf("%s: %v, want %v", what, got[0], got[1])
		}
	}

	run(t, db.Pool, `select outbox.retry(array[$1::bigint], array[$2::bigint], null, array['0 s'::interval])`, first["late"].ID, first["late"].ClaimToken)
	again := claimed()["late"]
	wantInstants(t, db.Pool, again)
	if !again.CreatedAt.Equal(first["late"].CreatedAt) || !again.DueAt.After(first["late"].ClaimedAt) || again.ClaimedAt.Before(again.DueAt) {
		t.Errorf("claimed again as %+v, after %+v", again, first["late"])
	}
}
