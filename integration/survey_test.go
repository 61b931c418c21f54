package integration

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// surveyRow is a row of survey_namespaces.
type surveyRow struct {
	Namespace   string     `db:"namespace"`
	OldestDueAt *time.Time `db:"oldest_due_at"`
	Due         int        `db:"due"`
	Unripe      int        `db:"unripe"`
	Claimed     int        `db:"claimed"`
	Failed      int        `db:"failed"`
	Quota       int        `db:"quota"`
	Strict      bool       `db:"strict"`
	Paused      bool       `db:"paused"`
	Partial     bool       `db:"partial"`
	FreeDueAt   *time.Time `db:"free_due_at"`
}

func (r surveyRow) String() string {
	at, free := "never", "never"
	if r.OldestDueAt != nil {
		at = r.OldestDueAt.UTC().Format(time.RFC3339Nano)
	}
	if r.FreeDueAt != nil {
		free = r.FreeDueAt.UTC().Format(time.RFC3339Nano)
	}
	return fmt.Sprintf("%s: due %d since %s, free since %s, unripe %d, claimed %d, failed %d, quota %d %v, paused %v, partial %v",
		r.Namespace, r.Due, at, free, r.Unripe, r.Claimed, r.Failed, r.Quota, r.Strict, r.Paused, r.Partial)
}

func surveyRows(t testing.TB, q querier, sql string, args ...any) []surveyRow {
	t.Helper()
	rows, _ := q.Query(t.Context(), sql, args...)
	got, err := pgx.CollectRows(rows, pgx.RowToStructByName[surveyRow])
	if err != nil {
		t.Fatalf("%v in: %s", err, sql)
	}
	return got
}

const surveyColumns = "s.namespace, s.oldest_due_at, s.due, s.unripe, s.claimed, s.failed, s.quota, s.strict, s.paused, s.partial, s.free_due_at"

// surveyAround walks once around by pages of a size, each of which ends after one namespace where slow.
func surveyAround(t testing.TB, q querier, size int, slow bool) (all []surveyRow) {
	t.Helper()
	maxTime := "1 h"
	if slow {
		maxTime = "0"
	}
	var after *string
	for {
		page := surveyRows(t, q, "select "+surveyColumns+" from outbox.survey_namespaces($1, $2, max_time => $3::text::interval) as s", after, size, maxTime)
		if len(page) == 0 {
			return all
		}
		if len(page) > size || slow && len(page) > 1 {
			t.Fatalf("a page of %d has %d rows", size, len(page))
		}
		all = append(all, page...)
		after = &page[len(page)-1].Namespace
	}
}

// surveyPlain is what survey_namespaces must say, by plain counts of the tables; caps are those of count_cap.
const surveyPlain = `
	select n.namespace, case when p.oldest <= clock_timestamp() then p.oldest end as oldest_due_at,
	       least(p.due, g.count_cap) as due, least(p.unripe, g.count_cap) as unripe,
	       (select least(count(*), g.count_cap) from outbox.claimed as c where c.namespace = n.namespace) as claimed,
	       (select least(count(*), g.count_cap) from outbox.settled as s where s.namespace = n.namespace and s.outcome = 'failed') as failed,
	       coalesce(q.quota, g.default_quota) as quota, coalesce(q.strict, false) as strict,
	       exists (select from outbox.pause as u where u.task_queue is null and (u.namespace = n.namespace or u.namespace is null)) as paused,
	       p.lanes >= g.count_cap and p.ripe >= g.count_cap as partial,
	       case when p.free <= clock_timestamp() then p.free end as free_due_at
	from (select distinct p.namespace from outbox.pending as p) as n
	cross join outbox.config as g
	cross join lateral (
	  select min(p.visible_after) as oldest,
	         min(p.visible_after) filter (where not p.ripe or not exists (
	           select from outbox.destination as d
	           where d.state = 'held' and d.task_queue = p.task_queue and coalesce(d.namespace = p.namespace, true))) as free, count(*) filter (where p.visible_after <= clock_timestamp()) as due,
	         count(*) filter (where p.visible_after > clock_timestamp()) as unripe, count(*) filter (where p.ripe) as ripe,
	         count(distinct (p.task_queue, p.shard)) filter (where p.ripe) as lanes
	  from outbox.pending as p where p.namespace = n.namespace
	) as p
	left join outbox.namespace as q on q.namespace = n.namespace`

