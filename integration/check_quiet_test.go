package integration

import (
	"fmt"
	"testing"
)

// TestCheckIsQuiet: what may rightly be is no violation: more claimed than a quota that was
// lowered, cleared or made strict since, or than one node could have while shards moved;
// leases that have just expired, or that no live node could rescue (INV-4).
func TestCheckIsQuiet(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	wantSound(t, conn) // an outbox that nobody has used
	for _, step := range []string{
		longBacklog(6, 2, 50, 10),
		"select outbox.set_quota('ns1', 60), outbox.set_quota('ns2', 60), outbox.set_quota('ns3', 60), outbox.set_quota('ns4', 60)",
		"select outbox.claim_fair('node', outbox.all_shards(), 300)",
		"select outbox.set_quota('ns1', 5)",
		"select outbox.set_quota('ns1', 0)", // twice: the larger one counts
		"select outbox.set_quota('ns2', 60, true)",
		"select outbox.set_quota('ns3', null, true), outbox.set_quota('ns3', 2)",
		`select outbox.configure('{"default_quota": 20}')`,
		"select outbox.clear_quota('ns4')",
		`select outbox.configure('{"default_quota": 1}')`,
		"select outbox.enqueue('ns1', 'q', 'late', '')",
		"select outbox.claim_fair('other', outbox.all_shards(), 300)",
		"update outbox.claimed set lease_until = clock_timestamp() - interval '2 h'",
		"select outbox.heartbeat('node', '{0}'); update outbox.claimed set lease_until = clock_timestamp() - interval '59 min'",
		"select outbox.cancel_namespace('ns1'), outbox.redrive(array(select s.id from outbox.settled as s limit 20))",
		"select outbox.rescue(1000)",
		"select outbox.prune('0', 1000)",
		"select outbox.leave('node')",
	} {
		execScript(t, conn, step)
		wantSound(t, conn)
	}
}

// TestCheckMovingShards: claims on ever smaller sets of shards, all of a namespace's backlog
// on the shards that go next, bring it far above its quota, each within its ceiling (INV-4).
func TestCheckMovingShards(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	run(t, conn, "select outbox.set_quota('n', 16)")
	run(t, conn, "delete from outbox.former_quota")
	for first := range 16 {
		run(t, conn, `select outbox.enqueue('n', 'q', x.key, '') from (
			select $1::int || '.' || i as key from generate_series(1, 2000) as i) as x where outbox.shard_of(x.key, 16) = $1::int limit 20`, first)
		run(t, conn, "select outbox.claim_fair($1, array(select generate_series($2::int, 15)), 100)", fmt.Sprint("node", first), first)
		run(t, conn, "select outbox.cancel(array(select m.dispatch_key from outbox.messages as m where m.status = 'pending'))")
		wantSound(t, conn)
	}
	if n := one[int](t, conn, "select count(*) from outbox.claimed"); n < 3*16 {
		t.Errorf("only %d claimed: this shows nothing", n)
	}
}

// TestCheckArguments: what is left out, and what is refused.
func TestCheckArguments(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	execScript(t, conn, longBacklog(1, 1, 300, 1)+"delete from outbox.pending where id <= 250")
	if n := one[int](t, conn, "select count(*) from outbox.check(null, 1000)"); n != 250 {
		t.Errorf("%d violations, want 250", n)
	}
	got := list[string](t, conn, "select c.subject || ' ' || c.detail from outbox.check(max => 10) as c")
	if len(got) != 11 || got[10] != "... 240 more like this" {
		t.Errorf("with a max of 10: %q", got)
	}
	if n := one[int](t, conn, "select count(*) from outbox.check(50)"); n != 0 {
		t.Errorf("%d violations among the newest 50, want none", n)
	}
	if n := one[int](t, conn, "select count(*) from outbox.check(60)"); n != 10 {
		t.Errorf("%d violations among the newest 60, want 10", n)
	}
	if n := one[int](t, conn, "select count(*) from outbox.check(9223372036854775807, 2147483647)"); n != 250 {
		t.Errorf("%d violations, want 250", n)
	}
	for _, c := range []struct{ args, argument string }{{"0", "newest"}, {"-1", "newest"}, {"null, 0", "max"}, {"null, null", "max"}} {
		_, err := conn.Exec(t.Context(), "select outbox.check("+c.args+")")
		wantError(t, err, "OB001", "outbox.check: "+c.argument)
	}
}

// TestFormerQuotas: those long gone are forgotten.
func TestFormerQuotas(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	for _, step := range []struct {
		sql  string
		want int // former quotas
	}{
		{"select outbox.set_quota('n', 300)", 0},
		{"select outbox.set_quota('n', 200)", 1},
		{"select outbox.set_quota('n', 200, false)", 1},
		{"select outbox.set_quota('n', 200, true)", 2},
		{"select outbox.set_quota('n', 250)", 2},
		{`select outbox.configure('{"lease": "5 s"}')`, 2},
		{`select outbox.configure('{"default_quota": 100}')`, 3},
		{"select outbox.clear_quota('n')", 4},
		{"select outbox.set_quota('m', 90)", 5},
		{"select outbox.prune()", 5},
		{"update outbox.former_quota set until = now() - interval '31 days' where quota > 200", 5},
		{"select outbox.prune()", 1},
	} {
		run(t, conn, step.sql)
		if n := one[int](t, conn, "select count(*) from outbox.former_quota"); n != step.want {
			t.Errorf("%d former quotas after %s, want %d", n, step.sql, step.want)
		}
	}
}
