package integration

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// namespaces are those that have a series of a metric.
func (s scraped) namespaces(name string) (names []string) {
	for series := range s {
		if got, rest, _ := strings.Cut(series, "{namespace="); got == name {
			names = append(names, strings.Trim(rest, `"}`))
		}
	}
	return slices.Sorted(slices.Values(names))
}

// outboxWaits makes an outbox in which 30 tenants wait: t01 for one minute, t30 for 30, each with as many
// messages as minutes; all paused.
func outboxWaits(t *testing.T) *pgtest.DB {
	t.Helper()
	db := pg.New(t)
	for i := 1; i <= 30; i++ {
		fill(t, db.Pool, fmt.Sprintf("t%02d", i), "q", i, 10)
	}
	run(t, db.Pool, `update outbox.pending set visible_after = now() - substr(namespace, 2)::int * interval '1 min'`)
	run(t, db.Pool, `select outbox.pause(everything => true)`)
	return db
}

// The node that owns shard 0, and no other, shows the outbox as it is: all messages, the ten tenants that have
// waited longest, the one that it was told to name, and the sums of the others. When tenants leave, so do
// their series; when the node drains, another one shows them.
func TestMetricsOfTheOutbox(t *testing.T) {
	t.Parallel()
	db := outboxWaits(t)
	run(t, db.Pool, `select outbox.enqueue('later', 'q', 'later ' || n, '', delay => '1 day') from generate_series(1, 5) as n`)
	run(t, db.Pool, `select outbox.set_quota('t30', 7)`)
	args := []string{"--sink", "stdout", "--survey-every", "200ms", "--metrics-namespace", "t03", "--metrics-namespace", "nobody"}
	first := monitor(t, db.DSN, append(args, "--node", "first", "--shards", "0-7")...)
	second := monitor(t, db.DSN, append(args, "--node", "second", "--shards", "8-15")...)

	const due = "fairclaim_namespace_due_messages"
	shown := func(m *monitored, what string, want func(s scraped) bool) (s scraped) {
		t.Helper()
		eventually(t, what, func() bool { s, _ = m.scrape(t); return want(s) })
		return s
	}
	s := shown(first, "both nodes are known", func(s scraped) bool {
		return s["fairclaim_outbox_shards"] == 16 && s["fairclaim_outbox_unowned_shards"] == 0
	})
	want := []string{"_other", "nobody", "t03", "t21", "t22", "t23", "t24", "t25", "t26", "t27", "t28", "t29", "t30"}
	if got := s.namespaces(due); !slices.Equal(got, want) {
		t.Errorf("it shows %v, want %v", got, want)
	}
	for series, want := range map[string]float64{
		"fairclaim_outbox_due_messages": 465, "fairclaim_outbox_unripe_messages": 5, "fairclaim_outbox_claimed_messages": 0,
		"fairclaim_outbox_pauses": 1, "fairclaim_outbox_waiting_namespaces": 31, "fairclaim_outbox_violations": 0,
		due + `{namespace="t30"}`: 30, due + `{namespace="t03"}`: 3, due + `{namespace="nobody"}`: 0,
		due + `{namespace="_other"}`:                                     20*21/2 - 3,
		`fairclaim_namespace_unripe_messages{namespace="_other"}`:        5,
		`fairclaim_namespace_quota_messages{namespace="t30"}`:            7,
		`fairclaim_namespace_paused{namespace="t30"}`:                    1,
		`fairclaim_outbox_destinations{state="held"}`:                    0,
		`fairclaim_namespace_oldest_due_age_seconds{namespace="nobody"}`: 0,
	} {
		if got, ok := s[series]; !ok || got != want {
			t.Errorf("%s is %v, want %v", series, got, want)
		}
	}
	for series, minutes := range map[string]float64{
		`fairclaim_outbox_oldest_due_age_seconds{paused="true"}`: 30, `fairclaim_namespace_oldest_due_age_seconds{namespace="t21"}`: 21,
		`fairclaim_namespace_oldest_due_age_seconds{namespace="_other"}`: 20,
	} {
		if got := s[series]; got < 60*minutes || got > 60*minutes+patience().Seconds() {
			t.Errorf("%s is %v, want about %v", series, got, 60*minutes)
		}
	}
	if s, _ := second.scrape(t); s.sum("fairclaim_outbox_shards") != 0 || len(s.namespaces(due)) > 0 {
		t.Errorf("a node without shard 0 shows %v", slices.Sorted(maps.Keys(s)))
	}

	run(t, db.Pool, "select outbox.cancel_namespace('t30')")
	s = shown(first, "t30 has left", func(s scraped) bool { return !slices.Contains(s.namespaces(due), "t30") })
	if got := s.namespaces(due); !slices.Contains(got, "t20") || len(got) != len(want) {
		t.Errorf("after t30 has left it shows %v", got)
	}
	first.signal(t, syscall.SIGTERM)
	<-first.done
	third := monitor(t, db.DSN, append(args, "--node", "third", "--metrics-tenants", "0", "--check-every", "0")...)
	s = shown(third, "the next one shows the outbox", func(s scraped) bool { return s["fairclaim_outbox_shards"] == 16 })
	if got := s.namespaces(due); !slices.Equal(got, []string{"_other", "nobody", "t03"}) {
		t.Errorf("told to show no tenants but two, it shows %v", got)
	}
	if _, ok := s["fairclaim_outbox_violations"]; ok {
		t.Error("told to make no audits, it shows one")
	}
	run(t, db.Pool, "select outbox.resume(null)")
	shown(third, "all is delivered", func(s scraped) bool {
		return s["fairclaim_outbox_due_messages"] == 0 && s.sum("fairclaim_outbox_oldest_due_age_seconds") == 0 && s["fairclaim_outbox_waiting_namespaces"] == 1
	})
}