// surveyFill enqueues n messages of up to 30 namespaces: due since hours, due and not ripe yet, or
// delayed by a day, and settles some.
func surveyFill(t testing.TB, db *pgtest.DB, random *rand.Rand, n int) {
	t.Helper()
	for i := range n {
		ns, queue := fmt.Sprint("t", random.IntN(30)), fmt.Sprint("q", random.IntN(4))
		switch random.IntN(6) {
		case 0:
			run(t, db.Pool, "select outbox.enqueue($1, $2, $3, '', delay => '1 day')", ns, queue, fmt.Sprint(i))
		case 1: // has come due, and no claim has made it ripe
			run(t, db.Pool, "select outbox.enqueue($1, $2, $3, '', delay => '1 day')", ns, queue, fmt.Sprint(i))
			run(t, db.Pool, `update outbox.pending as p set visible_after = now() - $2::int * interval '1 min'
				from outbox.message as m where m.id = p.id and m.dispatch_key = $1`, fmt.Sprint(i), random.IntN(1000))
		default:
			run(t, db.Pool, "select outbox.enqueue($1, $2, $3, '')", ns, queue, fmt.Sprint(i))
			run(t, db.Pool, `update outbox.pending as p set visible_after = now() - $2::int * interval '1 min'
				from outbox.message as m where m.id = p.id and m.dispatch_key = $1`, fmt.Sprint(i), random.IntN(1000))
		}
	}
}

// survey_namespaces says of each namespace what plain counts of the tables do, each once, on pages of
// whatever size and however early they end; and of a namespace that has nothing pending where it is asked for.
func TestSurveyNamespaces(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 1))
			db := pg.New(t)
			run(t, db.Pool, `select outbox.configure(jsonb_build_object('count_cap', $1::int))`, []int{2, 7, 20, 1000}[seed])
			surveyFill(t, db, random, 300)
			for i, row := range claim(t, db.Pool, "n", 40) {
				if i%3 == 0 {
					run(t, db.Pool, "select outbox.fail(array[$1::bigint], array[$2::bigint])", row.ID, row.Token)
				}
			}
			run(t, db.Pool, `select outbox.set_quota('t1', 7, true), outbox.set_quota('t2', 0), outbox.pause('t3'), outbox.pause('t4', 'q1')`)
			run(t, db.Pool, `select outbox.hold(n, q) from unnest(array['t5', 't6', 't6', 't6', 't6', 't7', null]::text[], array['q1', 'q0', 'q1', 'q2', 'q3', 'q0', 'q2']) as h(n, q) where $1 < 3 or n is not null`, seed)
			want := surveyRows(t, db.Pool, surveyPlain+" order by outbox.ring(n.namespace), n.namespace")
			// Of more lanes than count_cap only those in front count: which, the plain query does not know.
			same := func(got, want surveyRow) bool {
				if got.Partial && got.OldestDueAt != nil && !got.OldestDueAt.Before(*want.OldestDueAt) {
					got.OldestDueAt = want.OldestDueAt
				}
				if got.Partial && got.FreeDueAt != nil && want.FreeDueAt != nil && !got.FreeDueAt.Before(*want.FreeDueAt) || got.Partial && got.FreeDueAt == nil {
					got.FreeDueAt = want.FreeDueAt
				}
				return got.String() == want.String()
			}
			for _, size := range []int{1, 3, 1000} {
				if got := surveyAround(t, db.Pool, size, size == 3); !slices.EqualFunc(got, want, same) {
					t.Errorf("pages of %d:\n%v\nwant\n%v", size, got, want)
				}
			}
			names := []string{"none", "t1", "t0", "t1"}
			got := surveyRows(t, db.Pool, "select "+surveyColumns+" from outbox.survey_namespaces(names => $1) as s", names)
			if len(got) != 4 || got[0].String() != "none: due 0 since never, free since never, unripe 0, claimed 0, failed 0, quota 256 false, paused false, partial false" {
				t.Fatalf("of %q it says %v", names, got)
			}
			for i, row := range got[1:] {
				at := slices.IndexFunc(want, func(w surveyRow) bool { return w.Namespace == names[i+1] })
				if at < 0 || !same(row, want[at]) {
					t.Errorf("of %s it says %v", names[i+1], row)
				}
			}
		})
	}
}

