package integration

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// stateCall is a call that works on a given number of messages in tables that hold many
// more, and whose cost must follow what it is asked for, whatever the statistics say.
type stateCall struct {
	sql    string // $1 is what with gives
	with   string // gives one value, for the number of messages $1
	row    int    // most buffers, and most rows read or thrown away, a message
	fixed  int    // and besides, whatever the number; 0: stateFixed
	sizes  []int  // numbers of messages; nil: stateSizes, and the cost a message is the same at each
	beside string // what is done before it, which is rolled back too
	view   string // of a view, which has no settings of its own: those that it is read under
}

// stateSizes are the numbers of messages at which a call must cost the same a message: within
// stateEven of each other, once what is fixed is set apart for the call itself.
var stateSizes = []int{10, 100, 1000, 10000}

const (
	stateEach  = 20000 // messages in each of pending and claimed; settled holds twice as many
	stateFixed = 240
	stateAll   = 4 * stateEach // all messages: a view of many of them may read each once
	stateEven  = 1.5
	stateFew   = 4 // messages, while the tables are small
)

// statePairs are claims: ids, and the tokens from the middle on.
const statePairs = `select array_agg(x.id) || array_agg(x.claim_token)
	from (select c.id, c.claim_token from outbox.claimed as c order by md5(c.id::text) limit $1) as x`

// stateSettle calls one of the functions that settle.
func stateSettle(how string, row int) stateCall {
	return stateCall{
		sql:  fmt.Sprintf(`select count(*) from outbox.%s(($1::bigint[])[:cardinality($1) / 2], ($1::bigint[])[cardinality($1) / 2 + 1:]) as x`, how),
		with: statePairs, row: row,
	}
}

// stateFailed calls a function that ends failed attempts, with more arguments.
func stateFailed(how, more string, row int) stateCall {
	c := stateSettle(how, row)
	c.sql = strings.Replace(c.sql, ":]) as x", ":], "+strings.ReplaceAll(more, "N", "array[cardinality($1) / 2]")+") as x", 1)
	return c
}

// stateKeys gives keys of messages that stand in any of these tables.
func stateKeys(tables ...string) string {
	var all []string
	for _, table := range tables {
		all = append(all, "select s.id from outbox."+table+" as s")
	}
	return `select array_agg(x.dispatch_key) from (select m.dispatch_key from (` + strings.Join(all, " union all ") + `) as s
		join outbox.message as m on m.id = s.id where m.namespace = 'big' order by md5(s.id::text) limit $1) as x`
}

// stateOne is a call for one message.
func stateOne(sql, with string, most int) stateCall {
	return stateCall{sql: sql, with: strings.Replace(with, "array_agg(x.dispatch_key)", "min(x.dispatch_key)", 1), fixed: most, sizes: []int{1}}
}

// stateByIndex are the settings that sweep reads views under.
const stateByIndex = `set local enable_seqscan = off; set local enable_hashjoin = off; set local enable_mergejoin = off;
	set local enable_sort = off; set local jit = off`

const stateNew = `select array_agg('new ' || n) from generate_series(1, $1) as n`

func stateBatch(with string, row int) stateCall {
	return stateCall{
		sql: `select count(*) from outbox.enqueue_batch(array_fill('big'::text, array[cardinality($1::text[])]),
			array_fill('q'::text, array[cardinality($1)]), $1, array_fill('x'::bytea, array[cardinality($1)])) as x`,
		with: with, row: row, sizes: []int{10, 1000},
	}
}

// stateBeside is a call beside 2,000 destinations in that state, those of the messages that are claimed among them.
func stateBeside(state string, call stateCall) stateCall {
	call.beside = fmt.Sprintf(`insert into outbox.destination (namespace, task_queue, state, held_since, held_until, changed_at, lifted_at)
		select 'cns' || n, 'q', '%[1]s', now(), case when '%[1]s' = 'held' then 'infinity'::timestamptz end, now() - interval '100 days', now() - interval '90 days'
		from generate_series(0, 1999) as n`, state)
	return call
}

