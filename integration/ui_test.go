package integration

import (
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// uiScene is an outbox in which tenants wait for several reasons, with a node that is alive.
const uiScene = `
	select outbox.configure('{"node_lapse": "1 day"}');
	select outbox.heartbeat('n1');
	select outbox.set_quota('capped', 2);
	select outbox.enqueue('capped', 'hook', 'capped/' || i, '{}') from generate_series(1, 5) as i;
	select outbox.enqueue('free', 'hook', 'free/' || i, '{}') from generate_series(1, 5) as i;
	select outbox.enqueue('later', 'hook', 'later/1', '{}', delay => '2 hours');
	select outbox.enqueue('paused', 'hook', 'paused/1', '{}');
	select outbox.enqueue('halved', 'mail', 'halved/1', '{}');
	select outbox.enqueue('zero', 'hook', 'zero/1', '{}');
	select outbox.set_quota('zero', 0);
	select outbox.pause('paused', note => 'asked to');
	select outbox.pause('halved', 'mail', 'provider down');
	update outbox.pending set visible_after = clock_timestamp() - case namespace when 'free' then interval '3 hours' when 'capped' then interval '2 hours' else interval '1 hour' end
	where ripe;`

// Each page says who waits, for how long, and why.
func TestUIPages(t *testing.T) {
	t.Parallel()
	db := setUp(t, uiScene)
	wantClaimed(t, "capped", claimOn(t, db.Pool, "n1", list[int](t, db.Pool, "select unnest(outbox.all_shards())"), 1), 1)
	run(t, db.Pool, "select outbox.fail(array_agg(id), array_agg(claim_token), array['no such host db17']) from outbox.claimed")
	run(t, db.Pool, "select outbox.claim_fair('n1', outbox.all_shards(), 3)")
	ui := serveUI(t, db.DSN)

	text := ui.page(t, "/")
	wantTexts(t, "Tenants", text, "5 tenants have messages due", "All tenants", "2 h", "paused by", `"asked to"`, "nothing is due yet", "in 1 h 59 min")
	wantTexts(t, "Tenants", text, "route 'mail' is paused by", `"provider down"`)
	wantTexts(t, "Tenants", text, "its quota is 0")
	wantTexts(t, "Tenants", text, "All were looked at in", "Read at")
	lacks(t, "Tenants", text, "No node is running")

	text = ui.page(t, "/tenant?name=paused")
	wantTexts(t, "paused", text, "Tenant paused", "Why it waits", "1 message is due, the oldest for 1 h", "Paused by", `"asked to"`, "hook", "paused/1")
	text = ui.page(t, "/tenant?name=halved")
	wantTexts(t, "halved", text, "Route 'mail' is paused", "Routes", "mail", "route mail of tenant halved", "provider down")
	text = ui.page(t, "/tenant?name=later")
	wantTexts(t, "later", text, "Nothing is due yet: the next message is due in 1 h 59 min")
	text = ui.page(t, "/tenant?name=zero")
	wantTexts(t, "zero", text, "Its quota is 0", "0 of 0")
	text = ui.page(t, "/tenant?name=nobody")
	wantTexts(t, "nobody", text, "Nothing waits", "It has no message that is pending, claimed or failed")

	key := one[string](t, db.Pool, "select dispatch_key from outbox.messages where status = 'failed'")
	text = ui.page(t, "/failed")
	wantTexts(t, "Failed", text, "1 dead letter", "hook", "no such host db#", "One by one", key, "no such host db17")
	text = ui.page(t, "/message?key="+url.QueryEscape(key))
	wantTexts(t, "the failed message", text, "Message "+key, "failed", "no such host db17", "Attempts 1", "Failed attempts", "no such host db17")
	text = ui.page(t, "/message?key=none")
	wantTexts(t, "an unknown message", text, "unknown", "no message has this key")
	text = ui.page(t, "/message?key=later/1")
	wantTexts(t, "the delayed message", text, "pending", "delayed until")

	text = ui.page(t, "/nodes")
	wantTexts(t, "Nodes", text, "n1", "live", "0-15", "the outbox", "Each of the 16 shards has a node", "Who shuts claims out", "Nobody", "route mail of tenant halved", "provider down", "The last check", "None was run")
	for _, path := range []string{"/", "/tenant?name=paused", "/failed", "/nodes", "/message?key=later/1"} {
		if _, body := ui.send(t, "GET", path, nil, nil); strings.Contains(body, `method="post"`) != (path == "/nodes") || strings.Contains(body, "/failed/redrive") {
			t.Errorf("without --actions %s has a button:\n%s", path, body)
		}
	}
}

// What keeps all from being served stands on the page of each tenant.
func TestUITroubles(t *testing.T) {
	t.Parallel()
	db := setUp(t, `select outbox.enqueue('a', 'q', 'a/1', '')`)
	ui := serveUI(t, db.DSN)
	for _, path := range []string{"/", "/tenant?name=a", "/message?key=a/1", "/failed", "/nodes"} {
		wantTexts(t, path, ui.page(t, path), "All tenants:", "No node is running")
	}
	wantTexts(t, "the tenant", ui.page(t, "/tenant?name=a"), "1 message is due", "No node is running")
	run(t, db.Pool, `select outbox.heartbeat('n1', array[0, 1, 2])`)
	wantTexts(t, "shards without a node", ui.page(t, "/"), "13 shards of 16 have no node")
	wantTexts(t, "shards without a node", ui.page(t, "/nodes"), "Shards without a node: 3-15, of 16")
	run(t, db.Pool, `select outbox.pause(everything => true, note => 'maintenance')`)
	wantTexts(t, "everything paused", ui.page(t, "/tenant?name=a"), "Everything is paused by", "maintenance", "until it is resumed")
	conn := db.Connect(t)
	run(t, conn, `select pg_advisory_lock(outbox.lock_class(), 3)`)
	wantTexts(t, "a stray lock", ui.page(t, "/"), "Somebody holds locks of claims")
	wantTexts(t, "a stray lock", ui.page(t, "/nodes"), "pg_terminate_backend")
	wantTexts(t, "a stray lock", ui.page(t, "/tenant?name=a"), "shards 3 are held by")
}

// The payload stands behind a click; it is shown as text or in hexadecimal, and cut, with the size told.
func TestUIPayload(t *testing.T) {
	t.Parallel()
	db := setUp(t, `
		select outbox.enqueue('a', 'q', 'text', E'{"name": "Zoë\u202e\u0007"}\n\tlast', headers => '{"trace": "abc", "html": "<b>"}');
		select outbox.enqueue('a', 'q', 'bytes', '\x00ff3c623e'::bytea);
		select outbox.enqueue('a', 'q', 'large', repeat('ö', 300000));
		select outbox.enqueue('a', 'q', 'large bytes', decode(repeat('00', 300000), 'hex'));
		select outbox.enqueue('a', 'q', 'empty', '')`)
	ui := serveUI(t, db.DSN)
	text := ui.page(t, "/message?key=text")
	wantTexts(t, "the message", text, "Headers", `"html": "<b>"`, `"trace": "abc"`, "Payload", "Show the payload", "26 bytes")
	lacks(t, "the message without a click", text, "Zoë")
	wantTexts(t, "text", ui.page(t, "/message?key=text&payload=show"), `{"name": "Zoë\u202e\a"}`, "last", "26 bytes", "Hide it")
	wantTexts(t, "bytes", ui.page(t, "/message?key=bytes&payload=show"), "00 ff 3c 62 3e", "It is no text")
	text = ui.page(t, "/message?key=large&payload=show")
	wantTexts(t, "large", text, "ööö", "Cut: these are the first 64.0 KiB of 585.9 KiB")
	if len(text) > 80_000 {
		t.Errorf("a page of %d bytes", len(text))
	}
	lacks(t, "large", text, "\ufffd", `\xc3`)
	wantTexts(t, "large bytes", ui.page(t, "/message?key="+url.QueryEscape("large bytes")+"&payload=show"), "00 00", "first 4.0 KiB of 293.0 KiB")
	wantTexts(t, "empty", ui.page(t, "/message?key=empty&payload=show"), "It is empty")
}

// uiHostile are names that a page must neither act on nor lose.
var uiHostile = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `a/../b`, `..`, `.`, `/`, `//`, `%2e%2e%2f`, `a%00b`, `a+b&c=d#e?f`, `{{.}}`, `' or 1=1 --`,
	"tab\tnewline\nreturn\r", "\x1b[31mred\x07", "\u202egpj.exe", "\u200b", "\u00a0", "   ", " lead", "ünïcode 日本語 🦉", "e\u0301", "\u2066isolated", `\u202e`,
	strings.Repeat("long", 128), strings.Repeat("\u202e", 170), "javascript:alert(1)", `C:\dir`, "\ufffd", "\ufeff",
}

