package integration

import (
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
)

// Each action does what it says, says what it did, and is logged with its user.
func TestUIActions(t *testing.T) {
	t.Parallel()
	const odd = "o'd/..%2f\u202e\r\n"
	db := setUp(t, `
		select outbox.enqueue('a', 'q', 'pending', '');
		select outbox.enqueue('a', 'q', 'waits', '', delay => '1 hour')`)
	run(t, db.Pool, `select outbox.enqueue($1, $1, $1, '')`, odd)
	ui := serveUI(t, db.DSN, "--actions", "--users", usersFile(t, "alice", "pw"))
	ui.user, ui.password = "alice", "pw"
	of := func(pairs ...string) string { return formOf(pairs...).Encode() }

	// The forms of a page carry names that a browser would change.
	_, body := ui.send(t, "GET", "/tenant?"+url.Values{"name": {odd}}.Encode(), nil, nil)
	if !strings.Contains(body, `name="of" value="`+of("namespace", odd)+`"`) {
		t.Errorf("the forms do not carry the name:\n%s", body)
	}

	for _, c := range []struct {
		path  string
		form  []string
		says  string
		check string
	}{
		{"/pause", []string{"of", of("namespace", "a"), "note", "asked to"}, "Paused tenant a.", `select exists (select from outbox.pauses where namespace = 'a' and task_queue is null and note = 'asked to (alice)' and until is null)`},
		{"/pause", []string{"of", of("namespace", "a"), "for", "2h"}, "Tenant a was paused already", `select until between now() + interval '119 min' and now() + interval '121 min' from outbox.pauses`},
		{"/resume", []string{"of", of("namespace", "a")}, "Resumed tenant a.", `select not exists (select from outbox.pauses)`},
		{"/resume", []string{"of", of("namespace", "a")}, "Tenant a was not paused.", `select true`},
		{"/pause", []string{"of", of("namespace", odd), "route", "r"}, `Paused route r of tenant o'd/..%2f\u202e\r\n.`, `select exists (select from outbox.pauses where namespace = E'o''d/..%2f\u202e\r\n' and task_queue = 'r')`},
		{"/resume", []string{"of", of("namespace", odd, "route", "r")}, "Resumed route r", `select not exists (select from outbox.pauses)`},
		{"/pause", []string{"all", "yes", "route", "q", "back", "/nodes"}, "Paused route q of all tenants", `select exists (select from outbox.pauses where namespace is null and task_queue = 'q')`},
		{"/resume", []string{"all", "yes", "route", "q"}, "Resumed route q of all tenants", `select not exists (select from outbox.pauses)`},
		{"/pause", []string{"all", "yes"}, "Paused everything", `select exists (select from outbox.pauses where namespace is null and task_queue is null)`},
		{"/resume", []string{"all", "yes"}, "Resumed everything", `select not exists (select from outbox.pauses)`},
		{"/hold", []string{"of", of("namespace", "a"), "route", "q", "for", "1h", "note", "moving"}, "Held: route q of tenant a, then one", `select exists (select from outbox.holds where namespace = 'a' and task_queue = 'q' and reason = 'moving (alice)')`},
		{"/lift", []string{"of", of("namespace", "a", "route", "q")}, "Lifted the hold of route q of tenant a", `select not exists (select from outbox.holds where state = 'held')`},
		{"/lift", []string{"of", of("namespace", "a", "route", "q")}, "was not held", `select true`},
		{"/quota", []string{"of", of("namespace", "a"), "quota", "7", "strict", "yes"}, "The quota of tenant a is 7, strict.", `select quota = 7 and strict from outbox.quota('a')`},
		{"/quota", []string{"of", of("namespace", "a"), "quota", "8"}, "The quota of tenant a is 8.", `select quota = 8 and not strict from outbox.quota('a')`},
		{"/quota", []string{"of", of("namespace", "a"), "default", "yes"}, "has the default quota again", `select quota = 256 from outbox.quota('a')`},
		{"/message/retry", []string{"of", of("key", "waits")}, "Message waits is due now.", `select visible_after <= clock_timestamp() from outbox.messages where dispatch_key = 'waits'`},
		{"/message/retry", []string{"of", of("key", "waits")}, "nothing was changed", `select true`},
		{"/message/cancel", []string{"of", of("key", odd)}, "is cancelled", `select status = 'cancelled' from outbox.messages where namespace like 'o''d%'`},
		{"/message/redrive", []string{"of", of("key", odd)}, "is pending again", `select status = 'pending' from outbox.messages where namespace like 'o''d%'`},
		{"/message/redrive", []string{"of", of("key", odd)}, "nothing was changed", `select true`},
		{"/nodes/check", nil, "The check found no violation.", `select true`},
	} {
		if says := ui.act(t, c.path, c.form...); !strings.Contains(says, c.says) {
			t.Errorf("POST %s %q says %q, want %q", c.path, c.form, says, c.says)
		}
		if !one[bool](t, db.Pool, c.check) {
			t.Errorf("POST %s %q did not do what it should: %s", c.path, c.form, c.check)
		}
	}
	text := ui.page(t, "/nodes")
	wantTexts(t, "Nodes", text, "The last check", "no violation", "for alice")
	answer, body := ui.send(t, "POST", "/nodes/check", url.Values{}, nil)
	if answer.StatusCode != http.StatusTooManyRequests {
		t.Errorf("a second check at once answers %d: %s", answer.StatusCode, textOf(body))
	}
	for _, line := range []string{
		`event=ui_action action=pause user=alice from=127\.0\.0\.1:\d+ namespace=a task_queue="" note="asked to" seconds=0 done="Paused tenant a\.`,
		`event=ui_action action=quota user=alice .*quota=7 strict=true`,
		`event=ui_action action=cancel user=alice .*dispatch_key="o'd/..%2f\\u202e\\r\\n"`,
		`event=ui_action action=hold user=alice`, `event=ui_action action=lift user=alice`, `event=ui_action action=resume user=alice`,
		`event=ui_action action=redrive user=alice`, `event=ui_action action=retry_now user=alice`, `event=ui_action action=check user=alice`,
	} {
		if !regexp.MustCompile(line).MatchString(ui.log.String()) {
			t.Errorf("the log has no line %s:\n%s", line, ui.log)
		}
	}

	// What cannot be is refused in words, and changes nothing.
	before := one[string](t, db.Pool, `select (select array_agg(m order by m.id)::text from outbox.messages as m) || (select count(*) from outbox.pauses) || (select count(*) from outbox.holds where state = 'held')`)
	for _, c := range []struct {
		path, form, says string
	}{
		{"/pause", "", "neither a tenant nor all"},
		{"/pause", "namespace=", "neither a tenant nor all"},
		{"/pause", "namespace=a&all=yes", "neither a tenant nor all"},
		{"/pause", "namespace=a&for=soon", "no length of time"},
		{"/pause", "namespace=a&for=-1h", "no length of time"},
		{"/pause", "namespace=a&for=0", "no length of time"},
		{"/pause", "namespace=a%00", "That cannot be"},
		{"/pause", "namespace=%ff", "That cannot be"},
		{"/pause", "namespace=" + strings.Repeat("x", 513), "513 bytes"},
		{"/pause", "namespace=" + strings.Repeat("x", 100_000), "too large"},
		{"/pause", "of=%25zz", "neither a tenant nor all"},
		{"/hold", "namespace=a", "Name the route"},
		{"/quota", "namespace=a&quota=-1", "0 or more"},
		{"/quota", "namespace=a&quota=x", "0 or more"},
		{"/quota", "namespace=a&quota=99999999999", "0 or more"},
		{"/quota", "quota=1", "lacks its field namespace"},
		{"/message/cancel", "", "lacks its field key"},
		{"/failed/redrive", "rate=1/s", "must be confirmed first"},
		{"/failed/redrive", "until=2026-01-01&rate=fast", "not a rate"},
		{"/failed/redrive", "until=2026-01-01&rate=1/s&max=0", "must be a number"},
		{"/failed/redrive", "until=yesterday&rate=1/s", "neither an age nor a time"},
		{"/failed/stop", "job=x", "names no redrive"},
	} {
		form, _ := url.ParseQuery(c.form)
		answer, body := ui.send(t, "POST", c.path, form, nil)
		if answer.StatusCode != http.StatusBadRequest {
			t.Errorf("POST %s %.60q answers %d", c.path, c.form, answer.StatusCode)
		}
		wantTexts(t, "POST "+c.path+" "+c.form[:min(len(c.form), 60)], textOf(body), c.says)
	}
	if after := one[string](t, db.Pool, `select (select array_agg(m order by m.id)::text from outbox.messages as m) || (select count(*) from outbox.pauses) || (select count(*) from outbox.holds where state = 'held')`); after != before {
		t.Errorf("what was refused changed something: %s, before %s", after, before)
	}
	// The page that is gone back to is one of these.
	for back, want := range map[string]string{
		"": "/?done=", "//evil.example/x": "/?done=", "https://evil.example/": "/?done=", `/\evil.example`: "/?done=", "/tenant?name=a%2Fb&done=x": "/tenant?done=", "javascript:alert(1)": "/?done=",
		"/%2f/evil.example": "/?done=", "\t//evil.example": "/?done=",
	} {
		answer, _ := ui.send(t, "POST", "/resume", formOf("namespace", "a", "back", back), nil)
		if got := answer.Header.Get("Location"); !strings.HasPrefix(got, want) {
			t.Errorf("back to %q leads to %q, want %q", back, got, want)
		}
	}
	if text := ui.page(t, "/?done=x"); strings.Contains(text, "x was") {
		t.Errorf("a made-up number says something: %s", text)
	}
}