func stateCalls() map[string]stateCall {
	return map[string]stateCall{
		"claim_fair":    {sql: `select count(*) from outbox.claim_fair('n', outbox.all_shards(), $1)`, with: `select $1::int`, row: 26, fixed: 400, sizes: []int{10, 1000}},
		"explain_claim": {sql: `select count(*) from outbox.explain_claim('n', outbox.all_shards(), $1)`, with: `select $1::int`, row: 26, fixed: 1000, sizes: []int{10, 1000}},
		"complete":      stateSettle("complete", 22),
		"complete, lost": {
			sql:  stateSettle("complete", 0).sql,
			with: strings.Replace(statePairs, "outbox.claimed as c", "(select s.id, 1 as claim_token from outbox.settled as s) as c", 1), row: 22,
		},
		"retry":                  stateSettle("retry", 26),
		"retry, delays":          stateFailed("retry", "array_fill('error'::text, N), array_fill('1 s'::interval, N)", 26),
		"fail":                   stateSettle("fail", 28),
		"fail, errors":           stateFailed("fail", "array_fill('error'::text, N)", 28),
		"release":                stateSettle("release", 22),
		"extend":                 stateSettle("extend", 36),
		"payloads":               stateSettle("payloads", 10),
		"fail_destination":       stateFailed("fail_destination", "array_fill('unreachable'::text, N), array_fill('error'::text, N)", 40),
		"fail_destination, busy": stateFailed("fail_destination", "array_fill('busy'::text, N), null, array_fill('1 h'::interval, N), array_fill(true, N)", 60),
		"complete, in trouble":   stateBeside("failing", stateSettle("complete", 22)),
		"fail_destination, held": stateBeside("held", stateFailed("fail_destination", "array_fill('unreachable'::text, N)", 60)),
		"claim_fair, held":       stateBeside("held", stateCall{sql: `select count(*) from outbox.claim_fair('n', outbox.all_shards(), $1)`, with: `select $1::int`, row: 30, fixed: 800, sizes: []int{10, 1000}}),
		"observe":                stateBeside("held", stateCall{sql: `select count(*) from outbox.observe(($1::text[]), array_fill('q'::text, array[cardinality($1::text[])]))`, with: `select array_agg('cns' || n) from generate_series(1, $1) as n`, row: 20, sizes: []int{10, 1000}}),
		"prune, destinations":    stateBeside("well", stateOne(`select outbox.prune('100 days', $1)`, `select $1::int`, 600)),
		"prune, holds": {
			sql: `select outbox.prune('100 days', $1)`, with: `select $1::int`, fixed: 1500, sizes: []int{1},
			beside: `insert into outbox.destination (namespace, task_queue, state, held_since, held_until, changed_at)
				select 'cns' || n, 'q', 'held', now(), now() - interval '2 days' - n * interval '1 s', now() from generate_series(0, 1999) as n`,
		},
		"purge, destinations": stateBeside("failing", stateOne(`select purged from outbox.purge('cns1', 10, 9223372036854775806 + $1)`, `select least($1, 1)::bigint`, 400)),
		"hold and lift":       stateBeside("held", stateOne(`select outbox.hold('cns' || $1::int, 'q'), outbox.lift('cns' || $1::int, 'q'), outbox.lift(null, 'q'), outbox.set_shared('q', true)`, `select $1::int`, 120)),
		"hold_events": {
			sql: `select count(*) from outbox.hold_events($1)`, with: `select $1::int`, row: 4, sizes: []int{10, 1000},
			beside: `insert into outbox.hold_event (at, event, task_queue, since) select now(), 'held', 'q', now() from generate_series(1, 1500);
				select setval('outbox.hold_event_edge', max(e.id) - 1100) from outbox.hold_event as e`,
		},
		"prune, events of holds": {
			sql: `select outbox.prune('100 days', $1)`, with: `select $1::int`, fixed: 2000, sizes: []int{1},
			beside: `insert into outbox.hold_event (at, event, namespace, task_queue, since) select now() - interval '2 days', 'held', n, 'q', now() from generate_series(1, 1500) as n`,
		},
		"begin_delivery": {
			sql:  `select count(*) from outbox.begin_delivery(($1::bigint[])[:cardinality($1) / 2], ($1::bigint[])[cardinality($1) / 2 + 1:], 1) as x`,
			with: statePairs, row: 30,
		},
		"rescue":                    {sql: `select count(*) from outbox.rescue($1)`, with: `select $1::int`, row: 20},
		"cancel":                    {sql: `select count(*) from outbox.cancel($1::text[])`, with: stateKeys("pending", "claimed"), row: 36},
		"cancel, settled":           {sql: `select count(*) from outbox.cancel($1::text[])`, with: stateKeys("settled"), row: 24},
		"cancel_namespace":          {sql: `select outbox.cancel_namespace('big', $1)`, with: `select $1::int`, row: 20, fixed: 3 * stateFixed},
		"cancel_namespace, claimed": {sql: `select outbox.cancel_namespace('cbig', $1)`, with: `select $1::int`, row: 20},
		"redrive, ids":              {sql: `select count(*) from outbox.redrive($1::bigint[])`, with: `select array_agg(x.id) from (select s.id from outbox.settled as s where s.outcome = 'failed' order by md5(s.id::text) limit $1) as x`, row: 22},
		"redrive, namespace":        {sql: `select outbox.redrive('big', $1)`, with: `select $1::int`, row: 20},
		"purge":                     {sql: `select purged from outbox.purge('big', $1)`, with: `select $1::int`, row: 100, fixed: 6 * stateFixed, sizes: []int{10, 1000}}, // and passes the pages of what is gone
		"purge, the end":            stateOne(`select purged from outbox.purge('big', 10, 9223372036854775806 + $1)`, `select least($1, 1)::bigint`, 300),
		"failed":                    {sql: `select count(*) from outbox.failed(max => $1)`, with: `select $1::int`, row: 20},
		"failed, oldest":            {sql: `select count(*) from outbox.failed(max => $1, newest => false, since => now() - interval '2 days', until => now())`, with: `select $1::int`, row: 20},
		"failed, namespace":         {sql: `select count(*) from outbox.failed('big', 'q', 'e', max => $1)`, with: `select $1::int`, row: 20},
		"failed, namespace, oldest": {sql: `select count(*) from outbox.failed('big', max => $1, newest => false)`, with: `select $1::int`, row: 20},
		"prune":                     {sql: `select outbox.prune('0', $1)`, with: `select $1::int`, row: 13, fixed: 4 * stateFixed},
		"prune, failed":             {sql: `select outbox.prune('1 h', $1, true)`, with: `select $1::int`, row: 13, fixed: 4 * stateFixed},
		"enqueue, a duplicate":      stateOne(`select outbox.enqueue('big', 'q', $1::text, '')`, stateKeys("pending"), 60),
		"enqueue":                   stateOne(`select outbox.enqueue('big', 'q', $1::text, '')`, `select 'new ' || $1::int`, 60),
		"enqueue_batch":             stateBatch(stateNew, 22),
		"enqueue_batch, again":      stateBatch(stateKeys("pending", "settled"), 22),
		"why, pending":              stateOne(`select count(*) from outbox.why($1::text)`, stateKeys("pending"), 150), // and walks to its namespace
		"why, claimed":              stateOne(`select count(*) from outbox.why($1::text)`, stateKeys("claimed"), 60),
		"why, settled":              stateOne(`select count(*) from outbox.why($1::text)`, stateKeys("settled"), 60),
		"messages by key":           {sql: `select count(m.*) from outbox.messages as m where m.dispatch_key = any ($1::text[])`, with: stateKeys("pending"), row: 60, sizes: []int{1}, view: "select"},
		"messages by keys":          {sql: `select count(m.*) from outbox.messages as m where m.dispatch_key = any ($1::text[])`, with: stateKeys("pending", "claimed", "settled"), row: 20, fixed: stateAll, sizes: []int{10, 1000}, view: "select"},
		"messages by ids":           {sql: `select count(m.*) from outbox.messages as m where m.id = any ($1::bigint[])`, with: `select array_agg(x.id) from (select m.id from outbox.message as m order by md5(m.id::text) limit $1) as x`, row: 20, fixed: stateAll, sizes: []int{10, 1000}, view: "select"},
		"namespaces":                {sql: `select count(n.*) from (select * from outbox.namespaces limit $1) as n`, with: `select $1::int`, row: 100, fixed: 3 * stateFixed, sizes: []int{1, 20}, view: stateByIndex},
		"survey_namespaces":         {sql: `select count(*) from outbox.survey_namespaces(size => $1, max_time => '1 h')`, with: `select $1::int`, row: 120, fixed: 2 * stateFixed, sizes: []int{1, 20}},
		"survey_namespaces, names":  {sql: `select count(*) from outbox.survey_namespaces(names => $1::text[])`, with: `select (array['big', 'cbig', 'none'])[:$1]`, row: 120, fixed: 2 * stateFixed, sizes: []int{1, 3}},
		"survey":                    stateOne(`select count(*) from outbox.survey() where $1::int > 0`, `select $1::int`, 1500),
		"hold_reasons":              {sql: `select count(*) from outbox.hold_reasons($1::text[])`, with: `select (array['big', 'ns2', 'none'])[:$1]`, row: 400, fixed: 3 * stateFixed, sizes: []int{1, 3}},
		"known_namespaces":          {sql: `select count(*) from outbox.known_namespaces(null, $1)`, with: `select $1::int`, row: 40, fixed: 2 * stateFixed, sizes: []int{1, 20}},
		"route_state":               stateOne(`select count(*) from outbox.route_state('big', least($1, 1)::int)`, `select $1::int`, 6000),
		"message_headers":           stateOne(`select count(*) from outbox.message_headers($1::text)`, stateKeys("pending"), 20),
		"quota":                     stateOne(`select outbox.quota($1::text)`, `select 'none ' || $1::int`, 60),
	}
}

