package integration

import "testing"

// TestCollationOfTheCaller: what a caller takes from columns with a collation of their own is compared as bytes, as all else:
// duplicates are told from new keys (INV-3), and operators' calls work.
func TestCollationOfTheCaller(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	if !one[bool](t, conn, `select exists (select from pg_collation as c where c.collname = 'und-x-icu')`) {
		t.Skip("this server was built without ICU")
	}
	run(t, conn, `create temporary table tenant (name text collate "und-x-icu", queue text collate "und-x-icu", key text collate "und-x-icu", payload bytea);
		insert into tenant values ('acme', 'q', 'acme/1', '')`)
	for n, call := range []string{
		`select count(outbox.enqueue(t.name, t.queue, t.key, t.payload)) from tenant as t`,
		`select count(outbox.enqueue(t.name, t.queue, t.key, 'text', delay => '1 s')) from tenant as t`,
		`select count(b.id) from (select array_agg(t.name) as a, array_agg(t.queue) as b, array_agg(t.key) as c, array_agg(t.payload) as d from tenant as t) as x
		 cross join lateral outbox.enqueue_batch(x.a, x.b, x.c, x.d) as b`,
		`select count(b.id) from (select array_agg(t.name) as a, array_agg(t.queue) as b, array_agg(t.key || n order by n) as c, array_agg(t.payload) as d
		  from tenant as t cross join generate_series(0, 0) as n) as x
		 cross join lateral outbox.enqueue_batch(x.a || x.a, x.b || x.b, x.c || x.c, x.d || x.d, delays => array['1 s', '2 s']::interval[]) as b`,
	} {
		for again := range 2 {
			want := 0
			if again == 0 && (n == 0 || n == 3) {
				want = 1
			}
			if got := one[int](t, conn, call); got != want {
				t.Errorf("INV-3: call %d of %s writes %d messages, want %d", again+1, call, got, want)
			}
		}
	}
	run(t, conn, `update tenant set name = 'other'`)
	_, err := conn.Exec(t.Context(), `select outbox.enqueue(t.name, t.queue, t.key, t.payload) from tenant as t`)
	wantError(t, err, "OB003")
	run(t, conn, `update tenant set name = 'acme'`)
	for _, call := range []string{
		`select outbox.set_quota(t.name, 5) from tenant as t`, `select outbox.set_quota(t.name, 6, true) from tenant as t`,
		`select q.quota from tenant as t cross join lateral outbox.quota(t.name) as q`, `select outbox.clear_quota(t.name) from tenant as t`,
		`select outbox.pause(t.name) from tenant as t`, `select outbox.pause(t.name, t.queue) from tenant as t`,
		`select outbox.resume(t.name, t.queue) from tenant as t`, `select outbox.resume(t.name) from tenant as t`,
		`select outbox.hold(t.name, t.queue) from tenant as t`, `select outbox.lift(t.name, t.queue) from tenant as t`,
		`select w.* from tenant as t cross join lateral outbox.why(t.key) as w`,
		`select w.* from tenant as t cross join lateral outbox.route_state(t.name) as w`,
		`select w.* from tenant as t cross join lateral outbox.failed(t.name) as w`,
		`select f.* from tenant as t cross join lateral outbox.failed(in_namespace => t.name, newest => false) as f`,
		`select k.* from tenant as t cross join lateral outbox.known_namespaces(t.name, 10) as k`,
		`select e.* from tenant as t cross join lateral outbox.explain_claim('node', outbox.all_shards(), 10, "only" => t.name) as e`,
		`select outbox.retry_now(t.name, 10) from tenant as t`, `select outbox.retry_now(array_agg(t.key)) from tenant as t`,
		`select outbox.redrive(t.name, 10) from tenant as t`, `select outbox.cancel(array_agg(t.key)) from tenant as t`,
		`select outbox.cancel_namespace(t.name, 10) from tenant as t`, `select w.* from tenant as t cross join lateral outbox.purge(t.name) as w`,
	} {
		if _, err := conn.Exec(t.Context(), call); err != nil {
			t.Errorf("%s: %v", call, err)
		}
	}
}