// Hostile names of tenants, routes, keys and errors stand on every page as text, and their links lead to them.
func TestUIHostileNames(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	for i, name := range uiHostile {
		run(t, db.Pool, `select outbox.enqueue($1, $1, $1, $1::text)`, name)
		if i%2 == 0 {
			run(t, db.Pool, `select outbox.pause($1, $1, $1)`, name)
		}
	}
	run(t, db.Pool, `select outbox.enqueue(n, n, 'dead ' || md5(n), '') from unnest($1::text[]) as n`, uiHostile)
	run(t, db.Pool, `with c as (select * from outbox.claim_fair('n', outbox.all_shards(), 1000))
		select outbox.fail(array[c.id], array[c.claim_token], array[c.namespace]) from c where c.dispatch_key like 'dead %'`)
	run(t, db.Pool, `select outbox.heartbeat(n) from unnest($1::text[]) as n`, uiHostile[:20])
	ui := serveUI(t, db.DSN, "--actions")

	var bodies []string
	see := func(path string) string {
		t.Helper()
		answer, body := ui.send(t, "GET", path, nil, nil)
		if answer.StatusCode != http.StatusOK {
			t.Fatalf("GET %s answers %d: %s", path, answer.StatusCode, textOf(body))
		}
		bodies = append(bodies, body)
		return body
	}
	links := regexp.MustCompile(`<a class="name" href="(/(?:tenant|message)\?[^"]*)">`)
	seen := map[string]bool{}
	for path := "/"; path != ""; {
		body := see(path)
		for _, m := range links.FindAllStringSubmatch(body, -1) {
			seen[html.UnescapeString(m[1])] = true
		}
		path = ""
		if m := regexp.MustCompile(`<a href="([^"]*)" rel="next">`).FindStringSubmatch(body); m != nil {
			path = html.UnescapeString(m[1])
		}
	}
	for _, name := range uiHostile {
		tenant := "/tenant?" + url.Values{"name": {name}}.Encode()
		if !seen[tenant] {
			t.Errorf("no page of the tenants leads to %q", name)
		}
		see(tenant)
		see("/message?" + url.Values{"key": {name}, "payload": {"show"}}.Encode())
		see("/failed?" + url.Values{"namespace": {name}}.Encode())
		see("/failed/redrive?" + url.Values{"namespace": {name}, "route": {name}, "error": {name}}.Encode())
	}
	see("/failed")
	see("/nodes")
	see("/?q=" + url.QueryEscape("<script>"))
	for _, body := range bodies {
		for _, bad := range []string{"<script>a", "<img", "\x1b", "\x07", "\u202e", "\u2066", "\u200b", "\ufeff", "\u00a0", "onerror=alert(1)>", `href="javascript`} {
			if strings.Contains(body, bad) {
				t.Fatalf("a page has %q:\n%s", bad, body)
			}
		}
	}
	// What no message can be called is said in words.
	for _, path := range []string{"/tenant?name=", "/tenant?name=a%00b", "/tenant?name=%ff", "/tenant?name=" + strings.Repeat("x", 513), "/message", "/message?key=%ff%fe", "/failed?namespace=%00", "/failed?since=yesterday", "/failed?after=x", "/?at=x"} {
		answer, body := ui.send(t, "GET", path, nil, nil)
		if answer.StatusCode != http.StatusBadRequest {
			t.Errorf("GET %.60s answers %d: %s", path, answer.StatusCode, textOf(body))
		}
		wantTexts(t, path, textOf(body), "That cannot be")
	}
}
