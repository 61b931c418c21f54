package integration

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// What an operator types to see, make and lift holds.
func TestCLIHolds(t *testing.T) {
	t.Parallel()
	db := setUp(t, "")
	put(t, db.Pool, "acme", "hooks", "k1")
	if got := sweep(t, db.DSN, "holds"); got != "no destination is held\n" {
		t.Errorf("without holds: %q", got)
	}
	if got := sweep(t, db.DSN, "hold", "acme", "--queue", "hooks", "--for", "2h", "--reason", "their maintenance"); !strings.HasPrefix(got, `route "hooks" of namespace "acme" is held until 2`) {
		t.Errorf("hold: %q", got)
	}
	if got := sweep(t, db.DSN, "hold", "--all", "--queue", "hooks"); got != "route \"hooks\" of all namespaces is held until it is lifted\n" {
		t.Errorf("hold without an end: %q", got)
	}
	if got := sweep(t, db.DSN, "hold", "--all", "--queue", "hooks", "--for", "5m"); got != "route \"hooks\" of all namespaces is held until it is lifted\n" {
		t.Errorf("a hold became shorter: %q", got)
	}
	for _, command := range []string{"holds", "status"} {
		got := sweep(t, db.DSN, command)
		if !strings.Contains(got, "their maintenance") || !strings.Contains(got, "(all)") || !strings.Contains(got, "it is lifted") {
			t.Errorf("%s:\n%s", command, got)
		}
	}
	var holds struct {
		Holds []struct {
			Namespace, Until *string
			State            string
		}
	}
	if err := json.Unmarshal([]byte(sweep(t, db.DSN, "holds", "acme", "--json")), &holds); err != nil {
		t.Fatal(err)
	}
	if len(holds.Holds) != 2 || holds.Holds[0].State != "held" {
		t.Errorf("as JSON: %+v", holds)
	}
	if got := sweep(t, db.DSN, "why", "k1"); !strings.Contains(got, "their maintenance") {
		t.Errorf("why:\n%s", got)
	}
	for _, namespace := range []string{"acme", "--all"} {
		if got := sweep(t, db.DSN, "lift", namespace, "--queue", "hooks"); !strings.HasPrefix(got, "lifted the hold of route") {
			t.Errorf("lift: %q", got)
		}
		if got := sweep(t, db.DSN, "lift", namespace, "--queue", "hooks"); !strings.Contains(got, " was not held\n") {
			t.Errorf("lift again: %q", got)
		}
	}
	for _, args := range [][]string{{"acme"}, {"--all"}} {
		sweep(t, db.DSN, append([]string{"hold", "--queue", "hooks"}, args...)...)
	}
	for _, want := range []string{"lifted the hold of", "was not held"} {
		if got := sweep(t, db.DSN, "lift", "acme", "--queue", "hooks"); !strings.Contains(got, want) ||
			!strings.HasSuffix(got, "\nstill held: route \"hooks\" of all namespaces; to lift that: sweep lift --all --queue hooks\n") {
			t.Errorf("lift beside a hold of all: %q", got)
		}
	}
	if got := sweep(t, db.DSN, "lift", "--all", "--queue", "hooks"); strings.Contains(got, "still held") {
		t.Errorf("lift of all: %q", got)
	}
	until := one[time.Time](t, db.Pool, "select date_trunc('second', clock_timestamp()) + interval '2 h'")
	wantTexts(t, "hold until", sweep(t, db.DSN, "hold", "acme", "--queue", "until", "--until", until.Format(time.RFC3339)), "is held until 20")
	if got := one[bool](t, db.Pool, "select abs(extract(epoch from h.until - $1)) < 1 from outbox.holds as h where h.task_queue = 'until'", until); !got {
		t.Error("a hold until a time ends at another one")
	}
	for _, until := range []string{"2020-01-01", "2999-01-01"} {
		sweepFails(t, db.DSN, 2, []string{"hold", "acme", "--queue", "q", "--until", until}, "--until is "+until, "a time to come, 366d from now at most")
	}
	for value, want := range map[string]string{"yes": "true", "no": "false", "auto": ""} {
		var r struct{ Shared *bool }
		if err := json.Unmarshal([]byte(sweep(t, db.DSN, "shared", "mail", value, "--json")), &r); err != nil {
			t.Fatal(err)
		}
		if got := one[string](t, db.Pool, "select coalesce(max(d.shared::text), '') from outbox.destination as d where d.namespace is null and d.task_queue = 'mail'"); got != want || (r.Shared == nil) != (want == "") {
			t.Errorf("shared %s: %q, %v", value, got, r.Shared)
		}
	}
	wantTexts(t, "shared", sweep(t, db.DSN, "shared", "mail", "no"), `"mail" share no endpoint`)
	sweepFails(t, db.DSN, 2, []string{"hold", "acme"}, "name the route's --queue", "use sweep pause")
	sweepFails(t, db.DSN, 2, []string{"lift", "acme"}, "name the route's --queue", "sweep resume")
	sweepFails(t, db.DSN, 2, []string{"hold", "--queue", "q"}, "name a <namespace>, or --all")
	sweepFails(t, db.DSN, 2, []string{"lift", "acme", "--all", "--queue", "q"}, "exclude each other")
	sweepFails(t, db.DSN, 2, []string{"hold", "acme", "--queue", "q", "--for", "0"}, "--for must be more than 0")
}

