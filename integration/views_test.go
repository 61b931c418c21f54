package integration

import (
	"fmt"
	"slices"
	"testing"
)

// TestMessagesView: one row a message, whatever its state.
func TestMessagesView(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	for _, how := range []string{"complete", "fail", "release", "retry", "cancel", "claim"} {
		id := put(t, conn, "n", "q", how)
		row := claimOne(t, conn, "n1")
		switch how {
		case "claim":
		case "cancel":
			run(t, conn, "select outbox.cancel('{cancel}')")
		case "retry":
			run(t, conn, "select outbox.retry(array[$1::bigint], array[$2::bigint], '{oops}')", id, row.Token)
		default:
			settle(t, conn, how, id, row.Token)
		}
		run(t, conn, "update outbox.pending set visible_after = 'infinity'")
	}
	put(t, conn, "n", "q", "new")
	got := list[string](t, conn, `select concat_ws(' ', dispatch_key, status, attempt, claimed_by, error,
		case when settled_at is not null then 'settled' end, case when visible_after is not null then 'visible' end,
		case when lease_until > clock_timestamp() then 'leased' end, case when shard between 0 and 15 then 'sharded' end)
		from outbox.messages order by id`)
	if want := []string{
		"complete done 1 settled sharded", "fail failed 1 no reason given settled sharded", "release pending 0 visible sharded",
		"retry pending 1 oops visible sharded", "cancel cancelled 1 settled sharded", "claim claimed 1 n1 visible leased sharded",
		"new pending 0 visible sharded",
	}; !slices.Equal(got, want) {
		t.Errorf("got:\n%q\nwant:\n%q", got, want)
	}
	for key, want := range map[string]string{
		"complete": "done 1", "fail": "failed 1", "release": "pending 0", "retry": "pending 1", "cancel": "cancelled 1", "claim": "claimed 1", "new": "pending 0",
	} {
		if got := one[string](t, conn, "select state || ' ' || attempts from outbox.why($1)", key); got != want {
			t.Errorf("why(%s) says %s, want %s", key, got, want)
		}
	}
	if got := one[string](t, conn, "select state from outbox.why('other')"); got != "unknown" {
		t.Errorf("why of an unknown key says %s", got)
	}
}

// TestNamespacesView: counts by state, capped, with the quota and whether it is
// paused.
func TestNamespacesView(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	run(t, conn, `select outbox.configure('{"count_cap": 10}')`)
	run(t, conn, "select outbox.enqueue(n, 'q', n || g, '') from unnest('{big,exact,small}'::text[]) as n, generate_series(1, case n when 'big' then 30 when 'exact' then 10 else 3 end) as g")
	run(t, conn, "select outbox.set_quota('exact', 0), outbox.set_quota('idle', 9, true), outbox.pause('idle')")
	for _, row := range claim(t, conn, "n1", 4) {
		if row.Namespace == "small" {
			settle(t, conn, "fail", row.ID, row.Token)
		}
	}
	const view = "select format('%s %s %s %s %s %s %s', namespace, pending, claimed, failed, quota, strict, paused) from outbox.namespaces order by namespace"
	got := list[string](t, conn, view)
	if want := []string{"big 10 2 0 256 f f", "exact 10 0 0 0 f f", "idle 0 0 0 9 t t", "small 1 0 2 256 f f"}; !slices.Equal(got, want) {
		t.Errorf("got:\n%q\nwant:\n%q", got, want)
	}
	run(t, conn, "select outbox.pause(everything => true)")
	if got := one[int](t, conn, "select count(*) from outbox.namespaces where paused"); got != 4 {
		t.Errorf("%d are paused with everything, want 4", got)
	}
}

