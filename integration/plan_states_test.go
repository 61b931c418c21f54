package integration

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// stateCall is a call that works on a given number of messages in tables that hold many
// more, and whose cost must follow what it is asked for, whatever the statistics say.
type stateCall struct {
	sql   string // $1 is what with gives
	with  string // gives one value, for the number of messages $1
	row   int    // most buffers, and most rows read or thrown away, a message
	fixed int    // and besides, whatever the number; 0: stateFixed
	sizes []int  // numbers of messages; nil: 10 and 1,000
	view  string // of a view, which has no settings of its own: those that it is read under
}

const (
	stateEach  = 4000 // messages in each of pending, claimed and settled
	stateFixed = 200
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
		with: with, row: row,
	}
}

func stateCalls() map[string]stateCall {
	return map[string]stateCall{
		"claim_fair":    {sql: `select count(*) from outbox.claim_fair('n', outbox.all_shards(), $1)`, with: `select $1::int`, row: 26, fixed: 400},
		"explain_claim": {sql: `select count(*) from outbox.explain_claim('n', outbox.all_shards(), $1)`, with: `select $1::int`, row: 26, fixed: 1000},
		"complete":      stateSettle("complete", 22),
		"retry":         stateSettle("retry", 26),
		"fail":          stateSettle("fail", 28),
		"release":       stateSettle("release", 22),
		"extend":        stateSettle("extend", 36),
		"payloads":      stateSettle("payloads", 10),
		"begin_delivery": {
			sql:  `select count(*) from outbox.begin_delivery(($1::bigint[])[:cardinality($1) / 2], ($1::bigint[])[cardinality($1) / 2 + 1:], 1) as x`,
			with: statePairs, row: 30,
		},
		"rescue":               {sql: `select count(*) from outbox.rescue($1)`, with: `select $1::int`, row: 20},
		"cancel":               {sql: `select count(*) from outbox.cancel($1::text[])`, with: stateKeys("pending", "claimed"), row: 36},
		"cancel, settled":      {sql: `select count(*) from outbox.cancel($1::text[])`, with: stateKeys("settled"), row: 24},
		"cancel_namespace":     {sql: `select outbox.cancel_namespace('big', $1)`, with: `select $1::int`, row: 20},
		"redrive, ids":         {sql: `select count(*) from outbox.redrive($1::bigint[])`, with: `select array_agg(x.id) from (select s.id from outbox.settled as s where s.outcome = 'failed' order by md5(s.id::text) limit $1) as x`, row: 22},
		"redrive, namespace":   {sql: `select outbox.redrive('big', $1)`, with: `select $1::int`, row: 15},
		"prune":                {sql: `select outbox.prune('0', $1)`, with: `select $1::int`, row: 13},
		"prune, failed":        {sql: `select outbox.prune('0', $1, true)`, with: `select $1::int`, row: 13},
		"enqueue, a duplicate": stateOne(`select outbox.enqueue('big', 'q', $1::text, '')`, stateKeys("pending"), 60),
		"enqueue":              stateOne(`select outbox.enqueue('big', 'q', $1::text, '')`, `select 'new ' || $1::int`, 60),
		"enqueue_batch":        stateBatch(stateNew, 22),
		"enqueue_batch, again": stateBatch(stateKeys("pending", "settled"), 22),
		"why, pending":         stateOne(`select count(*) from outbox.why($1::text)`, stateKeys("pending"), 60),
		"why, claimed":         stateOne(`select count(*) from outbox.why($1::text)`, stateKeys("claimed"), 60),
		"why, settled":         stateOne(`select count(*) from outbox.why($1::text)`, stateKeys("settled"), 60),
		"messages by key":      {sql: `select count(m.*) from outbox.messages as m where m.dispatch_key = any ($1::text[])`, with: stateKeys("pending"), row: 60, sizes: []int{1}, view: "select"},
		"messages by keys":     {sql: `select count(m.*) from outbox.messages as m where m.dispatch_key = any ($1::text[])`, with: stateKeys("pending", "claimed", "settled"), row: 20, view: "select"},
		"messages by ids":      {sql: `select count(m.*) from outbox.messages as m where m.id = any ($1::bigint[])`, with: `select array_agg(x.id) from (select m.id from outbox.message as m order by md5(m.id::text) limit $1) as x`, row: 20, view: "select"},
		"namespaces":           {sql: `select count(n.*) from (select * from outbox.namespaces limit $1) as n`, with: `select $1::int`, row: 100, sizes: []int{1, 20}, view: stateByIndex},
		"quota":                stateOne(`select outbox.quota($1::text)`, `select 'none ' || $1::int`, 60),
	}
}