// stateFill writes straight into the tables: each messages pending, each claimed, all with one
// token and their leases over, and twice as many settled: half of these failed, a day ago, some
// at each instant, and a quarter done and a quarter cancelled, a second ago. Half of all are of one namespace.
func stateFill(t *testing.T, conn *pgx.Conn, each int) {
	t.Helper()
	run(t, conn, `select setval('outbox.claim_token', nextval('outbox.claim_token') + 1)`)
	for i, into := range []string{
		`outbox.pending (visible_after, id, namespace, task_queue, shard, payload_bytes)
			select ` + planPast + `, m.id, m.namespace, m.task_queue, outbox.shard_of(m.dispatch_key, 16), 0 from m`,
		`outbox.claimed (id, namespace, task_queue, shard, visible_after, attempt, payload_bytes, claim_token, claimed_by, claimed_at, lease_until)
			select m.id, 'c' || m.namespace, m.task_queue, outbox.shard_of(m.dispatch_key, 16), now(), 1, 0, currval('outbox.claim_token'), 'n', now(), now() - interval '1 s' from m`,
		`outbox.settled (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
			select m.id, m.namespace, m.task_queue, outbox.shard_of(m.dispatch_key, 16), o.outcome, 1,
			       now() - case o.outcome when 'failed' then interval '1 day' - m.id / 20 * interval '1 ms' else interval '1 s' end, 'n'
			from m cross join lateral (select (array['done', 'failed', 'cancelled', 'failed'])[1 + (m.id / 2) % 4] as outcome) as o`,
	} {
		run(t, conn, fmt.Sprintf(`
			with m as (
			  insert into outbox.message (namespace, task_queue, dispatch_key, content_type, headers, payload)
			  select case when k %% 2 = 0 then 'big' else 'ns' || k %% 40 end, 'q', gen_random_uuid()::text, 'text/plain', '{}', ''
			  from generate_series(1, %d) as k
			  returning *)
			insert into %s`, each*(1+i/2), into))
	}
	run(t, conn, `insert into outbox.failure (id, at, attempt, node, error)
		select s.id, now(), 1, 'n', 'e' from outbox.settled as s where s.outcome = 'failed'`)
}

