package integration

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// The status shows what is there, in a form for people and one for programs, and to
// an operator too.
func TestCLIStatus(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	empty := sweep(t, db.DSN, "status")
	for _, want := range []string{"No namespace has messages", "No node has claimed", "Nothing is paused", "expired leases: none"} {
		if !strings.Contains(empty, want) {
			t.Errorf("an empty outbox lacks %q:\n%s", want, empty)
		}
	}
	putMany(t, db, "big", 1200)
	put(t, db.Pool, "small\x1b", "q", "s1")
	put(t, db.Pool, "字幕", "q", "s2")
	run(t, db.Pool, `select outbox.set_quota('big', 1, true), outbox.heartbeat('n1', '{0,1,2,5}', null, 77)`)
	claim(t, db.Pool, "n1", 10)
	run(t, db.Pool, `update outbox.pending as p set visible_after = '-infinity' from outbox.message as m where m.id = p.id and m.dispatch_key = 'k1100'`)
	run(t, db.Pool, `update outbox.claimed set lease_until = clock_timestamp() - interval '1 s'`)
	pinned := begin(t, db.Connect(t, pgtest.Param("application_name", "forgotten")))
	run(t, pinned, `select txid_current()`)

	role := db.Role(t)
	run(t, db.Pool, `select outbox.grant_operator($1)`, role.Name)
	for _, dsn := range []string{db.DSN, role.DSN} {
		got := sweep(t, dsn, "status")
		for _, want := range []string{
			"big        1000+    0        always      1        1 strict  0       at its quota\n", `small\x1b`, "字幕",
			"n1    live   0-2,5   77 bytes", "expired leases: 3;", "forgotten, " + db.Owner,
		} {
			if !strings.Contains(got, want) {
				t.Errorf("status lacks %q:\n%s", want, got)
			}
		}
		if strings.Contains(got, "\x1b") {
			t.Error("status prints a control character")
		}
		first := sweep(t, dsn, "status", "--top", "1", "--scan", "2")
		if !strings.Contains(first, "The 1 with the longest wait of the first 2 by name; there are more") || strings.Contains(first, "small") {
			t.Errorf("--top, --scan:\n%s", first)
		}
	}
	type status struct {
		Namespaces []struct {
			Namespace                string
			Pending, Claimed, Failed int
			Strict, Paused           bool
		}
		Scanned       int  `json:"namespaces_scanned"`
		More          bool `json:"more_namespaces"`
		Nodes, Pauses []json.RawMessage
		Expired       int `json:"expired_leases"`
		Horizon       []struct{ Kind, Name, Who string }
	}
	s := fromJSON[status](t, sweep(t, db.DSN, "status", "--json"))
	if len(s.Namespaces) != 3 || s.Namespaces[0].Pending != 1000 || s.Namespaces[1].Namespace != "small\x1b" || s.Scanned != 3 || s.More ||
		len(s.Nodes) != 1 || s.Pauses == nil || s.Expired != 3 || len(s.Horizon) == 0 {
		t.Errorf("%+v", s)
	}
}

// The status tells how long the oldest due message of each namespace has waited, and how many wait for
// their time; the longest wait comes first, or the largest backlog.
func TestCLIStatusWaits(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	putMany(t, db, "many", 20)
	run(t, db.Pool, `select outbox.enqueue(n, 'q', n || i, '', delay => '1 h') from unnest(array['later', 'mixed']) as n, generate_series(1, 3) as i`)
	for _, namespace := range []string{"always", "late", "mixed"} {
		put(t, db.Pool, namespace, "q", namespace)
	}
	run(t, db.Pool, `update outbox.pending as p set visible_after = x.due
		from (values ('always', '-infinity'::timestamptz), ('late', clock_timestamp() - interval '3 h'), ('mixed', clock_timestamp() - interval '2 d')) as x(key, due)
		join outbox.message as m on m.dispatch_key = x.key where p.id = m.id`)

	type row struct {
		Namespace       string
		Pending, Unripe int
		OldestDueAt     *string  `json:"oldest_due_at"`
		Waited          *float64 `json:"waited_seconds"`
	}
	rows := func(args ...string) (rows []row, order string) {
		t.Helper()
		s := fromJSON[struct{ Namespaces []row }](t, sweep(t, db.DSN, append([]string{"status", "--json"}, args...)...))
		for _, r := range s.Namespaces {
			order += r.Namespace + " "
		}
		return s.Namespaces, order
	}
	got, order := rows()
	if order != "always mixed late many later " {
		t.Fatalf("the order is %s: %+v", order, got)
	}
	for i, want := range []struct {
		pending, unripe int
		least, most     float64 // of the seconds; most 0: nothing is due
	}{
		{1, 0, 6e10, 7e10}, {4, 3, 2 * 86400, 3 * 86400}, {1, 0, 3 * 3600, 4 * 3600}, {20, 0, 0, 3600}, {3, 3, 0, 0},
	} {
		r := got[i]
		if r.Pending != want.pending || r.Unripe != want.unripe || (r.Waited == nil) != (want.most == 0) || (r.OldestDueAt == nil) != (want.most == 0) ||
			r.Waited != nil && (*r.Waited < want.least || *r.Waited > want.most) {
			t.Errorf("%s is %+v, waited %v, want %+v", r.Namespace, r, r.Waited, want)
		}
	}
	due := one[string](t, db.Pool, `select to_json(p.visible_after at time zone 'UTC')::text from outbox.pending as p where p.namespace = 'late'`)
	if at := *got[2].OldestDueAt; at != strings.Trim(due, `"`)+"Z" || *got[0].OldestDueAt != "0001-01-01T00:00:00Z" {
		t.Errorf("late is due since %s, want %s; always since %s", at, due, *got[0].OldestDueAt)
	}
	if _, order := rows("--sort", "backlog", "--top", "3"); order != "many mixed later " {
		t.Errorf("by backlog: %s", order)
	}
	text := sweep(t, db.DSN, "status")
	for _, want := range []string{
		"NAMESPACE  PENDING  NOT DUE  OLDEST DUE", "\nalways     1        0        always       ", "\nmixed      4        3        48h", "\nlater      3        3                     ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("status lacks %q:\n%s", want, text)
		}
	}
	if text := sweep(t, db.DSN, "status", "--sort", "backlog", "--top", "1"); !strings.Contains(text, "The 1 with the largest backlog of 5 (--top).") {
		t.Errorf("--sort backlog:\n%s", text)
	}
}

// The time for reading namespaces is bounded: what was read until then is shown.
func TestCLIStatusInTime(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, `select outbox.set_quota('n' || n, 5) from generate_series(100, 220) as n`)
	for _, test := range []struct {
		args []string
		says string
	}{
		{nil, "The 20 with the longest wait of 121 (--top)."},
		{[]string{"--scan-time", "0s"}, "The 20 with the longest wait of the first 50 by name; there may be more (--scan-time)."},
		{[]string{"--scan-time", "0s", "--scan", "40"}, "The 20 with the longest wait of the first 40 by name; there are more (--scan)."},
		{[]string{"--scan", "120"}, "The 20 with the longest wait of the first 120 by name; there are more (--scan)."},
		{[]string{"--scan", "121"}, "The 20 with the longest wait of 121 (--top)."},
	} {
		if text := sweep(t, db.DSN, append([]string{"status"}, test.args...)...); !strings.Contains(text, test.says) {
			t.Errorf("status %q lacks %q:\n%s", test.args, test.says, text)
		}
	}
	sweepCall{dsn: db.DSN, args: []string{"status", "--scan-time", "-1s"}}.do(t).want(t, 2, []string{"--scan-time"})
}
