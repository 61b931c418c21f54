package integration

import (
	"testing"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// restoredSequences is where the sequences stand.
const restoredSequences = `select string_agg(format('%s %s', s.sequencename, s.last_value), e'\n' order by s.sequencename)
	from pg_sequences as s where s.schemaname = 'outbox'`

// TestRestoreDestinations: a dump brings destinations in every state along, and the reports that nobody has read, whole or
// without the schema: what was held is held, the probe that was out lifts its hold, the reports are read by the next claim,
// and those of later settles behind them (INV-16).
func TestRestoreDestinations(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	run(t, conn, `select outbox.configure('{"lease": "1 h"}')`)
	out := upgradeStates(t, conn)
	before, sequences := one[string](t, conn, restoredContent), one[string](t, conn, restoredSequences)
	command := clientOf(one[int](t, conn, `select current_setting('server_version_num')::int / 10000`))
	if command == nil {
		t.Skip("no client programs of the server's version of PostgreSQL")
	}
	check := func(t *testing.T, target *pgtest.DB) {
		t.Helper()
		to := target.Connect(t)
		if diff := lineDiff(before, one[string](t, to, restoredContent)); diff != "" {
			t.Errorf("the content differs, dumped (-), restored (+):\n%s", diff)
		}
		if diff := lineDiff(sequences, one[string](t, to, restoredSequences)); diff != "" {
			t.Errorf("the sequences differ, dumped (-), restored (+):\n%s", diff)
		}
		for _, r := range holdQueue(out, "half") {
			settleAll(t, to, "complete", []modelClaimed{r})
		}
		rows := claimOn(t, to, "n", longShards(), 100)
		if n := one[int](t, to, `select count(*)::int from outbox.report`); n != 0 {
			t.Errorf("INV-16: %d reports are unread after a claim", n)
		}
		for queue, want := range map[string]string{"held": "held", "half": "recovering", "unread": "held", "operator": "held", "gone": "held", "failing": "failing"} {
			if got := holdState(t, to, "d", queue); got != want {
				t.Errorf("INV-16: the destination %q is %s, want %s", queue, got, want)
			}
			if n := len(holdQueue(rows, queue)); n > 0 && want == "held" || n == 0 && want != "held" {
				t.Errorf("INV-16: %d messages of %q, which is %s", n, queue, want)
			}
		}
		settleAll(t, to, "complete", rows)
		restoredProbe(t, to)
		wantSound(t, to)
	}
	for how, restore := range dataOnly {
		t.Run("data only, "+how, func(t *testing.T) {
			t.Parallel()
			target := pg.New(t)
			restore(t, command, db.DSN, target.DSN)
			check(t, target)
		})
	}
	for how, restore := range restored {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			target := pg.New(t)
			run(t, target.Pool, `drop schema outbox cascade`)
			restore(t, command, db.DSN, target.DSN)
			check(t, target)
		})
	}
	t.Run("tables without sequences", func(t *testing.T) {
		t.Parallel()
		target := pg.New(t)
		dataOnly["copy"](t, command, db.DSN, target.DSN)
		run(t, target.Pool, `select setval('outbox.claim_token', 1, false), setval('outbox.report_id_seq', 1, false)`)
		run(t, target.Pool, `delete from outbox.walk`)
		run(t, target.Pool, `delete from outbox.report`)
		to := target.Connect(t)
		settleAll(t, to, "release", out)
		// The one that has been lifted before fails again, and is lifted by a probe.
		upgradeTripLate(t, to, "lifted")
		restoredProbe(t, to)
		if got := holdState(t, to, "d", "lifted"); got != "recovering" {
			t.Errorf("INV-16: where tokens went back, it is %s after the success of a probe", got)
		}
		wantSound(t, to)
	})
}

// upgradeTripLate is upgradeTrip where nobody knows from which report on to read, but one claim in ten: of a destination that
// was lifted.
func upgradeTripLate(t *testing.T, q querier, queue string) {
	t.Helper()
	run(t, q, `update outbox.destination set lifted_at = clock_timestamp() - interval '1 h' where task_queue = $1`, queue)
	rows := holdQueue(claimOn(t, q, "n", longShards(), 1000), queue)
	for _, r := range rows[:5] {
		holdFail(t, q, "unreachable", r)
	}
	holdEventually(t, q, "a report with an id below the edge", func() bool { return holdState(t, q, "d", queue) == "held" })
	run(t, q, `select outbox.release(array_agg(c.id), array_agg(c.claim_token)) from outbox.claimed as c having count(*) > 0`)
	if n := one[int](t, q, `select count(*)::int from outbox.report_edge as e where e.last_value > 5`); n != 0 {
		t.Errorf("INV-16: the edge stands behind the ids of reports")
	}
}

// restoredProbe lets the time of all holds be over, and all probes succeed.
func restoredProbe(t *testing.T, q querier) {
	t.Helper()
	holdOver(t, q)
	rows := claimOn(t, q, "probes", longShards(), 1000)
	settleAll(t, q, "complete", rows)
	run(t, q, `select outbox.observe('{}', '{}')`)
	if held := list[string](t, q, `select d::text from outbox.destination as d where d.state = 'held' and d.held_until < 'infinity'`); len(held) > 0 {
		t.Errorf("INV-16: held after the successes of their probes: %q", held)
	}
}