// TestNamespacesViewDue: what waits for its time is pending and not ripe; the oldest due message is found on
// any route and shard, ripe or not yet.
func TestNamespacesViewDue(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	run(t, conn, `select outbox.enqueue('due', 'q' || n % 3, 'due ' || n, '', delay => n % 2 * interval '1 h') from generate_series(1, 30) as n;
		select outbox.enqueue('later', 'q', 'later', '', delay => '1 h'), outbox.enqueue('came due', 'q', 'came due', '', delay => '1 h')`)
	at := func(key, instant string) {
		run(t, conn, `update outbox.pending as p set visible_after = $2::text::timestamptz
			where p.id = (select m.id from outbox.messages as m where m.dispatch_key = $1)`, key, instant)
	}
	at("due 18", "2026-01-01 00:00:00Z")
	at("came due", "2026-01-02 00:00:00Z")
	got := list[string](t, conn, `select format('%s %s %s %s', namespace, pending, unripe, oldest_due_at at time zone 'UTC') from outbox.namespaces order by namespace`)
	if want := []string{"came due 1 1 2026-01-02 00:00:00", "due 30 15 2026-01-01 00:00:00", "later 1 1 "}; !slices.Equal(got, want) {
		t.Errorf("got:\n%q\nwant:\n%q", got, want)
	}
}

// TestNodesView: only a heartbeat makes a live node, only leave or its lapse ends one;
// claims show beside it.
func TestNodesView(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	nodes := func() []string {
		return list[string](t, conn, `select concat_ws(' ', node, case when live then 'live' else 'not live' end, shards, paused, in_flight_bytes,
			'claimed ' || last_claimed) from outbox.nodes order by node`)
	}
	check := func(want ...string) {
		t.Helper()
		if got := nodes(); !slices.Equal(got, want) {
			t.Errorf("nodes are %q, want %q", got, want)
		}
	}
	check()
	put(t, conn, "n", "q", "k")
	claimOne(t, conn, "n1")
	check("n1 not live claimed 1")
	run(t, conn, "select outbox.heartbeat('n1', '{0,1}'), outbox.heartbeat('n2', '{}', 'high', 77)")
	check("n1 live {0,1} 0 claimed 1", "n2 live {} high 77")
	run(t, conn, "select outbox.heartbeat('n2', '{3}', null, -5)")
	check("n1 live {0,1} 0 claimed 1", "n2 live {3} 0")
	run(t, conn, "update outbox.node set heartbeat_at = heartbeat_at - interval '31 s' where node = 'n2'")
	check("n1 live {0,1} 0 claimed 1", "n2 not live {3} 0")
	run(t, conn, "select outbox.heartbeat('n3')")
	run(t, conn, "update outbox.node set heartbeat_at = heartbeat_at + interval '31 s' where node = 'n2'")
	run(t, conn, "select outbox.heartbeat('n3')")
	check("n1 live {0,1} 0 claimed 1", "n2 live {3} 0", "n3 live {2,4,5,6,7,8,9,10,11,12,13,14,15} 0")
	run(t, conn, "select outbox.leave('n3')")
	run(t, conn, "update outbox.node set heartbeat_at = heartbeat_at + interval '1 h' where node = 'n2'") // a clock was ahead
	if !one[bool](t, conn, "select outbox.leave('n1')") || one[bool](t, conn, "select outbox.leave('n1')") {
		t.Error("leave does not say whether the node was there")
	}
	check("n1 not live claimed 1", "n2 not live {3} 0")
}

// TestPauseShowsInWhy and in explain_claim for each kind of pause.
func TestPauseShowsInWhy(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	put(t, conn, "n", "q", "k")
	for _, c := range []struct{ args, want string }{
		{"'n'", `^paused by \S+ since [0-9: -]+, "why"$`},
		{"'n', 'q'", `^route 'q' is paused by \S+ since [0-9: -]+, "why"$`},
		{"null, 'q'", `^route 'q' of all is paused by \S+ since [0-9: -]+, "why"$`},
		{"everything => true", `^everything is paused by \S+ since [0-9: -]+, "why"$`},
	} {
		run(t, conn, fmt.Sprintf("select outbox.pause(%s, note => 'why')", c.args))
		for _, call := range []string{"outbox.why('k')", "outbox.explain_claim('n1', outbox.all_shards(), 10)"} {
			if !one[bool](t, conn, "select reason ~ $1 from "+call, c.want) {
				t.Errorf("paused %s, %s says %s", c.args, call, one[string](t, conn, "select reason from "+call))
			}
		}
		if got := claim(t, conn, "n1", 10); len(got) != 0 {
			t.Errorf("paused %s, and %d were claimed", c.args, len(got))
		}
		run(t, conn, "delete from outbox.pause")
	}
	claimOne(t, conn, "n1")
}
