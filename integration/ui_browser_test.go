package integration

import (
	"fmt"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// tenantURL is the page of a tenant.
func tenantURL(ui *served, name string) string {
	return ui.url + "/tenant?" + url.Values{"name": {name}}.Encode()
}

// A page refreshes its parts by itself, until it is told not to, and leaves alone what has the focus.
func TestUIBrowserRefresh(t *testing.T) {
	t.Parallel()
	db := setUp(t, uiScene)
	b := openBrowser(t)
	ui := serveUI(t, db.DSN, "--actions")
	b.open(ui.url + "/")
	b.shows("Tenants", "5 tenants have messages due", "free", "capped", "quota is 0")
	eval[bool](b, "window.same = true")
	run(t, db.Pool, `select outbox.enqueue('new', 'hook', 'new/1', '{}')`)
	b.shows("Tenants, later", "6 tenants have messages due", "new")
	if !eval[bool](b, "window.same === true") {
		t.Error("the page was loaded again")
	}
	b.open(tenantURL(ui, "paused"))
	b.shows("paused", "Paused by")
	b.do(chromedp.Focus(chromedp.CSS("#pauses-list button")))
	run(t, db.Pool, `select outbox.resume('paused')`)
	b.shows("paused, later", "Nothing holds it")
	if !eval[bool](b, "document.activeElement.matches('#pauses-list button')") {
		t.Error("the button has lost the focus")
	}
	b.do(chromedp.Click(chromedp.CSS("footer button")))
	if text := eval[string](b, "document.querySelector('footer [role=status]').innerText"); !strings.Contains(text, "The page stays as it is") {
		t.Errorf("it says %q", text)
	}
	before := eval[string](b, "document.getElementById('age').innerText")
	time.Sleep(6 * time.Second) // longer than between two refreshes: nothing may happen
	if after := eval[string](b, "document.getElementById('age').innerText"); after != before {
		t.Errorf("it goes on: %s", after)
	}
	b.do(chromedp.Click(chromedp.CSS("footer button")))
	eventually(t, "it goes on", func() bool {
		time.Sleep(50 * time.Millisecond)
		return eval[string](b, "document.getElementById('age').innerText") != before
	})
	b.well()
	ui.signal(t, syscall.SIGKILL)
	eventually(t, "it says that it is old", func() bool {
		time.Sleep(50 * time.Millisecond)
		return strings.Contains(eval[string](b, "document.querySelector('footer [role=status]').innerText"), "cannot be refreshed")
	})
}

// Somebody finds out why a tenant waits, and acts, with the mouse and without a script.
func TestUIBrowserActions(t *testing.T) {
	t.Parallel()
	for _, script := range []bool{true, false} {
		t.Run(fmt.Sprintf("script %v", script), func(t *testing.T) {
			t.Parallel()
			db := setUp(t, uiScene)
			uiDead(t, db.Pool, "dead", "hook", "refused by 10.0.0.", 12)
			b := openBrowser(t)
			ui := serveUI(t, db.DSN, "--actions")
			b.open(ui.url + "/")
			b.noScript(!script)

			b.open(ui.url + "/")
			b.shows("Tenants", "paused by", "asked to")
			b.click("#tenants a[href='/tenant?name=paused']")
			b.shows("paused", "Tenant paused", "Why it waits", "1 message is due, the oldest for 1 h", "Paused by", "asked to", "Routes", "hook", "paused/1")
			b.click("#pauses-list button")
			b.shows("resumed", "Resumed tenant paused.", "Nothing holds it: the next claim")
			b.fill("#pause-route", "hook")
			b.fill("#pause-note", "again, <b>")
			b.click("form[action='/pause'] button")
			b.shows("paused again", "Paused route hook of tenant paused", "Route 'hook' is paused", "again, <b>")
			b.fill("#quota-n", "3")
			b.click("form[action='/quota'] button")
			b.shows("quota", "The quota of tenant paused is 3.", "0 of 3", "Up to 3 messages")
			b.click("form[action='/quota'] button[name=default]")
			b.shows("the default", "has the default quota again", "Up to 256 messages")
			b.fill("#hold-route", "hook")
			b.fill("#hold-note", "moving")
			b.click("form[action='/hold'] button")
			b.shows("held", "Held: route hook of tenant paused", "Destinations that are held", "moving")
			b.click("#holds-list button")
			b.shows("lifted", "Lifted the hold of route hook")

			b.fill("#find", "later/1")
			b.click("header button")
			b.shows("the message", "Message later/1", "pending", "delayed until", "Retry now", "Cancel")
			b.click("form[action='/message/retry'] button")
			b.shows("due", "Message later/1 is due now.")
			b.click("form[action='/message/cancel'] button")
			b.shows("cancelled", "Message later/1 is cancelled.", "cancelled")
			b.click("form[action='/message/redrive'] button")
			b.shows("redriven", "Message later/1 is pending again")
			b.click("main a.button")
			b.shows("the payload", "Payload", "{}", "2 bytes")

			b.click("nav a[href='/failed']")
			b.shows("Failed", "12 dead letters", "refused by #.#.#.#")
			b.fill("#f-error", "REFUSED by")
			b.click("form[action='/failed'] button")
			b.shows("the filter", "12 dead letters with the error text REFUSED by")
			b.click("a.button")
			b.shows("the confirmation", "This makes 12 messages with the error text REFUSED by", "No faster than")
			b.click("form[action='/failed/redrive'] button")
			b.shows("begun", "Redrive 1 has begun.")
			await(t, db.Pool, `select count(*) = 12 from outbox.messages where namespace = 'dead' and status = 'pending'`)
			eventually(t, "the redrive has ended", func() bool { // without a script the page stays as it is
				b.open(ui.url + "/failed")
				return strings.Contains(b.text(), "done")
			})
			b.shows("done", "Redrives that were begun here", "12 of 12", "done", "There is no dead letter")

			b.click("nav a[href='/nodes']")
			b.shows("Nodes", "n1", "live", "0-15", "Who shuts claims out", "Nobody", "route hook of tenant paused")
			b.click("form[action='/nodes/check'] button")
			b.shows("checked", "The check found no violation.")
			for _, check := range []string{
				`select note = 'again, <b>' from outbox.pauses where namespace = 'paused' and task_queue = 'hook'`,
				`select quota = 256 from outbox.quota('paused')`,
				`select status = 'pending' from outbox.messages where dispatch_key = 'later/1'`,
			} {
				if !one[bool](t, db.Pool, check) {
					t.Errorf("in the end not: %s", check)
				}
			}
			b.well()
		})
	}
}

// Hostile names do nothing in a browser, and its forms give them back as they are.
func TestUIBrowserHostile(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	for _, name := range uiHostile {
		run(t, db.Pool, `select outbox.enqueue($1, $1, $1, $1::text, headers => jsonb_build_object('x', $1))`, name)
		run(t, db.Pool, `select outbox.pause($1, $1, $1)`, name)
	}
	b := openBrowser(t)
	ui := serveUI(t, db.DSN, "--actions")
	for _, name := range uiHostile {
		b.open(tenantURL(ui, name))
		b.click("form[action='/pause'] button")
		b.shows("paused", "Paused tenant")
		if !one[bool](t, db.Pool, `select exists (select from outbox.pauses where namespace = $1 and task_queue is null)`, name) {
			t.Errorf("the form did not pause %q, but %q", name, list[string](t, db.Pool, `select namespace from outbox.pauses where task_queue is null`))
		}
		b.open(ui.url + "/message?" + url.Values{"key": {name}, "payload": {"show"}}.Encode())
		b.click("form[action='/message/cancel'] button")
		b.shows("cancelled", "is cancelled")
		b.open(ui.url + "/failed?" + url.Values{"namespace": {name}, "error": {name}}.Encode())
		if got := eval[string](b, `[...new FormData(document.querySelector("form[action='/failed']"))].map(([k, v]) => k + '=' + encodeURIComponent(v)).join('&')`); !strings.Contains(got, "namespace") {
			t.Errorf("the filter of %q gives %q", name, got)
		}
	}
	for address := ui.url + "/"; address != ""; {
		b.open(address)
		if n := eval[int](b, "document.querySelectorAll('main script, main img, main iframe, main b').length"); n > 0 {
			t.Errorf("%d elements came from names", n)
		}
		if wide := eval[int](b, "document.documentElement.scrollWidth"); wide > 1200 {
			t.Errorf("the page is %d wide", wide)
		}
		address = eval[string](b, "document.querySelector('a[rel=next]')?.href || ''")
	}
	for _, path := range []string{"/nodes", "/failed"} {
		b.open(ui.url + path)
		if n := eval[int](b, "document.querySelectorAll('main script, main img, main iframe, main b').length"); n > 0 {
			t.Errorf("%s: %d elements came from names", path, n)
		}
	}
	b.well()
}

// contrastScript finds texts whose contrast with what is behind them is below that of WCAG 2, AA.
const contrastScript = `(() => {
	const parse = (c) => { const m = c.match(/[\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
	const light = ([r, g, b]) => { const f = (x) => { x /= 255; return x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; }; return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
	const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c[3] === 1) return c; } return [255, 255, 255, 1]; };
	const bad = [];
	for (const e of document.querySelectorAll('body *')) {
		if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) && e.tagName !== 'INPUT') continue;
		if (!e.checkVisibility() || ['TITLE', 'OPTION'].includes(e.tagName) || e.closest('.hidden')) continue;
		const s = getComputedStyle(e), size = parseFloat(s.fontSize), large = size >= 24 || size >= 18.66 && s.fontWeight >= 700;
		const [a, b] = [light(parse(s.color)), light(behind(e))];
		const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (ratio < (large ? 3 : 4.5)) bad.push(e.tagName + '.' + e.className + ' ' + e.textContent.trim().slice(0, 40) + ' ' + ratio.toFixed(2));
	}
	return bad.join('; ');
})()`

// structureScript finds what a screen reader would miss.
const structureScript = `(() => {
	const bad = [], all = (s) => [...document.querySelectorAll(s)];
	if (document.documentElement.lang !== 'en') bad.push('no language');
	if (!document.title) bad.push('no title');
	for (const [s, n] of [['h1', 1], ['main', 1], ['header', 1], ['footer', 1], ['header nav', 1], ['a.skip', 1]]) if (all(s).length !== n) bad.push(all(s).length + ' of ' + s);
	for (const th of all('th')) if (!th.scope) bad.push('a th without scope: ' + th.innerText);
	for (const table of all('table')) { if (!table.caption) bad.push('a table without a caption'); for (const tr of table.tBodies[0].rows) if (!tr.querySelector('th')) bad.push('a row without a header'); }
	for (const i of all('input:not([type=hidden])')) if (!i.labels.length) bad.push('a field without a label: ' + i.name);
	const ids = all('[id]').map((e) => e.id);
	for (const id of ids) if (ids.filter((x) => x === id).length > 1) bad.push('an id twice: ' + id);
	for (const e of all('[aria-labelledby]')) if (!document.getElementById(e.getAttribute('aria-labelledby'))) bad.push('a label that is not there');
	for (const e of all('[data-refresh]')) if (!e.id) bad.push('a part without an id');
	if (all('[data-refresh]').length > 1 && !all('[aria-live], [role=status]').length) bad.push('nothing is announced');
	let level = 0;
	for (const h of all('h1, h2, h3')) { const l = +h.tagName[1]; if (l > level + 1) bad.push('a heading too deep: ' + h.innerText); level = l; }
	for (const e of all('button, .button, input:not([type=hidden]):not([type=checkbox])')) if (e.checkVisibility() && e.getBoundingClientRect().height < 24) bad.push('too low to hit: ' + e.innerText);
	return [...new Set(bad)].join('; ');
})()`

// Every page can be read in light and dark, at a phone's width, by a screen reader, and used by keyboard.
func TestUIBrowserAccess(t *testing.T) {
	t.Parallel()
	db := setUp(t, uiScene)
	uiDead(t, db.Pool, "dead", "hook", "refused by 10.0.0.", 3)
	run(t, db.Pool, `select outbox.enqueue($1, $1, $1, $1::text, headers => '{"trace": "x"}'), outbox.hold('capped', 'hook', '1 h', 'down')`, strings.Repeat("long-name-", 50))
	b := openBrowser(t)
	ui := serveUI(t, db.DSN, "--actions")
	dead := one[string](t, db.Pool, "select min(dispatch_key) from outbox.messages where status = 'failed'")
	b.open(ui.url + "/nodes")
	b.click("form[action='/nodes/check'] button")
	run(t, db.Pool, `select outbox.pause(everything => true, note => 'maintenance')`)
	for _, path := range []string{
		"/", "/?q=nothing", "/tenant?name=paused", "/tenant?name=capped", "/tenant?name=" + strings.Repeat("long-name-", 50), "/failed", "/failed?route=hook", "/failed/redrive", "/nodes",
		"/message?key=" + url.QueryEscape(dead) + "&payload=show", "/message?key=later/1", "/message?key=" + strings.Repeat("long-name-", 50) + "&payload=show", "/message?key=none", "/none",
	} {
		for _, scheme := range []string{"light", "dark"} {
			b.scheme(scheme)
			for _, width := range map[string][]int64{"light": {1200, 320}, "dark": {1200, 360, 700}}[scheme] {
				b.do(chromedp.EmulateViewport(width, 800))
				b.open(ui.url + path)
				eval[bool](b, "document.querySelectorAll('details').forEach((d) => { d.open = true; }), true")
				if wide := eval[int64](b, "document.documentElement.scrollWidth"); wide > width {
					t.Errorf("%.60s is %d wide on a window of %d", path, wide, width)
				}
				if bad := eval[string](b, contrastScript); bad != "" {
					t.Errorf("%.60s, %s, %d wide: too little contrast: %s", path, scheme, width, bad)
				}
				if bad := eval[string](b, structureScript); bad != "" && path != "/none" {
					t.Errorf("%.60s, %d wide: %s", path, width, bad)
				}
			}
		}
		// As the browser tells a screen reader: each thing to use has a name.
		ctx, cancel := b.within()
		tree, err := chromedp.Call(ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		for _, node := range tree.Nodes {
			if node.Ignored || node.Role == nil {
				continue
			}
			role := strings.Trim(string(node.Role.Value), `"`)
			switch role {
			case "button", "link", "textbox", "searchbox", "spinbutton", "checkbox", "table", "image", "combobox", "region":
				if node.Name == nil || strings.Trim(string(node.Name.Value), `" `) == "" {
					t.Errorf("%.60s: a %s has no name", path, role)
				}
			}
		}
	}
	// By keyboard: the first stop skips to the content; what has the focus is seen; Enter follows.
	b.do(chromedp.EmulateViewport(1200, 800))
	b.open(ui.url + "/")
	b.do(chromedp.KeyEvent(kb.Tab))
	if got := eval[string](b, "document.activeElement.className + ' ' + (document.activeElement.getBoundingClientRect().left >= 0)"); got != "skip true" {
		t.Errorf("the first stop is %q", got)
	}
	b.do(chromedp.KeyEvent(kb.Enter))
	if got := eval[string](b, "location.hash"); got != "#main" {
		t.Errorf("the skip link leads to %q", got)
	}
	for range 3 { // the field, the button, the first tenant... whatever comes
		b.do(chromedp.KeyEvent(kb.Tab))
		if got := eval[string](b, "getComputedStyle(document.activeElement).outlineStyle + ' ' + document.activeElement.tagName"); strings.HasPrefix(got, "none") || strings.HasSuffix(got, "BODY") {
			t.Errorf("the focus cannot be seen: %s", got)
		}
	}
	b.do(chromedp.Focus(chromedp.CSS("#tenants tbody a")), chromedp.KeyEvent(kb.Enter))
	b.shows("by keyboard", "Why it waits")
}
