package integration

import (
	"fmt"
	"testing"
)

// beforeHolds is the last released version that knows nothing of holds.
const beforeHolds = 8

// upgradeClaim claims as a node of the version before does, with the columns that it knows.
func upgradeClaim(t *testing.T, q querier, batch int) []modelClaimed {
	t.Helper()
	rows, err := modelClaimRows(t.Context(), q, "before", longShards(), batch, 0)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// upgradeTrip has five messages of a destination fail in a row, whatever a claim finds first.
func upgradeTrip(t *testing.T, q querier, namespace, queue string) {
	t.Helper()
	for range 5 {
		run(t, q, `select outbox.enqueue($1::text, $2::text, format('%s/%s/trip %s', $1::text, $2::text, gen_random_uuid()), '')`, namespace, queue)
	}
	var rows []modelClaimed
	for _, r := range claimOn(t, q, "trip", longShards(), 100) {
		if r.modelLane == (modelLane{namespace, queue}) && len(rows) < 5 {
			rows = append(rows, r)
		} else {
			settleAll(t, q, "release", []modelClaimed{r})
		}
	}
	for _, r := range rows {
		holdFail(t, q, "unreachable", r)
		run(t, q, `select outbox.observe('{}', '{}')`)
	}
	if got := holdState(t, q, namespace, queue); got != "held" {
		t.Fatalf("after five failures %s/%s is %s", namespace, queue, got)
	}
}

// upgradeStates makes a destination in each state that there is, and returns what is claimed of them. The half open
// one has its probe out.
func upgradeStates(t *testing.T, q querier) []modelClaimed {
	t.Helper()
	for _, queue := range []string{"failing", "held", "half", "lifted", "operator", "gone", "unread", "well"} {
		run(t, q, `select outbox.enqueue('d', $1::text, format('d/%s/%s', $1::text, n), '') from generate_series(1, 6) as n`, queue)
	}
	run(t, q, `select outbox.enqueue('s' || n, 'shared', format('s%s/shared', n), '') from generate_series(1, 6) as n;
		select outbox.set_shared('shared', true);
		select outbox.set_shared('never', false);
		select outbox.hold('d', 'operator');
		select outbox.hold(null, 'shared', '1 h', 'the gateway is down');
		select outbox.pause('p', null, null, clock_timestamp() + interval '1 h');
		select outbox.pause('over', null, null, clock_timestamp() + interval '1 h');
		update outbox.pause set until = clock_timestamp() where namespace = 'over';
		select outbox.enqueue(x, 'q', x || n, '') from unnest('{p,over}'::text[]) as x, generate_series(1, 3) as n`)
	for _, queue := range []string{"held", "half", "lifted"} {
		upgradeTrip(t, q, "d", queue)
	}
	run(t, q, `update outbox.destination set held_until = clock_timestamp() + case task_queue when 'half' then interval '-1 s' else interval '1 h' end where held_until < 'infinity'; select outbox.lift('d', 'lifted');
		select outbox.hold('d', 'well'); select outbox.lift('d', 'well'); update outbox.destination set lifted_at = clock_timestamp() - interval '1 min' where task_queue = 'well'`)
	var out, first []modelClaimed
	of := map[string]int{}
	for _, r := range claimOn(t, q, "n", longShards(), 100) {
		if of[r.Queue]++; r.Namespace == "d" && of[r.Queue] == 1 {
			first = append(first, r)
		} else {
			settleAll(t, q, "release", []modelClaimed{r})
		}
	}
	for _, r := range first {
		switch r.Queue {
		case "failing":
			holdFail(t, q, "unreachable", r)
		case "well":
			settleAll(t, q, "complete", []modelClaimed{r})
		case "gone":
			holdFail(t, q, "gone", r)
		default:
			out = append(out, r)
		}
	}
	run(t, q, `select outbox.observe('{}', '{}')`)
	for i, r := range out {
		if r.Queue == "unread" {
			holdFail(t, q, "busy", r)
			out = append(out[:i:i], out[i+1:]...)
			break
		}
	}
	want := []string{"d/failing failing", "d/gone held", "d/half held", "d/held held", "d/lifted recovering", "d/operator held", "d/well well", "*/never well", "*/shared held"}
	got := list[string](t, q, `select format('%s/%s %s', coalesce(d.namespace, '*'), d.task_queue, d.state) from outbox.destination as d order by d.namespace nulls last, d.task_queue`)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("the destinations are %q, want %q", got, want)
	}
	if n := one[int](t, q, `select count(*)::int from outbox.report`); n != 1 {
		t.Fatalf("%d reports are unread, want 1", n)
	}
	if n := one[int](t, q, `select count(*)::int from outbox.holds as h where h.state = 'probing' and h.probed_by = 'n'`); n != 1 {
		t.Fatalf("%d probes are out, want 1", n)
	}
	return out
}