// stateEmpty takes all rows out again but one dead letter, which keeps its tables long.
func stateEmpty(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	for _, sql := range []string{
		`delete from outbox.pending`, `delete from outbox.claimed`,
		`delete from outbox.settled as s where s.id <> (select max(s.id) from outbox.settled as s)`,
		`delete from outbox.failure as f where f.id not in (select s.id from outbox.settled as s)`,
		`delete from outbox.message as m where m.id not in (select s.id from outbox.settled as s)`,
	} {
		run(t, conn, sql)
	}
}

// states are the states of the statistics: what is done before the sessions make their plans,
// and what once the tables are full.
var states = map[string][2]func(t *testing.T, conn *pgx.Conn){
	"never analysed": {},
	"analysed while empty, after use": {func(t *testing.T, conn *pgx.Conn) {
		stateFill(t, conn, stateEach)
		stateEmpty(t, conn)
		run(t, conn, `vacuum (analyze, truncate off)`)
	}},
	"vacuumed while empty": {func(t *testing.T, conn *pgx.Conn) {
		stateFill(t, conn, stateEach)
		stateEmpty(t, conn)
		run(t, conn, `vacuum`)
	}},
	"analysed, then emptied": {func(t *testing.T, conn *pgx.Conn) {
		stateFill(t, conn, 2*stateEach)
		run(t, conn, `analyze`)
		stateEmpty(t, conn)
	}},
	"grown a thousandfold": {func(t *testing.T, conn *pgx.Conn) {
		stateFill(t, conn, 4)
		run(t, conn, `analyze`)
	}},
	"analysed":              {nil, func(t *testing.T, conn *pgx.Conn) { run(t, conn, `analyze`) }},
	"analysed and vacuumed": {nil, func(t *testing.T, conn *pgx.Conn) { run(t, conn, `vacuum analyze`) }},
}