// Without --actions nothing can be changed, but for a check, which writes nothing.
func TestUIOnlyShows(t *testing.T) {
	t.Parallel()
	db := setUp(t, uiScene)
	ui := serveUI(t, db.DSN)
	before := one[string](t, db.Pool, `select array_agg(m order by m.id)::text from outbox.messages as m`)
	for _, path := range []string{"/pause", "/resume", "/quota", "/hold", "/lift", "/message/redrive", "/message/cancel", "/message/retry", "/failed/redrive", "/failed/stop"} {
		answer, body := ui.send(t, "POST", path, formOf("namespace", "free", "route", "hook", "quota", "1", "key", "free/1", "until", "2100-01-01", "rate", "1/s", "job", "1"), nil)
		if answer.StatusCode != http.StatusForbidden {
			t.Errorf("POST %s answers %d", path, answer.StatusCode)
		}
		wantTexts(t, path, textOf(body), "These pages only show", "--actions")
	}
	if answer, _ := ui.send(t, "GET", "/failed/redrive", nil, nil); answer.StatusCode != http.StatusForbidden {
		t.Errorf("the confirmation answers %d", answer.StatusCode)
	}
	if after := one[string](t, db.Pool, `select array_agg(m order by m.id)::text from outbox.messages as m`); after != before {
		t.Errorf("something changed: %s, before %s", after, before)
	}
	if n := one[int](t, db.Pool, "select count(*)::int from outbox.pauses"); n != 2 {
		t.Errorf("%d pauses", n)
	}
	ui.act(t, "/nodes/check")
}