// TestUpgradeDestinations: destinations in every state, unread reports and pauses with an end go away with the migration
// back, and what they held flows; a later upgrade begins anew. Claims from before each step are settled behind it, and no
// message is lost (INV-2, INV-9, INV-16).
func TestUpgradeDestinations(t *testing.T) {
	t.Parallel()
	db := emptyDatabase(t)
	migrateTo(t, db, 0, beforeHolds)
	conn := db.Connect(t)
	run(t, conn, `select outbox.enqueue('old', 'q', 'old' || n, '') from generate_series(1, 20) as n`)
	old := upgradeClaim(t, conn, 5)
	settleOld := func(rows []modelClaimed) {
		t.Helper()
		for i, how := range []string{"complete", "retry", "fail", "release", "extend"} {
			if settleAll(t, conn, how, rows[i:i+1]) != 1 {
				t.Errorf("INV-9: %s of a claim from before is lost", how)
			}
		}
	}
	total := func() int { return one[int](t, conn, `select count(*)::int from outbox.message`) }
	eachOnce := func(when string) {
		t.Helper()
		if n := one[int](t, conn, `select (select count(*) from outbox.pending) + (select count(*) from outbox.claimed) + (select count(*) from outbox.settled)`); n != total() {
			t.Errorf("INV-2: %s %d messages stand in %d places", when, total(), n)
		}
	}

	migrateTo(t, db, beforeHolds, latestVersion(t))
	settleOld(old)
	old = upgradeClaim(t, conn, 5)
	out := upgradeStates(t, conn)
	eachOnce("in all states")
	held := one[int](t, conn, `select count(*)::int from outbox.pending as p where p.task_queue in ('held', 'half', 'gone', 'operator', 'shared')`)
	if held == 0 {
		t.Fatal("nothing is held")
	}
	for _, r := range upgradeClaim(t, conn, 100) { // a node of the version before obeys the holds
		switch r.Queue {
		case "held", "half", "gone", "operator", "shared":
			t.Errorf("INV-16: a node of before claims %+v", r)
		}
		if r.Namespace == "p" {
			t.Errorf("a node of before claims %+v, which is paused", r)
		}
		settleAll(t, conn, "release", []modelClaimed{r})
	}

	migrateTo(t, db, latestVersion(t), beforeHolds)
	eachOnce("after the way back")
	settleOld(old)
	for _, r := range out {
		if settleAll(t, conn, "release", []modelClaimed{r}) != 1 {
			t.Errorf("INV-9: a claim of %q from before the way back is lost", r.Queue)
		}
	}
	run(t, conn, `update outbox.pending set visible_after = clock_timestamp() - interval '1 s' where visible_after < 'infinity'`)
	paused := one[int](t, conn, `select count(*)::int from outbox.pending as p where p.namespace = 'p'`)
	all := one[int](t, conn, `select count(*)::int from outbox.pending`)
	flows := upgradeClaim(t, conn, 1000)
	if len(flows) != all-paused || paused != 3 {
		t.Errorf("after the way back %d messages flow, of %d, of which %d are paused", len(flows), all, paused)
	}
	settleAll(t, conn, "release", flows[:len(flows)-5])

	migrateTo(t, db, beforeHolds, latestVersion(t))
	eachOnce("after the second upgrade")
	settleOld(flows[len(flows)-5:])
	if n := one[int](t, conn, `select (select count(*) from outbox.destination) + (select count(*) from outbox.report)`); n != 0 {
		t.Errorf("after the second upgrade %d destinations and reports are there", n)
	}
	upgradeTrip(t, conn, "d", "held")
	run(t, conn, `update outbox.destination set held_until = clock_timestamp() - interval '1 s'`)
	probe := holdQueue(claimOn(t, conn, "n", longShards(), 1000), "held")
	if len(probe) != 1 || settleAll(t, conn, "complete", probe) != 1 {
		t.Fatalf("%d probes", len(probe))
	}
	run(t, conn, `select outbox.observe('{}', '{}')`)
	if got := holdState(t, conn, "d", "held"); got != "recovering" {
		t.Errorf("INV-16: after the success of a probe it is %s", got)
	}
	run(t, conn, `delete from outbox.pause`)
	if rows := list[string](t, conn, `select c.guarantee || ' ' || c.subject || ': ' || c.detail from outbox.check() as c`); len(rows) > 0 {
		t.Errorf("check: %v", rows)
	}
}

// TestUpgradeBackAStep: a migration back at a time, no pause that is over holds anything, and what was not to count for a
// route of all does not count.
func TestUpgradeBackAStep(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	run(t, conn, `select outbox.enqueue('acme', 'q', 'k', ''), outbox.pause('acme', until => clock_timestamp() + interval '1 s');
		insert into outbox.report (at, kind, message_id, claim_token, namespace, task_queue, shared) select now(), 'broken', n, 1, 'ns' || n, 'q', null from generate_series(1, 400) as n`)
	await(t, conn, `select clock_timestamp() > p.until from outbox.pause as p`)
	for version := latestVersion(t); version > beforeHolds; version-- {
		migrateTo(t, db, version, version-1)
		rows := upgradeClaim(t, conn, 10)
		if len(rows) != 1 {
			t.Errorf("at version %d, %d messages are claimed of a namespace whose pause is over, want 1", version-1, len(rows))
		}
		settleAll(t, conn, "release", rows)
		if version == 17 {
			if n := one[int](t, conn, `select count(*)::int from outbox.destination as d where d.namespace is null`); n != 0 {
				t.Errorf("at version %d, reports of namespaces alone count for the route of all", version-1)
			}
		}
	}
}

// holdQueue are the rows of one route.
func holdQueue(rows []modelClaimed, queue string) []modelClaimed {
	var of []modelClaimed
	for _, r := range rows {
		if r.Queue == queue {
			of = append(of, r)
		}
	}
	return of
}