// stateFill writes straight into the tables: each messages pending, each claimed, all with one
// token and their leases over, and each settled, a third by each outcome. Half of them are
// of one namespace.
func stateFill(t *testing.T, conn *pgx.Conn, each int) {
	t.Helper()
	run(t, conn, `select setval('outbox.claim_token', nextval('outbox.claim_token') + 1)`)
	for _, into := range []string{
		`outbox.pending (visible_after, id, namespace, task_queue, shard, payload_bytes)
			select ` + planPast + `, m.id, m.namespace, m.task_queue, outbox.shard_of(m.dispatch_key, 16), 0 from m`,
		`outbox.claimed (id, namespace, task_queue, shard, visible_after, attempt, payload_bytes, claim_token, claimed_by, claimed_at, lease_until)
			select m.id, 'c' || m.namespace, m.task_queue, outbox.shard_of(m.dispatch_key, 16), now(), 1, 0, currval('outbox.claim_token'), 'n', now(), now() - interval '1 s' from m`,
		`outbox.settled (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
			select m.id, m.namespace, m.task_queue, outbox.shard_of(m.dispatch_key, 16), (array['done', 'failed', 'cancelled'])[1 + (m.id / 2) % 3], 1, now() - interval '1 s', 'n' from m`,
	} {
		run(t, conn, fmt.Sprintf(`
			with m as (
			  insert into outbox.message (namespace, task_queue, dispatch_key, content_type, headers, payload)
			  select case when k %% 2 = 0 then 'big' else 'ns' || k %% 40 end, 'q', gen_random_uuid()::text, 'text/plain', '{}', ''
			  from generate_series(1, %d) as k
			  returning *)
			insert into %s`, each, into))
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
			old := stateOpen(t, db, state)
			for name, call := range stateCalls() {
				if call.view != "" { // a plan of the session's own stays as it is until the tables are analysed
					continue
				}
				if err := call.judge(t, old); err != nil {
					t.Errorf("INV-14: %s, plans from when the tables were small: %v", name, err)
				}
			}
			fresh := stateWatch(t, db)
			for name, call := range stateCalls() {
				if err := call.judge(t, fresh); err != nil {
					t.Errorf("INV-14: %s, new plans: %v", name, err)
				}
			}
		})
	}
}

// stateSession is a session whose plans are watched.
type stateSession struct {
	conn  *pgx.Conn
	seen  *[]planStatement
	other *pgx.Conn // looks for what the calls work on, by plans that no statistics make slow
}

func stateWatch(t *testing.T, db *pgtest.DB) stateSession {
	t.Helper()
	conn, seen := planWatch(t, db)
	run(t, conn, `set auto_explain.log_analyze = on; set auto_explain.log_buffers = on; set auto_explain.log_timing = off`)
	return stateSession{conn, seen, db.Connect(t, pgtest.Param("enable_nestloop", "off"))}
}

// stateOpen brings a database into a state, and returns a session that has made its plans
// while there was little in it.
func stateOpen(t *testing.T, db *pgtest.DB, state [2]func(t *testing.T, conn *pgx.Conn)) stateSession {
	t.Helper()
	conn := db.Connect(t)
	planSettle(t, conn)
	run(t, conn, `select outbox.configure('{"count_cap": 10, "default_quota": 100000}')`)
	if state[0] != nil {
		state[0](t, conn)
	}
	stateFill(t, conn, 4)
	old := stateWatch(t, db)
	for _, call := range stateCalls() {
		for range 7 { // the plans of the first five calls are thrown away
			call.do(t, old, 4)
		}
	}
	stateFill(t, conn, stateEach)
	if state[1] != nil {
		state[1](t, conn)
	}
	return old
}

// do makes the call in a transaction that is rolled back.
func (c stateCall) do(t *testing.T, s stateSession, n int) {
	t.Helper()
	with := one[any](t, s.other, c.with, n)
	tx := begin(t, s.conn)
	run(t, tx, cmp.Or(c.view, "select"))
	*s.seen = nil
	run(t, tx, c.sql, with)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// judge says where the call costs too much.
func (c stateCall) judge(t *testing.T, s stateSession) error {
	t.Helper()
	sizes, fixed := c.sizes, c.fixed
	if sizes == nil {
		sizes = []int{10, 1000}
	}
	if fixed == 0 {
		fixed = stateFixed
	}
	for _, n := range sizes {
		for range 2 { // the second time, catalogs and plans are there
			c.do(t, s, n)
		}
		buffers, rows := 0, 0
		var worst planStatement
		worstRows := -1
		for _, p := range *s.seen {
			if p.where == "the call itself" {
				buffers = max(buffers, p.Plan.Hit+p.Plan.Read)
			}
			r := p.Plan.work()
			if rows += r; r > worstRows {
				worst, worstRows = p, r
			}
		}
		if limit := fixed + n*c.row; buffers > limit || rows > limit {
			return fmt.Errorf("%d messages: %d buffers and %d rows, want at most %d; most rows (%d) in %s:\n%s",
				n, buffers, rows, limit, worstRows, worst.where, worst.Query)
		}
	}
	return nil
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