// uiDead makes n messages of a namespace fail with an error.
func uiDead(t *testing.T, q querier, namespace, queue, text string, n int) {
	t.Helper()
	run(t, q, `select outbox.enqueue($1, $2, $1 || '/' || $2 || '/' || i, '') from generate_series(1, $3::int) as i`, namespace, queue, n)
	run(t, q, `select outbox.set_quota($1, 1000000)`, namespace)
	run(t, q, `with c as materialized (select * from outbox.claim_fair('n', outbox.all_shards(), 10000)),
		gone as materialized (select outbox.fail(array_agg(c.id), array_agg(c.claim_token), array_agg($2 || c.id)) from c where c.namespace = $1 having count(*) > 0),
		back as materialized (select outbox.release(array_agg(c.id), array_agg(c.claim_token)) from c where c.namespace <> $1 having count(*) > 0)
		select (select count(*) from gone), (select count(*) from back)`, namespace, text)
}

// A redrive of what the filter shows counts first, goes on in the background at its rate, can be stopped, and takes
// what was counted and nothing that failed since.
func TestUIRedrive(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	uiDead(t, db.Pool, "a", "hook", "refused by 10.0.0.", 30)
	uiDead(t, db.Pool, "b", "hook", "refused by 10.0.0.", 20)
	uiDead(t, db.Pool, "b", "mail", "no such user ", 7)
	ui := serveUI(t, db.DSN, "--actions")
	text := ui.page(t, "/failed")
	wantTexts(t, "Failed", text, "57 dead letters", "50", "hook", "refused by #.#.#.#", "2", "7", "mail", "no such user #", "1")
	wantTexts(t, "the filter", ui.page(t, "/failed?route=hook&namespace=b&error=REFUSED&since=1h"), "20 dead letters of tenant b, on route hook, with the error text REFUSED, failed since 1h")
	wantTexts(t, "nothing", ui.page(t, "/failed?until=1h"), "No dead letter failed before 1h")

	_, body := ui.send(t, "GET", "/failed/redrive?route=hook", nil, nil)
	wantTexts(t, "the confirmation", textOf(body), "This makes 50 messages on route hook", "pending and due again", "Redrive 50 messages")
	of := regexp.MustCompile(`name="of" value="([^"]*)"`).FindStringSubmatch(body)
	if of == nil {
		t.Fatalf("the confirmation has no form:\n%s", body)
	}
	hidden := strings.ReplaceAll(of[1], "&amp;", "&")
	uiDead(t, db.Pool, "late", "hook", "refused by 10.0.0.", 5)
	if says := ui.act(t, "/failed/redrive", "of", hidden, "rate", "1000/s", "back", "/failed"); !strings.Contains(says, "Redrive 1 has begun") {
		t.Errorf("it says %q", says)
	}
	pending := `select count(*)::int from outbox.messages where status = 'pending' and namespace = any ($1)`
	await(t, db.Pool, `select count(*) = 50 from outbox.messages where status = 'pending'`)
	eventually(t, "the page says so", func() bool { return strings.Contains(ui.page(t, "/failed"), "1 on route hook, failed before") })
	eventually(t, "it is done", func() bool {
		return regexp.MustCompile(`50 (of )?done|50 done`).MatchString(ui.page(t, "/failed"))
	})
	if n := one[int](t, db.Pool, pending, []string{"late"}); n != 0 {
		t.Errorf("%d that failed after the count were redriven", n)
	}
	wantTexts(t, "the log", ui.log.String(), "action=redrive_some", `event=ui_redrive_ended job=1`, "redriven=50", "state=done")

	// At a slow rate it can be watched, and stopped.
	ui.act(t, "/failed/redrive", "until", "2100-01-01", "route", "mail", "rate", "1/h")
	await(t, db.Pool, `select count(*) = 1 from outbox.messages where status = 'pending' and task_queue = 'mail'`)
	wantTexts(t, "Failed", ui.page(t, "/failed"), "2 on route mail", "1/h", "under way", "Stop redrive 2")
	if says := ui.act(t, "/failed/stop", "job", "2", "back", "/failed?route=mail"); !strings.Contains(says, "Redrive 2 stops") {
		t.Errorf("it says %q", says)
	}
	eventually(t, "it has stopped", func() bool { return strings.Contains(ui.page(t, "/failed"), "1 stopped") })
	if n := one[int](t, db.Pool, `select count(*)::int from outbox.messages where status = 'pending' and task_queue = 'mail'`); n != 1 {
		t.Errorf("%d were redriven", n)
	}
	// At most three at a time; they end with the process, which does not wait for them.
	for range 3 {
		ui.act(t, "/failed/redrive", "until", "2100-01-01", "namespace", "b", "rate", "1/h", "max", "2")
	}
	answer, body := ui.send(t, "POST", "/failed/redrive", formOf("until", "2100-01-01", "rate", "1/h"), nil)
	if answer.StatusCode != http.StatusConflict {
		t.Errorf("a fourth redrive answers %d: %s", answer.StatusCode, textOf(body))
	}
	if err := ui.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	<-ui.done
	if code := ui.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("it ends with %d", code)
	}
	wantTexts(t, "the log", ui.log.String(), "job=3", "state=stopped")
}