// TestPlanStates: in each state of the statistics, what a call costs follows what it is
// asked for, not what the tables hold (INV-14): in a session that made its plans when they
// held little, and in a new one.
func TestPlanStates(t *testing.T) {
	t.Parallel()
	for name, state := range states {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pg.New(t)
			calls := stateCalls()
			old := stateOpen(t, db, state, calls)
			fresh := stateWatch(t, db)
			for _, name := range stateOrder(calls) {
				call := calls[name]
				// A view is read by a plan of the session's own, which stays as it is until the tables are
				// analysed. Where they are, the plans inside functions were thrown away, too: both
				// sessions are alike.
				if call.view == "" && state[1] == nil {
					if err := call.judge(t, old); err != nil {
						t.Errorf("INV-14: %s, plans from when the tables were small: %v", name, err)
					}
				}
				if err := call.judge(t, fresh); err != nil {
					t.Errorf("INV-14: %s, new plans: %v", name, err)
				}
			}
		})
	}
}

// stateOrder is the order of the calls. A call that writes leaves dead rows behind, because it is
// rolled back, and later calls read past them. So the views come first, then the calls for
// few messages, and those that write to pending (from redrive on) behind those that read it in order.
func stateOrder(calls map[string]stateCall) []string {
	return slices.SortedFunc(maps.Keys(calls), func(a, b string) int {
		return cmp.Or(cmp.Compare(calls[b].view, calls[a].view), cmp.Compare(len(calls[b].sizes), len(calls[a].sizes)), cmp.Compare(a, b))
	})
}

// stateSession is a session whose plans are watched.
type stateSession struct {
	conn  *pgx.Conn
	seen  *[]planStatement
	other *pgx.Conn      // looks for what the calls work on, by plans that no statistics make slow
	found map[string]any // what it has found
}

func stateWatch(t *testing.T, db *pgtest.DB) stateSession {
	t.Helper()
	conn, seen := planWatch(t, db)
	run(t, conn, `set auto_explain.log_analyze = on; set auto_explain.log_buffers = on; set auto_explain.log_timing = off`)
	return stateSession{conn, seen, db.Connect(t, pgtest.Param("enable_nestloop", "off")), map[string]any{}}
}

