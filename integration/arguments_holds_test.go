package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// The calls about destinations, and pauses that end, refuse what they cannot use: they name the argument, say what to do, and
// change nothing.
func TestHoldsRefuse(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	put(t, conn, "n", "q", "k")
	row := claimOne(t, conn, "n1")
	long, megabyte := strings.Repeat("x", 513), strings.Repeat("x", 1<<20)
	type refused struct {
		call string
		args []any
		want []string // the argument, and a part of what to do
	}
	calls := []refused{
		{"hold(null, null)", nil, []string{"task_queue is null", "pause()"}},
		{"lift(null, null)", nil, []string{"task_queue is null", "pause()"}},
		{"set_shared(null, true)", nil, []string{"task_queue is null", "Name a route"}},
		{"observe(null, '{q}')", nil, []string{"namespaces is null", "Give"}},
		{"observe('{n}', null)", nil, []string{"task_queues", "Give one for each namespace"}},
		{"observe('{n,m}', '{q}')", nil, []string{"task_queues", "Give one for each namespace"}},
		{"observe('{n}', '{null}')", nil, []string{"task_queues has a null", "Name"}},
		{"hold_events(null)", nil, []string{"max", "Give"}},
		{"hold_events(0)", nil, []string{"max", "Give"}},
		{"hold_events(-1)", nil, []string{"max", "Give"}},
		{"hold_events(10001)", nil, []string{"max", "Give"}},
	}
	for _, name := range []string{"", long, megabyte} {
		for _, call := range []string{"hold($1, 'q')", "lift($1, 'q')", "pause($1, until => clock_timestamp() + interval '1 h')"} {
			calls = append(calls, refused{call, []any{name}, []string{"namespace has ", "Give 1 to 512 bytes"}})
		}
		for _, call := range []string{"hold('n', $1)", "hold(null, $1)", "lift('n', $1)", "lift(null, $1)", "set_shared($1, true)", "set_shared($1, null)", "pause('n', $1)"} {
			calls = append(calls, refused{call, []any{name}, []string{"task_queue has ", "Give 1 to 512 bytes"}})
		}
	}
	for _, span := range []string{"0", "-1 s", lessThanNone, "-178000000 years", "367 days", "13 months", "178000000 years"} {
		calls = append(calls, refused{"hold('n', 'q', $1::text::interval)", []any{span}, []string{"duration is ", "up to a year, or null"}})
	}
	for _, at := range []string{"-infinity", "infinity", "2000-01-01", "9999-12-31"} {
		calls = append(calls, refused{"pause('n', until => $1::text::timestamptz)", []any{at}, []string{"until is ", "until"}})
	}
	for _, more := range []struct{ args, argument, todo string }{
		{"null, '{1}', '{gone}'", "ids is null", "Give the ids"},
		{"'{1}', null, '{gone}'", "tokens is null", "Give the claim_token"},
		{"'{1,2}', '{1}', '{gone,gone}'", "tokens has 1 elements, ids has 2", "same order"},
		{"'{1}', '{1}', null", "kinds is null", "Give one for each id: unreachable"},
		{"'{1}', '{1}', '{gone,gone}'", "kinds has another length", "Give one for each id"},
		{"'{1}', '{1}', '{}'", "kinds has another length", "Give one for each id"},
		{"'{1,2}', '{1,2}', '{{gone},{gone},{gone}}'", "kinds has another length", "Give one for each id"},
		{"'{1}', '{1}', '{null}'", "kinds has an unknown element", "Give unreachable, broken, busy or gone"},
		{"'{1}', '{1}', '{up}'", "kinds has an unknown element", "Give unreachable, broken, busy or gone"},
		{"'{1}', '{1}', '{GONE}'", "kinds has an unknown element", "Give unreachable, broken, busy or gone"},
		{"'{1}', '{1}', array[repeat('x', 1048576)]", "kinds has an unknown element", "Give unreachable, broken, busy or gone"},
		{"'{1}', '{1}', '{gone}', '{}'", "errors has another length", "or null"},
		{"'{1}', '{1}', '{gone}', '{a,b}'", "errors has another length", "or null"},
		{"'{1}', '{1}', '{busy}', null, '{1 s,2 s}'", "holds has another length", "or null"},
		{"'{1}', '{1}', '{busy}', null, null, '{true,false}'", "shared has another length", "or null"},
	} {
		calls = append(calls, refused{"fail_destination(" + more.args + ")", nil, []string{more.argument, more.todo}})
	}
	before := one[string](t, conn, "select outbox.settings()::text")
	for _, c := range calls {
		name, _, _ := strings.Cut(c.call, "(")
		_, err := conn.Exec(t.Context(), "select outbox."+c.call, c.args...)
		wantError(t, err, "OB001", append([]string{"outbox." + name + ": "}, c.want...)...)
		if err != nil && len(err.Error()) > 1000 {
			t.Errorf("%.100s: the error has %d bytes", c.call, len(err.Error()))
		}
	}
	for _, settings := range []string{
		`"hold_after": 0`, `"hold_after": -1`, `"hold_after": 101`, `"hold_after": 2147483648`, `"hold_after": 1.5`, `"hold_after": "NaN"`, `"hold_after": null`, `"hold_after": ""`,
		`"hold_base": "0"`, `"hold_base": "-1 s"`, `"hold_base": "99 ms"`, `"hold_base": "2 h"`, `"hold_base": "178000000 years"`, `"hold_base": null`, `"hold_base": "infinity"`, `"hold_base": "NaN"`, `"hold_base": "11 min"`,
		`"hold_cap": "1 s"`, `"hold_cap": "25 h"`, `"hold_cap": "6 days"`, `"hold_cap": null`, `"hold_cap": ""`,
		`"hold_give_up": "5 min"`, `"hold_give_up": "2 years"`, `"hold_give_up": "-infinity"`, `"hold_give_up": null`,
	} {
		_, err := conn.Exec(t.Context(), "select outbox.configure($1)", "{"+settings+"}")
		wantError(t, err, "OB001", "settings", "What it takes: ", strings.Split(settings, `"`)[1])
	}
	if after := one[string](t, conn, "select outbox.settings()::text"); after != before {
		t.Errorf("settings were %s, are %s", before, after)
	}
	if n := one[int](t, conn, "select (select count(*) from outbox.destination) + (select count(*) from outbox.report) + (select count(*) from outbox.pause) + (select count(*) from outbox.hold_event)"); n != 0 {
		t.Errorf("what was refused has left %d rows", n)
	}
	if !settle(t, conn, "complete", row.ID, row.Token) {
		t.Error("what was refused has settled a message")
	}
}