// What is paused with all is; an empty outbox has no namespaces; bad arguments are told.
func TestSurveyNamespacesArguments(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	if got := surveyAround(t, db.Pool, 10, false); len(got) > 0 {
		t.Errorf("an empty outbox has %v", got)
	}
	put(t, db.Pool, "n", "q", "k")
	run(t, db.Pool, "select outbox.pause(everything => true)")
	if got := surveyAround(t, db.Pool, 10, false); len(got) != 1 || !got[0].Paused || got[0].Due != 1 {
		t.Errorf("it says %v", got)
	}
	for call, part := range map[string]string{
		"size => 0": "size", "size => null": "size", "max_time => null": "max_time", "after => ''": "after", "names => array[null::text]": "names",
	} {
		_, err := db.Pool.Exec(t.Context(), "select outbox.survey_namespaces("+call+")")
		wantError(t, err, "OB001", "survey_namespaces", part)
	}
}

// A page costs no more where 200,000 namespaces wait, nor where one of them has a large backlog, another
// one very many failed messages, and nothing was ever analysed (INV-14).
func TestSurveyNamespacesIsBounded(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	run(t, conn, `set synchronous_commit = off`)
	const most = 2000 // for 20 namespaces
	page := func(what, after string) {
		t.Helper()
		sql := fmt.Sprintf("select count(*) from outbox.survey_namespaces(after => nullif('%s', ''), size => 20, max_time => '1 h')", after)
		if buffers := planBuffers(t, conn, sql); buffers > most {
			t.Errorf("INV-14: %s, a page touches %d buffers, want %d at most", what, buffers, most)
		} else {
			t.Logf("%s: %d buffers", what, buffers)
		}
	}
	run(t, conn, longBacklog(20, 1, 1, 1))
	page("of 20 namespaces", "")
	run(t, db.Admin(t), "vacuum analyze")
	run(t, conn, `
		with m as (
		  insert into outbox.message (namespace, task_queue, dispatch_key, content_type, headers, payload)
		  select 'many' || k, 'q', 'many' || k, 'text/plain', '{}', '' from generate_series(1, 200000) as k returning *)
		insert into outbox.pending (visible_after, id, namespace, task_queue, shard, payload_bytes, ripe)
		select now(), m.id, m.namespace, m.task_queue, outbox.shard_of(m.dispatch_key, 16), 0, m.id % 2 = 0 from m`)
	page("of 200,000 namespaces", "")
	first := one[string](t, conn, "select s.namespace from outbox.survey_namespaces(size => 1) as s")
	for _, into := range []string{
		`outbox.pending (visible_after, id, namespace, task_queue, shard, payload_bytes) select now(), m.id, m.namespace, m.task_queue, outbox.shard_of(m.dispatch_key, 16), 0 from m`,
		`outbox.settled (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by) select m.id, m.namespace, m.task_queue, 0, 'failed', 1, now(), 'n' from m`,
	} {
		run(t, conn, `
			with m as (
			  insert into outbox.message (namespace, task_queue, dispatch_key, content_type, headers, payload)
			  select $1, 'q', gen_random_uuid()::text, 'text/plain', '{}', '' from generate_series(1, 50000) as k returning *)
			insert into `+into, first)
	}
	page("with a backlog and failed messages in front", "")
	page("behind that", first)
	run(t, db.Admin(t), "analyze")
	page("analysed", "")
}

// surveyWhole is survey()'s row, as JSON's text without spaces, of what is not 0.
const surveyWhole = `select coalesce(string_agg(x.key || '=' || x.value, ' ' order by x.key), '')
	from outbox.survey() as s cross join lateral jsonb_each_text(to_jsonb(s)) as x where x.value <> '0'`

