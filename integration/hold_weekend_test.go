package integration

import (
	"fmt"
	"testing"
)

// A destination is down for sixty hours. Nothing of it becomes a dead letter, nothing is written but for the
// probes, whatever the backlog is, and who has nothing to do with it is served as ever. When it answers
// again, the first success opens it, the flow grows, and all that waited is delivered. INV-16, INV-8. (The
// clock of a hold is data: the hours are taken from it.)
func TestHoldForAWeekend(t *testing.T) {
	t.Parallel()
	const backlog, hours = 2000, 60
	db := setUp(t, `select outbox.configure('{"max_attempts": 3, "shard_count": 2, "default_quota": 1000}')`)
	run(t, db.Pool, `select outbox.enqueue_batch(array_fill('dead'::text, array[$1::int]), array_fill('q'::text, array[$1::int]),
		array(select 'd' || i from generate_series(1, $1::int) as i), array_fill(''::bytea, array[$1::int]))`, backlog)
	claim := func(batch int) []string {
		return list[string](t, db.Pool, "select format('%s %s %s', c.namespace, c.id, c.claim_token) from outbox.claim_fair('n', outbox.all_shards(), $1) as c", batch)
	}
	settle := func(rows []string, sql string) {
		for _, row := range rows {
			var namespace string
			var id, token int64
			if _, err := fmt.Sscan(row, &namespace, &id, &token); err != nil {
				t.Fatal(err)
			}
			if namespace == "live" {
				run(t, db.Pool, "select outbox.complete(array[$1::bigint], array[$2::bigint])", id, token)
			} else {
				run(t, db.Pool, sql, id, token)
			}
		}
	}
	const down = "select outbox.fail_destination(array[$1::bigint], array[$2::bigint], '{unreachable}', '{connection refused}')"
	for range 10 {
		settle(claim(1), down)
	}
	if got := one[int](t, db.Pool, "select count(*) from outbox.destination where state = 'held'"); got != 1 {
		t.Fatalf("%d destinations are held after 10 attempts", got)
	}
	run(t, db.Pool, "create table public.before as select p.id, p.ctid as place, p.xmin::text as written from outbox.pending as p")

	probes := 0
	for passed := 0.0; passed < hours*3600; probes++ {
		left := one[float64](t, db.Pool, "select extract(epoch from held_until - clock_timestamp())::float8 from outbox.destination")
		if left > 720 {
			t.Fatalf("a hold of %.0f s", left)
		}
		passed += max(left, 1)
		run(t, db.Pool, "update outbox.destination set held_since = held_since - make_interval(secs => $1), held_until = held_until - make_interval(secs => $1)", max(left, 0)+0.001)
		put(t, db.Pool, "live", "q", fmt.Sprint("l", probes))
		rows := claim(10)
		if len(rows) != 2 {
			t.Fatalf("after %.1f h a claim brings %q, want a probe and the other tenant's message: %q", passed/3600, rows, list[string](t, db.Pool, "select format('%s, %s', e.namespace, e.reason) from outbox.explain_claim('n', outbox.all_shards(), 10) as e"))
		}
		if again := claim(10); len(again) != 0 {
			t.Fatalf("beside the probe a claim brings %q", again)
		}
		settle(rows, down)
		run(t, db.Pool, "select outbox.observe('{dead}', '{q}')") // which reads the report
	}
	t.Logf("%d probes in %d hours", probes, hours)
	if probes > 3*hours*6 {
		t.Errorf("%d probes in %d hours", probes, hours)
	}
	if n := one[int](t, db.Pool, "select count(*) from outbox.settled where outcome <> 'done'"); n > 0 {
		t.Errorf("%d dead letters", n)
	}
	if n := one[int](t, db.Pool, "select max(attempt) from outbox.pending"); n > 1 {
		t.Errorf("a message has paid with %d attempts", n)
	}
	kept := one[int](t, db.Pool, "select count(*) from public.before as b join outbox.pending as p on p.id = b.id where p.ctid = b.place and p.xmin::text = b.written")
	if kept < backlog-10-probes {
		t.Errorf("of %d messages %d stand as they were, beside %d probes", backlog, kept, probes)
	}

	delivered := 0
	run(t, db.Pool, "update outbox.destination set held_until = clock_timestamp()")
	run(t, db.Pool, "update outbox.pending set visible_after = clock_timestamp() - interval '1 s' where visible_after > clock_timestamp()")
	run(t, db.Pool, "update outbox.walk set unripe_all_at = '-infinity'") // as 2 s later: see ripen
	for second := -1; delivered < backlog; second++ {                     // before the first one, the probe
		if second > 0 {
			run(t, db.Pool, "update outbox.destination set lifted_at = clock_timestamp() - make_interval(secs => $1)", second)
		}
		rows := claim(1000)
		most := 1
		if second >= 0 {
			most = 4 << second // a slow machine may take two seconds more
		}
		if len(rows) == 0 || len(rows) > most {
			t.Fatalf("after %d delivered a claim brings %d, want up to %d", delivered, len(rows), most)
		}
		delivered += len(rows)
		settle(rows, "select outbox.complete(array[$1::bigint], array[$2::bigint])")
	}
	wantSound(t, db.Pool)
}