// What settles report of destinations comes from outside: whatever spans, texts and arrays a worker gives, claims can
// read it, and go on.
func TestHostileReports(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	run(t, conn, `select outbox.configure('{"retry_base": "1 ms", "retry_cap": "1 ms", "hold_base": "1 min"}')`)
	claimed := func() claimRow {
		t.Helper()
		rows := claim(t, conn, "n1", 10)
		if len(rows) != 1 {
			t.Fatalf("claimed %d, want 1", len(rows))
		}
		return rows[0]
	}
	// Holds that are asked for: at least a step, at most an hour.
	for i, c := range []struct {
		hold        any
		least, most time.Duration
	}{
		{nil, 48 * time.Second, 72 * time.Second},
		{"0", 48 * time.Second, 72 * time.Second},
		{"-1 h", 48 * time.Second, 72 * time.Second},
		{lessThanNone, 48 * time.Second, 72 * time.Second},
		{"-178000000 years", 48 * time.Second, 72 * time.Second},
		{"30 min", 30 * time.Minute, 30 * time.Minute},
		{"178000000 years", time.Hour, time.Hour},
		{"2147483647 days", time.Hour, time.Hour},
	} {
		queue := fmt.Sprint("q", i)
		put(t, conn, "n", queue, queue)
		row := claimed()
		before := one[time.Time](t, conn, "select clock_timestamp()")
		if n := one[int](t, conn, "select count(*) from outbox.fail_destination(array[$1::bigint], array[$2::bigint], '{busy}', '{x}', array[$3::text::interval])", row.ID, row.Token, c.hold); n != 1 {
			t.Fatalf("%v: settled %d", c.hold, n)
		}
		if rows := claim(t, conn, "n1", 10); len(rows) != 0 { // which folds the report
			t.Errorf("%v: claimed %+v of what is held", c.hold, rows)
		}
		after := one[time.Time](t, conn, "select clock_timestamp()")
		until := one[time.Time](t, conn, "select d.held_until from outbox.destination as d where d.task_queue = $1", queue)
		if until.Before(before.Add(c.least)) || until.After(after.Add(c.most)) {
			t.Errorf("asked to hold for %v: it is until %v after", c.hold, until.Sub(before))
		}
	}
	// Texts: cut, and shown as they are.
	text := "line\nfeed \x1b[31m'\"\\%s$1{}"
	put(t, conn, "texts", "q", "texts")
	row := claimed()
	run(t, conn, "select outbox.fail_destination(array[$1::bigint], array[$2::bigint], '{gone}', array[$3::text])", row.ID, row.Token, text+strings.Repeat("ä", 1<<20))
	claim(t, conn, "n1", 10)
	if reason := one[string](t, conn, "select reason from outbox.holds where namespace = 'texts'"); !strings.HasPrefix(reason, text) || len(reason) > 2000 {
		t.Errorf("the reason has %d bytes: %.100q", len(reason), reason)
	}
	if why := one[string](t, conn, "select reason from outbox.why('texts')"); !strings.Contains(why, text) || len(why) > 2000 {
		t.Errorf("why says, in %d bytes, %.200q", len(why), why)
	}
	if got := one[string](t, conn, "select e.reason from outbox.hold_events() as e where e.namespace = 'texts' limit 1"); !strings.HasPrefix(got, text) || len(got) > 2000 {
		t.Errorf("the event has %d bytes: %.100q", len(got), got)
	}
	// An operator's reason too.
	run(t, conn, "select outbox.hold('operator', 'q', null, $1)", text+strings.Repeat("ä", 1<<20))
	if reason := one[string](t, conn, "select reason from outbox.holds where namespace = 'operator'"); !strings.HasPrefix(reason, text) || len(reason) > 2000 {
		t.Errorf("the operator's reason has %d bytes: %.100q", len(reason), reason)
	}
	// Twice in one call, by two kinds: it is settled once, and reported once.
	put(t, conn, "twice", "q", "twice")
	row = claimed()
	if n := one[int](t, conn, "select count(*) from outbox.fail_destination(array[$1, $1, $1]::bigint[], array[$2, $2, 7]::bigint[], '{unreachable,broken,gone}')", row.ID, row.Token); n != 1 {
		t.Errorf("a message given twice is settled %d times", n)
	}
	if n := one[int](t, conn, "select count(*) from outbox.report where namespace = 'twice'"); n != 1 {
		t.Errorf("a message given twice is reported %d times", n)
	}
	run(t, conn, "select outbox.cancel('{twice}')")
	// Nulls, arrays of more dimensions, and ids that nobody has.
	for i, args := range []string{
		"'{null}', '{null}', '{gone}'", "array[$1::bigint], '{null}', '{gone}'", "'{null}', array[$2::bigint], '{gone}'",
		"'{9223372036854775807,-1}', '{-9223372036854775808,0}', '{gone,busy}'", "'{}', '{}', '{}', '{}', '{}', '{}'",
	} {
		if n := one[int](t, conn, "select count(*) from outbox.fail_destination("+args+") where $1::bigint > 0 and $2::bigint > 0", row.ID, row.Token); n != 0 {
			t.Errorf("call %d settled %d", i, n)
		}
	}
	put(t, conn, "deep", "q", "deep")
	row = claimed()
	if n := one[int](t, conn, "select count(*) from outbox.fail_destination(array[[$1::bigint], [0]], array[[$2::bigint, 0]], '{{{gone}},{{busy}}}', '{{null},{null}}', '{{null,null}}', '{{null},{true}}')", row.ID, row.Token); n != 1 {
		t.Errorf("of arrays of more dimensions %d were settled", n)
	}
	if got := list[string](t, conn, "select o.state from outbox.observe('{{deep,n},{null,nobody}}', '{q,q0,q,q}') as o order by o.n"); !slices.Equal(got, []string{"held", "held", "well", "well"}) {
		t.Errorf("observe says %q", got)
	}
	if got := list[string](t, conn, "select o.state from outbox.observe(array_fill('deep'::text, array[20000]), array_fill('q'::text, array[20000])) as o where o.state <> 'held'"); len(got) != 0 {
		t.Errorf("observe says %q of a destination that is asked for 20,000 times", got[:1])
	}
	// Others are served.
	put(t, conn, "other", "q0", "other")
	if row := claimed(); row.Namespace != "other" {
		t.Errorf("claimed %+v", row)
	}
	for _, line := range list[string](t, conn, "select c::text from outbox.check() as c where c.guarantee <> 'advice'") {
		t.Error(line)
	}
}