// A name that may be mistyped is asked about on standard error, and what was asked for is done.
func TestCLIHoldsAskForNames(t *testing.T) {
	t.Parallel()
	db := setUp(t, "")
	put(t, db.Pool, "acme", "webhook", "k1")
	fill(t, db.Pool, "acme", "mail", 3, 1)
	run(t, db.Pool, "select outbox.set_quota('rich', 9)")
	for _, c := range []struct {
		args []string
		want string // on standard error; empty: nothing
	}{
		{[]string{"hold", "acme", "--queue", "webhok", "--for", "1m"}, `no message of task queue "webhok" that is pending, claimed or failed: did you mean "webhook"?`},
		{[]string{"hold", "acme", "--queue", "webhok"}, `did you mean "webhook"?`}, // that it is held by now makes it no better
		{[]string{"lift", "acme", "--queue", "webhok"}, ""},
		{[]string{"lift", "acme", "--queue", "webhok"}, `did you mean "webhook"?`},
		{[]string{"pause", "acme", "--queue", "mial"}, `did you mean "mail"?`},
		{[]string{"pause", "acme", "--queue", "something else"}, "no message of task queue \"something else\" that is pending, claimed or failed\n"},
		{[]string{"hold", "nosuch", "--queue", "x"}, `"nosuch" has no settings, and no message`},
		{[]string{"lift", "nosuch", "--queue", "y"}, `"nosuch" has no settings, and no message`},
		{[]string{"hold", "acme", "--queue", "webhook"}, ""},
		{[]string{"pause", "acme", "--queue", "mail"}, ""},
		{[]string{"pause", "rich", "--queue", "any"}, ""},
		{[]string{"hold", "--all", "--queue", "any"}, ""},
	} {
		got := sweepCall{dsn: db.DSN, args: c.args}.do(t)
		if got.code != 0 || got.stdout == "" || c.want == "" && got.stderr != "" || !strings.Contains(got.stderr, c.want) {
			t.Errorf("%q: exit %d, %q, %q, want %q", c.args, got.code, got.stdout, got.stderr, c.want)
		}
	}
	status := sweep(t, db.DSN, "status")
	if !strings.Contains(status, "1 route held\n") || !strings.HasPrefix(strings.SplitN(status, "\n\n", 2)[1], `HELD FOR ALL NAMESPACES: route "any"`) {
		t.Errorf("status does not say what is held:\n%s", status)
	}
}