// survey() counts what there is; above ten times count_cap it estimates, and never says less than it has counted.
func TestSurvey(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	want := func(what, want string) {
		t.Helper()
		if got := one[string](t, conn, surveyWhole); got != want {
			t.Errorf("%s, it says %q, want %q", what, got, want)
		}
	}
	want("without messages and nodes", "exact_to=10000 shard_count=16 unowned=16")
	run(t, conn, `select outbox.heartbeat('n', '{0,1,2}')`)
	run(t, conn, longBacklog(3, 2, 5, 1)) // 30
	run(t, conn, `select outbox.enqueue('later', 'q', 'later ' || n, '', delay => '1 day') from generate_series(1, 4) as n`)
	run(t, conn, `update outbox.pending set visible_after = now() - interval '1 min' where id = (select min(p.id) from outbox.pending as p where not p.ripe)`)
	want("before claims", "due=31 exact_to=10000 shard_count=16 unowned=13 unripe=3")
	rows := claim(t, conn, "n", 12)
	for _, row := range rows[:5] {
		run(t, conn, "select outbox.fail(array[$1::bigint], array[$2::bigint])", row.ID, row.Token)
	}
	run(t, conn, "update outbox.claimed set lease_until = now() - interval '1 s' where id = $1", rows[11].ID)
	run(t, conn, `select outbox.pause('ns1'), outbox.pause('ns2', 'q1'), outbox.pause('ns3', until => clock_timestamp() + interval '1 h')`)
	run(t, conn, `update outbox.pause set until = now() - interval '1 s' where namespace = 'ns2'`)
	run(t, conn, `insert into outbox.destination (changed_at, namespace, task_queue, state, held_until)
		values (now(), 'a', 'q', 'held', now()), (now(), null, 'q2', 'recovering', null), (now(), null, 'q', 'held', now()), (now(), 'b', 'q', 'held', 'infinity'), (now(), 'c', 'q', 'failing', null), (now(), 'd', 'q', 'recovering', null), (now(), 'e', 'q', 'well', null)`)
	want("with some of everything", "claimed=7 due=19 exact_to=10000 expired=1 failed=5 failing=1 held=3 held_of_all=1 pauses=2 recovering=2 shard_count=16 unowned=13 unripe=3")

	run(t, conn, `select outbox.configure('{"count_cap": 1}')`)
	for _, column := range []string{"due", "claimed"} { // exact to 10
		if n, least := one[int64](t, conn, "select s."+column+" from outbox.survey() as s"), int64(7); n < least {
			t.Errorf("with a small count_cap, %s is %d, want %d or more", column, n, least)
		}
	}
	// What this session has counted for the statistics would come late, and count twice.
	flushed := func() { run(t, conn, "select pg_stat_force_next_flush()"); run(t, conn, "select 1") }
	flushed()
	run(t, db.Admin(t), "vacuum analyze")
	await(t, conn, "select s.due = 19 and s.claimed = 7 from outbox.survey() as s")
	run(t, conn, `select outbox.enqueue('later', 'q', 'much later ' || n, '', delay => '1 day') from generate_series(1, 40) as n`)
	flushed()
	run(t, db.Admin(t), "vacuum analyze")
	await(t, conn, "select s.due = 19 and s.unripe = 43 from outbox.survey() as s")
}

// survey() reads no more where very much waits, is claimed and has failed; nor where very many dead rows stand
// behind a transaction that holds vacuum back (INV-14).
func TestSurveyIsBounded(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	run(t, conn, `set synchronous_commit = off; select outbox.configure('{"count_cap": 100}')`)
	const most = 12000 // of 4,000 rows at most a few buffers each, where nothing was vacuumed
	stateFill(t, conn, 30000)
	look := func(what string) {
		t.Helper()
		if buffers := planBuffers(t, conn, "select count(*) from outbox.survey()"); buffers > most {
			t.Errorf("INV-14: %s, it touches %d buffers, want %d at most", what, buffers, most)
		} else {
			t.Logf("%s: %d buffers", what, buffers)
		}
	}
	look("never analysed")
	run(t, db.Admin(t), "vacuum analyze")
	look("analysed")
	holder := beginAt(t, db.Connect(t), pgx.RepeatableRead)
	run(t, holder, "select count(*) from outbox.config")
	run(t, conn, "delete from outbox.pending; delete from outbox.claimed")
	await(t, conn, "select pg_stat_get_dead_tuples('outbox.pending'::regclass) >= 30000 and pg_stat_get_dead_tuples('outbox.claimed'::regclass) >= 30000")
	look("behind a pinned horizon")
	if n := one[int64](t, conn, "select s.due + s.unripe + s.claimed from outbox.survey() as s"); n > 1000 {
		t.Errorf("it estimates %d messages, and all are gone", n)
	}
}

// horizon() tells of the oldest transaction that holds vacuum back, of sessions of its role, and, as a
// member of pg_monitor, of all.
func TestHorizon(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	role := db.Role(t)
	run(t, db.Pool, "select outbox.grant_worker($1)", role.Name)
	conn := db.Connect(t, pgtest.As(role))
	sql := "select s.sees_all, s.age > interval '0' from outbox.horizon() as s"
	look := func() (all bool, held *bool) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), sql).Scan(&all, &held); err != nil {
			t.Fatal(err)
		}
		return all, held
	}
	holder := beginAt(t, db.Connect(t), pgx.RepeatableRead)
	run(t, holder, "select count(*) from outbox.config")
	if all, held := look(); all || held != nil {
		t.Errorf("a role without rights is told: sees all %v, held %v", all, held)
	}
	run(t, db.Admin(t), "grant pg_monitor to "+role.Name)
	if all, held := look(); !all || held == nil || !*held {
		t.Errorf("a member of pg_monitor is told: sees all %v, held %v", all, held)
	}
}