// stateOpen brings a database into a state, and returns a session that has made its plans
// while there was little in it.
func stateOpen(t *testing.T, db *pgtest.DB, state [2]func(t *testing.T, conn *pgx.Conn), calls map[string]stateCall) stateSession {
	t.Helper()
	conn := db.Connect(t)
	planSettle(t, conn)
	run(t, conn, `select outbox.configure('{"count_cap": 10, "default_quota": 100000}')`)
	if state[0] != nil {
		state[0](t, conn)
	}
	stateFill(t, conn, stateFew)
	old := stateWatch(t, db)
	for _, call := range calls {
		for range 7 { // the plans of the first five calls are thrown away
			call.do(t, old, stateFew)
		}
	}
	clear(old.found)
	stateFill(t, conn, stateEach)
	if state[1] != nil {
		state[1](t, conn)
	}
	return old
}

// do makes the call in a transaction that is rolled back.
func (c stateCall) do(t *testing.T, s stateSession, n int) {
	t.Helper()
	key := fmt.Sprint(n, " ", c.with)
	if s.found[key] == nil {
		s.found[key] = one[any](t, s.other, c.with, n)
	}
	tx := begin(t, s.conn)
	run(t, tx, cmp.Or(c.view, "select"))
	beside := c.beside
	if n == stateFew { // else a hundred thousand dead rows would be in the way of all that follows
		beside = strings.ReplaceAll(beside, "1999", "3")
	}
	run(t, tx, cmp.Or(beside, "select"))
	*s.seen = nil
	run(t, tx, c.sql, s.found[key])
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// judge says where the call costs too much, or more a message at one number of messages than
// at another.
func (c stateCall) judge(t *testing.T, s stateSession) error {
	t.Helper()
	sizes, fixed := c.sizes, cmp.Or(c.fixed, stateFixed)
	if sizes == nil {
		sizes = stateSizes
	}
	var buffers, rows []float64
	for _, n := range sizes {
		cost := c.cost(t, s, n)
		if cost.buffers > fixed+n*c.row || cost.rows > fixed+n*c.row {
			return fmt.Errorf("%d messages: %d buffers and %d rows, want at most %d; most rows in %s",
				n, cost.buffers, cost.rows, fixed+n*c.row, cost.most)
		}
		buffers, rows = append(buffers, float64(cost.buffers)), append(rows, float64(cost.rows))
	}
	if c.sizes != nil {
		return nil
	}
	return errors.Join(stateUneven("buffers", fixed, buffers), stateUneven("rows", fixed, rows))
}

// stateUneven says where the cost a message differs too much between the stateSizes.
func stateUneven(what string, fixed int, cost []float64) error {
	least := math.Inf(1)
	for i, n := range stateSizes {
		least = min(least, cost[i]/float64(n))
	}
	for i, n := range stateSizes {
		if most := float64(fixed) + stateEven*least*float64(n); cost[i] > most {
			return fmt.Errorf("%v %s for %v messages: %v for %d, want at most %.0f", cost, what, stateSizes, cost[i], n, most)
		}
	}
	return nil
}

// stateCost is what a call costs.
type stateCost struct {
	buffers, rows int
	most          string // the statement that reads most rows
}

// cost makes the call, the second time with an eye on its plans: catalogs and plans are there
// then, and nobody comes past dead rows for the first time.
func (c stateCall) cost(t *testing.T, s stateSession, n int) stateCost {
	t.Helper()
	run(t, s.conn, `set auto_explain.log_min_duration = -1`)
	c.do(t, s, n)
	run(t, s.conn, `set auto_explain.log_min_duration = 0`)
	c.do(t, s, n)
	var cost stateCost
	most := -1
	for _, p := range *s.seen {
		if p.where == "the call itself" {
			cost.buffers = max(cost.buffers, p.Plan.Hit+p.Plan.Read)
		}
		r := p.Plan.work()
		if cost.rows += r; r > most {
			most, cost.most = r, fmt.Sprintf("%s (%d):\n%s", p.where, r, p.Query)
		}
	}
	return cost
}

// work is how many rows a plan reads or throws away. Locks do not count: they are those of the
// whole server, which runs other tests too, and no table's.
func (n planNode) work() int {
	if n.Function == "pg_lock_status" {
		return 0
	}
	rows := n.Removed + n.Unjoined + n.Rechecked
	if strings.HasSuffix(n.Type, "Scan") || n.Type == "Materialize" {
		rows += n.Rows
	}
	all := int(rows * n.Loops)
	for _, below := range n.Plans {
		all += below.work()
	}
	return all
}