// everyHold takes a namespace and a task queue through the calls about destinations. A message waits there, and
// nothing else of the namespace.
func everyHold(t *testing.T, owner querier, conn *pgx.Conn, namespace, queue, key string) {
	t.Helper()
	check := func(what string, ok bool) {
		t.Helper()
		if !ok {
			t.Errorf("namespace %.40q: %s", namespace, what)
		}
	}
	committed := func(sql string, args ...any) (text string) {
		t.Helper()
		tx := begin(t, conn)
		text = one[string](t, tx, sql, args...)
		commit(t, tx)
		return text
	}
	claimed := func(payloads bool) []claimRow {
		t.Helper()
		tx := begin(t, conn)
		rows, _ := tx.Query(t.Context(), "select "+claimColumns+" from outbox.claim_fair($1, outbox.all_shards(), 10, payloads => $2)", namespace, payloads)
		got, err := pgx.CollectRows(rows, pgx.RowToStructByName[claimRow])
		if err != nil {
			t.Fatalf("claim: %v", err)
		}
		commit(t, tx)
		return got
	}
	state := func(of any) string {
		t.Helper()
		return committed("select o.state from outbox.observe(array[$1::text], array[$2]) as o", of, queue)
	}
	for _, of := range []any{namespace, nil} {
		committed("select outbox.hold($1, $2, '1 h', $3)::text", of, queue, namespace)
		check("state is "+state(of), state(of) == "held")
		check("claimed what is held", len(claimed(true)) == 0)
		why := one[string](t, conn, "select reason from outbox.why($1)", key)
		check("why is "+why, strings.Contains(why, "is held until ") && strings.Contains(why, fmt.Sprintf(`, "%.200s"`, namespace)))
		check("route_state", one[bool](t, conn, "select r.due = 1 and r.reason like '%is held until %' and r.oldest_key = $3 from outbox.route_state($1) as r where r.task_queue = $2", namespace, queue, key))
		check("hold_reasons", one[bool](t, conn, "select r.namespace = $1 and r.reason like '%is held until %' from outbox.hold_reasons(array[$1]) as r", namespace))
		check("holds", one[int](t, conn, "select count(*) from outbox.holds as h where h.task_queue = $2 and h.namespace is not distinct from $1::text and h.reason = left($3, 1000)", of, queue, namespace) == 1)
		check("lift", committed("select outbox.lift($1, $2)::text", of, queue) == "true")
		events := one[[]string](t, conn, "select array_agg(e.event order by e.id) from outbox.hold_events() as e where e.namespace is not distinct from $1::text and e.task_queue = $2 and e.reason = left($3, 1000)", of, queue, namespace)
		check(fmt.Sprint("events are ", events), slices.Equal(events, []string{"held", "lifted"}))
		check("state is "+state(of), state(of) == "recovering")
	}
	run(t, owner, "delete from outbox.destination where namespace is null") // or its flow would grow for ten seconds
	committed("select outbox.set_shared($1, true)::text", queue)
	committed("select outbox.set_shared($1, null)::text", queue)
	check("message_headers", one[int](t, conn, "select count(*) from outbox.message_headers($1)", key) == 1)
	rows := claimed(false)
	if len(rows) != 1 {
		t.Errorf("namespace %.40q: claimed %d after the lift, want 1", namespace, len(rows))
		return
	}
	row := rows[0]
	check("payloads", one[int](t, conn, "select count(*) from outbox.payloads(array[$1::bigint], array[$2::bigint])", row.ID, row.Token) == 1)
	run(t, conn, "select outbox.begin_delivery(array[$1::bigint], array[$2::bigint], 1)", row.ID, row.Token)
	check("known_namespaces", one[int](t, conn, "select count(*) from outbox.known_namespaces(null, 1000) as k(name) where k.name = $1", namespace) == 1)
	check("release", settle(t, conn, "release", row.ID, row.Token))
	if rows = claimed(true); len(rows) != 1 {
		t.Errorf("namespace %.40q: claimed %d after the release, want 1", namespace, len(rows))
		return
	}
	row = rows[0]
	check("fail_destination", one[int](t, conn, "select count(*) from outbox.fail_destination(array[$1::bigint], array[$2::bigint], '{gone}', array[$3])", row.ID, row.Token, namespace) == 1)
	check("state is "+state(namespace), state(namespace) == "held")
	check("lift", committed("select outbox.lift($1, $2)::text", namespace, queue) == "true")
	check("pause until", one[bool](t, conn, "select outbox.pause($1, $2, $1, clock_timestamp() + interval '1 h')", namespace, queue))
	check("next_at of a pause that ends", one[bool](t, conn, "select w.next_at = p.until from outbox.why($1) as w cross join outbox.pauses as p where p.namespace = $2 and p.task_queue = $3", key, namespace, queue))
	check("resume", one[bool](t, conn, "select outbox.resume($1, $2)", namespace, queue))
	run(t, owner, "delete from outbox.destination")
}
