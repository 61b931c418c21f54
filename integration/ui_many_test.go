package integration

import (
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// With 100,000 tenants a page has those that wait longest, leads on to the others, finds each by a part of its
// name, and reads what it shows, not what there is.
func TestUIManyTenants(t *testing.T) {
	t.Parallel()
	const tenants, big = 100_000, 20_000
	db := pg.New(t)
	conn := db.Connect(t)
	run(t, conn, `insert into outbox.message (namespace, task_queue, dispatch_key, content_type, headers, payload)
		select 'tenant-' || to_char(i, 'FM000000'), 'hook', 'key-' || i, 'text/plain', '{}', '' from generate_series(1, $1::int) as i`, tenants)
	run(t, conn, `insert into outbox.message (namespace, task_queue, dispatch_key, content_type, headers, payload)
		select 'big', 'hook-' || i % 50, 'big-' || i, 'text/plain', '{}', '' from generate_series(1, $1::int) as i`, big)
	run(t, conn, `insert into outbox.pending (id, visible_after, shard, payload_bytes, namespace, task_queue)
		select m.id, date_trunc('second', clock_timestamp()) - make_interval(days => 1, secs => (m.id % 50000)::int), m.id % 16, 0, m.namespace, m.task_queue from outbox.message as m`)
	run(t, conn, `analyze outbox.message, outbox.pending`)
	run(t, conn, `select outbox.set_quota('quiet-' || i, 5) from generate_series(1, 300) as i`)

	// What the pages ask, each in a session of its own, by the rows that it reads.
	const read = `select coalesce((select sum(s.seq_tup_read) from pg_stat_user_tables as s where s.schemaname = 'outbox'), 0)::bigint
		+ (select sum(greatest(s.idx_tup_read, s.idx_tup_fetch)) from pg_stat_user_indexes as s where s.schemaname = 'outbox')::bigint`
	alone := `(select count(*) = 1 from pg_stat_activity as a where a.datname = current_database() and a.backend_type = 'client backend')`
	run(t, conn, `select pg_stat_force_next_flush()`)
	names := list[string](t, conn, `select 'tenant-' || to_char(i * 4000 + 7, 'FM000000') from generate_series(1, 24) as i`)
	for _, c := range []struct {
		sql  string
		args []any
		most int
	}{
		{`select outbox.hold_reasons($1)`, []any{append(names, "big")}, 3000},
		{`select outbox.survey_namespaces(names => $1)`, []any{append(names, "big")}, 5000},
		{`select outbox.known_namespaces(null, 200)`, nil, 2000},
		{`select outbox.route_state('big')`, nil, 8000},
		{`select outbox.message_headers('big-17')`, nil, 10},
	} {
		await(t, conn, "select "+alone)
		before := one[int](t, conn, read)
		other := db.Connect(t)
		if rows := len(list[any](t, other, c.sql, c.args...)); rows == 0 {
			t.Errorf("%s brings nothing", c.sql)
		}
		if err := other.Close(t.Context()); err != nil { // what it has read is counted now
			t.Fatal(err)
		}
		await(t, conn, "select ("+read+") > $1 and "+alone, before)
		if rows := one[int](t, conn, read) - before; rows > c.most {
			t.Errorf("INV-14: %s read %d rows, more than %d", c.sql, rows, c.most)
		}
	}

	ui := serveUI(t, db.DSN)
	text := ui.page(t, "/")
	for so := ""; !strings.Contains(text, "All were looked at"); { // as long as it gets on
		now := so
		eventually(t, "the look at all tenants gets on", func() bool {
			text = ui.page(t, "/")
			if m := regexp.MustCompile(`goes on: (\S+) tenants so far`).FindStringSubmatch(text); m != nil {
				now = m[1]
			}
			return now != so || strings.Contains(text, "All were looked at")
		})
		so = now
	}
	wantTexts(t, "Tenants", text, "100,001 tenants have messages due, the longest wait is that of", "100,301 tenants. All were looked at")
	seen := map[string]bool{}
	name := regexp.MustCompile(`href="/tenant\?name=([^"]*)"><bdi>`)
	path := "/"
	last := 1e9
	for range 4 {
		_, body := ui.send(t, "GET", path, nil, nil)
		_, table, _ := strings.Cut(body, `<div id="tenants"`)
		found := name.FindAllStringSubmatch(table, -1)
		if len(found) != 25 {
			t.Fatalf("%d tenants on a page:\n%s", len(found), textOf(body))
		}
		for _, m := range found {
			if seen[m[1]] {
				t.Errorf("%s stands on two pages", m[1])
			}
			seen[m[1]] = true
			due := one[float64](t, conn, `select extract(epoch from clock_timestamp() - min(visible_after))::float8 from outbox.pending where ring = outbox.ring($1) and namespace = $1`, m[1])
			if due > last+60 { // the clock goes on from one look to the next
				t.Errorf("%s has waited longer than one before it: %v, %v", m[1], due, last)
			}
			last = due
		}
		next := regexp.MustCompile(`<a href="([^"]*)" rel="next">`).FindStringSubmatch(body)
		if next == nil {
			t.Fatalf("no link leads on:\n%s", textOf(body))
		}
		path = strings.ReplaceAll(next[1], "&amp;", "&")
	}
	text = ui.page(t, "/?q="+url.QueryEscape("NANT-0777"))
	wantTexts(t, "a search", text, "100 tenants have messages due", "Tenants with “NANT-0777” in their names", "tenant-0777")
	wantTexts(t, "a whole name", ui.page(t, "/?q=tenant-077777"), "1 tenant has messages due", "tenant-077777")
	wantTexts(t, "the last page", ui.page(t, "/?q=quiet-300"), "quiet-300", "nothing waits", "0 of 5")
	wantTexts(t, "big", ui.page(t, "/tenant?name=big"), "1,000+ messages are due", "Routes", "hook-0", "hook-1", "Of each kind, 1,000 messages of the tenant are looked at")
	run(t, conn, `select outbox.enqueue('after the look', 'q', 'after', '')`)
	wantTexts(t, "a name that came since", ui.page(t, "/?q="+url.QueryEscape("after the look")), "after the look")
}