// What waits for a destination that is held is told apart, and does not hide who else waits; so is a route of all.
func TestMetricsOfWhatIsHeld(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	for i := 1; i <= 30; i++ {
		fill(t, db.Pool, fmt.Sprintf("t%02d", i), "dead", 1, 10)
	}
	fill(t, db.Pool, "mixed", "dead", 1, 10)
	put(t, db.Pool, "mixed", "well", "mixed/well")
	run(t, db.Pool, `update outbox.pending set visible_after = now() - case when task_queue = 'dead' then interval '1 h' else interval '5 min' end`)
	run(t, db.Pool, `select outbox.hold(n, 'dead') from (select distinct namespace from outbox.pending) as p(n)`)
	run(t, db.Pool, `select outbox.pause('mixed', 'well')`) // so that nobody takes it
	n := monitor(t, db.DSN, "--sink", "stdout", "--survey-every", "200ms", "--metrics-tenants", "1")
	var s scraped
	until := func(what string, done func() bool) {
		t.Helper()
		eventually(t, what, func() bool { s, _ = n.scrape(t); return done() })
	}
	until("it surveys", func() bool { return s["fairclaim_outbox_waiting_namespaces"] == 31 })
	for series, minutes := range map[string]float64{
		`fairclaim_outbox_oldest_due_age_seconds{paused="false"}`: 5, "fairclaim_outbox_oldest_held_age_seconds": 60,
		`fairclaim_namespace_oldest_due_age_seconds{namespace="mixed"}`: 60,
	} {
		if got := s[series]; got < 60*minutes || got > 60*minutes+patience().Seconds() {
			t.Errorf("%s is %v, want about %v", series, got, 60*minutes)
		}
	}
	if held, all := s[`fairclaim_outbox_destinations{state="held"}`], s["fairclaim_outbox_held_routes_of_all"]; held != 31 || all != 0 {
		t.Errorf("%v are held, %v of them routes of all", held, all)
	}
	run(t, db.Pool, `select outbox.hold(null, 'dead')`)
	until("the route of all is held", func() bool { return s["fairclaim_outbox_held_routes_of_all"] == 1 })
}

// A role from before an upgrade has no right to survey: the log says what to do, the node works, and is ready.
func TestSurveyWithoutRights(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	role := db.Role(t)
	run(t, db.Pool, "select outbox.grant_worker($1)", role.Name)
	run(t, db.Pool, "revoke execute on function outbox.survey, outbox.check from "+role.Name)
	put(t, db.Pool, "n", "q", "k")
	m := monitor(t, role.DSN, "--sink", "stdout", "--survey-every", "100ms")
	await(t, db.Pool, "select count(*) = 1 from outbox.settled")
	eventually(t, "the log says so", func() bool { return strings.Contains(m.log.String(), "call outbox.grant_worker for this role again") })
	m.answers(t, "/readyz", 200, "ready")
	s, _ := m.scrape(t)
	if s[`fairclaim_call_failures_total{call="survey"}`] < 1 || s[`fairclaim_call_failures_total{call="check"}`] != 1 || s.sum("fairclaim_outbox_shards") != 0 {
		t.Errorf("it shows %v", s)
	}
	run(t, db.Pool, "select outbox.grant_worker($1)", role.Name)
	eventually(t, "it surveys", func() bool { s, _ = m.scrape(t); return s["fairclaim_outbox_shards"] == 16 })
}
