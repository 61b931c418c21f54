package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// rivals measures reads that are fair to tenants, each from the same backlog in a database
// of its own, in turn: claim_fair, pgmq's fair read, and two that users write by hand.
func rivals(ctx context.Context, l *lab) error {
	for i, c := range l.size.skews {
		readers, err := l.openReaders(ctx, c, i == 0)
		if err != nil {
			return err
		}
		if err := l.race(ctx, c, readers); err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
		for _, r := range readers {
			r.client.Close()
			if err := l.drop(ctx, r.db); err != nil {
				return err
			}
		}
	}
	return nil
}

// skew is a backlog of which one tenant has much, enqueued before the messages of the others, who
// take turns.
type skew struct {
	rows   int
	heavy  int     // messages of the one
	others int     // tenants
	goal   float64 // how many times as long as claim_fair pgmq's fair read should take; 0: none
}

func (c skew) String() string {
	share := fmt.Sprintf("%g %%", float64(c.heavy)*100/float64(c.rows))
	return fmt.Sprintf("backlog of %s, one tenant has %s, %s others", count(c.rows), share, count(c.others))
}

// rival is a way to read fairly. It is used by plain statements, each a transaction.
type rival struct {
	name, about string
	install     func(ctx context.Context, l *lab, name string) (*database, error) // where it is absent the error is an absence
	fill        func(ctx context.Context, db *database, c skew) error
	readSQL     string // reads $1 messages: id, token, tenant, payload
	settleSQL   string // settles those with the ids $1, and the tokens $2 where tokens says so; gives their number
	tokens      bool
	fewer       bool // a read may bring fewer messages than it asks for while there are more
}

const (
	pgmqFair  = "pgmq.read_grouped_rr"
	rowNumber = "row_number() by hand"
	eachOne   = "a query a tenant by hand"
)

func allRivals() []rival {
	return []rival{
		{
			name: fair, about: "one node that owns all shards; quotas that cap nothing; settled by complete, which keeps the messages",
			install: func(ctx context.Context, l *lab, name string) (*database, error) { return l.outbox(ctx, name) },
			fill: func(ctx context.Context, db *database, c skew) error {
				if _, err := db.write(ctx, backlog{group: flood, rows: c.heavy, payload: floodBytes}); err != nil {
					return err
				}
				_, err := db.write(ctx, backlog{to: c.others, rows: c.rows - c.heavy, payload: floodBytes})
				return err
			},
			readSQL: `select c.id, c.claim_token, c.namespace, c.payload
				from outbox.claim_fair('node-' || pg_backend_pid(), (select outbox.all_shards()), $1::int) as c`,
			settleSQL: `select count(*) from outbox.complete($1::bigint[], $2::bigint[])`, tokens: true,
		},
		{
			name: pgmqFair, about: "its SQL-only installation; a logged queue with the FIFO index that its documentation recommends; the tenant " +
				"is the group; settled by delete",
			install: installPgmqFair, fill: fillPgmqFair,
			readSQL:   `select r.msg_id, 0::bigint, r.headers->>'x-pgmq-group', r.message from pgmq.read_grouped_rr('bench', 60, $1::int) as r`,
			settleSQL: `select count(*) from pgmq.delete('bench', $1::bigint[])`,
		},
		{
			name: rowNumber, about: "one table, a partial index (tenant, id) of what waits; a rank in each tenant, the " +
				"1,000 best of which at most 100 a tenant, and of these the first 100 that nobody has locked; settled by delete",
			install: installByHand, fill: fillByHand, readSQL: byRowNumber, settleSQL: deleteByHand,
		},
		{
			name: eachOne, about: "the same table and index; a loose index scan finds the tenants, a lateral query reads each one's part of the " +
				"100, tenants in random order; settled by delete",
			install: installByHand, fill: fillByHand, readSQL: byEachTenant, settleSQL: deleteByHand, fewer: true,
		},
	}
}

func installPgmqFair(ctx context.Context, l *lab, _ string) (*database, error) {
	q := &pgmqQueue{}
	if err := q.setUp(ctx, l); err != nil {
		return nil, err
	}
	has, err := ask[bool](ctx, q.db.pool, `select to_regprocedure('pgmq.read_grouped_rr(text, integer, integer)') is not null`)
	if err == nil && !has {
		if err := l.drop(ctx, q.db); err != nil {
			return nil, err
		}
		return nil, absence("absent: the SQL given has no read_grouped_rr; that of pgmq 1.9.0 and newer does")
	}
	return q.db, err
}

func fillPgmqFair(ctx context.Context, db *database, c skew) error {
	const chunk = 20_000
	for from := 0; from < c.rows; from += chunk {
		_, err := ask[int](ctx, db.pool, `select count(*) from pgmq.send_batch('bench',
			(select array_agg(jsonb_build_object('pad', repeat('x', $5::int))) from generate_series($1::int + 1, $2::int)),
			(select array_agg(jsonb_build_object('x-pgmq-group', case when i <= $3::int then 'flood' else 'tenant-' || i % $4::int end) order by i)
			 from generate_series($1::int + 1, $2::int) as i))`, from, min(from+chunk, c.rows), c.heavy, c.others, floodBytes)
		if err != nil {
			return err
		}
	}
	return db.exec(ctx, `select pgmq.create_fifo_index('bench')`, `vacuum (analyze) pgmq.q_bench`)
}

//go:embed rivals.sql
var byHandSQL string

func installByHand(ctx context.Context, l *lab, name string) (*database, error) {
	db, err := l.create(ctx, name)
	if err != nil {
		return nil, err
	}
	return db, db.exec(ctx, byHandSQL)
}

func fillByHand(ctx context.Context, db *database, c skew) error {
	_, err := db.pool.Exec(ctx, `insert into job (tenant, payload)
		select case when i <= $2::int then 'flood' else 'tenant-' || i % $3::int end, jsonb_build_object('pad', repeat('x', $4::int))
		from generate_series(1, $1::int) as i`, c.rows, c.heavy, c.others, floodBytes)
	if err != nil {
		return err
	}
	return db.exec(ctx, `vacuum (analyze) job`)
}

// byRowNumber is the fastest of several: a rank of at most the batch lets the window stop in
// each tenant, and the sort need only keep the best. Ten times the batch leaves other readers some.
const byRowNumber = `with ranked as (
  select j.id, row_number() over (partition by j.tenant order by j.id) as rank from job as j where j.status = 'waiting'
), best as (
  select r.id, r.rank from ranked as r where r.rank <= $1::int order by r.rank, r.id limit 10 * $1::int
), picked as (
  select j.id from best as b join job as j on j.id = b.id where j.status = 'waiting'
  order by b.rank, b.id limit $1::int for update of j skip locked
)
update job as j set status = 'running', attempts = j.attempts + 1, locked_at = now() from picked as p where j.id = p.id
returning j.id, 0::bigint, j.tenant, j.payload`

// byEachTenant takes tenants in random order: in that of their names, the first hundred would
// be all that is ever served.
const byEachTenant = `with recursive loose as (
  (select j.tenant from job as j where j.status = 'waiting' order by j.tenant limit 1)
  union all
  select (select j.tenant from job as j where j.status = 'waiting' and j.tenant > l.tenant order by j.tenant limit 1)
  from loose as l where l.tenant is not null
), tenant as materialized (
  select l.tenant from loose as l where l.tenant is not null
), part as (
  select ceil($1::int / count(*)::numeric)::int as rows from tenant
), picked as (
  select x.id from (select t.tenant from tenant as t order by random()) as t
  cross join lateral (
    select j.id from job as j where j.status = 'waiting' and j.tenant = t.tenant
    order by j.id limit (select p.rows from part as p) for update skip locked
  ) as x limit $1::int
)
update job as j set status = 'running', attempts = j.attempts + 1, locked_at = now() from picked as p where j.id = p.id
returning j.id, 0::bigint, j.tenant, j.payload`

const deleteByHand = `with gone as (delete from job as j where j.id = any ($1::bigint[]) returning j.id) select count(*) from gone`

// reader is a rival at work on a backlog, over a connection of its own.
type reader struct {
	rival
	db     *database
	client *pgxpool.Pool

	took    []float64 // ms, of each read
	spent   time.Duration
	got     []message // in the order in which they were read
	buffers float64
	failed  error // what it said when it could not read
}

// message is what a read brings.
type message struct {
	id, token int64
	tenant    string
	payload   []byte
}

// openReaders fills a database for each rival that is there.
func (l *lab) openReaders(ctx context.Context, c skew, report bool) ([]*reader, error) {
	var readers []*reader
	for i, r := range allRivals() {
		about := r.about
		db, err := r.install(ctx, l, fmt.Sprint("rival_", i))
		switch absent := err.(type) {
		case nil:
			client, err := db.single(ctx)
			if err != nil {
				return nil, err
			}
			readers = append(readers, &reader{rival: r, db: db, client: client})
			if err := r.fill(ctx, db, c); err != nil {
				return nil, fmt.Errorf("fill %s: %w", r.name, err)
			}
		case absence:
			about = absent.Error()
			l.say("%s is %s", r.name, about)
		default:
			return nil, fmt.Errorf("install %s: %w", r.name, err)
		}
		if report {
			l.report.Setups = append(l.report.Setups, setup{"rivals", r.name, about})
		}
	}
	for _, r := range readers {
		if err := r.db.exec(ctx, "vacuum (analyze)"); err != nil {
			return nil, err
		}
	}
	return readers, l.checkpoint(ctx)
}

const (
	readBatch  = 100
	firstOnes  = 1000 // over how many tenants are these spread
	fewestRead = firstOnes / readBatch
)

// race lets the readers read and settle in turn, until each has done its reads or used up its time.
func (l *lab) race(ctx context.Context, c skew, readers []*reader) error {
	l.say("%s", c)
	var steps []func(context.Context) error
	for _, r := range readers {
		if err := r.explain(ctx); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		if r.failed != nil {
			l.say("%s failed: %v", r.name, r.failed)
			continue
		}
		steps = append(steps, func(ctx context.Context) error {
			if r.spent > l.size.readTime && len(r.took) >= fewestRead {
				return nil
			}
			return r.turn(ctx, c)
		})
	}
	if err := interleave(ctx, l.size.reads, steps...); err != nil {
		return err
	}
	for _, r := range readers {
		if err := r.verify(c); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	l.reportRace(c, readers)
	return nil
}

// take reads n messages.
func (r *rival) take(ctx context.Context, q interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, n int,
) ([]message, error) {
	rows, err := q.Query(ctx, r.readSQL, n)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (m message, err error) {
		err = row.Scan(&m.id, &m.token, &m.tenant, &m.payload)
		return m, err
	})
}

// finish settles what was read.
func (r *rival) finish(ctx context.Context, pool *pgxpool.Pool, messages []message) error {
	ids, tokens := make([]int64, len(messages)), make([]int64, len(messages))
	for i, m := range messages {
		ids[i], tokens[i] = m.id, m.token
	}
	args := []any{ids, tokens}
	if !r.tokens {
		args = args[:1]
	}
	settled, err := ask[int](ctx, pool, r.settleSQL, args...)
	if err == nil && settled != len(ids) {
		err = fmt.Errorf("read %d messages and settled %d of them", len(ids), settled)
	}
	return err
}

// turn times one read, as the client sees it, its commit included; and the settling of what it brought.
func (r *reader) turn(ctx context.Context, c skew) error {
	start := time.Now()
	messages, err := r.take(ctx, r.client, readBatch)
	took := time.Since(start)
	if err != nil {
		return fmt.Errorf("%s: %w", r.name, err)
	}
	if left := c.rows - len(r.got); len(messages) != min(readBatch, left) && !(r.fewer && len(messages) > 0) {
		return fmt.Errorf("%s: a read of %d brought %d, and %d were left", r.name, readBatch, len(messages), left)
	}
	for _, m := range messages {
		if len(m.payload) < floodBytes {
			return fmt.Errorf("%s: the payload of message %d has %d bytes", r.name, m.id, len(m.payload))
		}
	}
	if err := r.finish(ctx, r.client, messages); err != nil {
		return fmt.Errorf("%s: %w", r.name, err)
	}
	r.spent += time.Since(start)
	r.took = append(r.took, milliseconds(took))
	r.got = append(r.got, messages...)
	return nil
}

// explain counts the buffers of a read that is rolled back; of the second, as the first warms the
// connection up. Where the database refuses the read, that is what the reader's failed says.
func (r *reader) explain(ctx context.Context) error {
	for range 2 {
		tx, err := r.client.Begin(ctx)
		if err != nil {
			return err
		}
		var text string
		sql := strings.ReplaceAll(r.readSQL, "$1", fmt.Sprint(readBatch))
		err = tx.QueryRow(ctx, "explain (analyze, buffers, timing off, format json) "+sql, pgx.QueryExecModeSimpleProtocol).Scan(&text)
		if rollbackErr := tx.Rollback(ctx); rollbackErr != nil {
			return rollbackErr
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			r.failed = err
			return nil
		}
		var plans []struct {
			Plan struct {
				Rows    float64 `json:"Actual Rows"`
				Hit     float64 `json:"Shared Hit Blocks"`
				Read    float64 `json:"Shared Read Blocks"`
				Reread  float64 `json:"Temp Read Blocks"`
				Written float64 `json:"Temp Written Blocks"`
			}
		}
		if err := json.Unmarshal([]byte(text), &plans); err != nil {
			return err
		}
		p := plans[0].Plan
		if p.Rows != readBatch && !r.fewer {
			return fmt.Errorf("an explained read of %d brought %g", readBatch, p.Rows)
		}
		r.buffers = p.Hit + p.Read + p.Reread + p.Written
	}
	return nil
}

// verify checks that nothing was read twice.
func (r *reader) verify(c skew) error {
	seen := map[int64]bool{}
	for _, m := range r.got {
		if seen[m.id] {
			return fmt.Errorf("message %d was read twice", m.id)
		}
		seen[m.id] = true
	}
	if len(r.got) > c.rows {
		return fmt.Errorf("%d messages of %d were read", len(r.got), c.rows)
	}
	return nil
}

// spread says over how many tenants the messages are spread, and how many one of them has at most.
func spread(messages []message) (tenants, most int) {
	of := map[string]int{}
	for _, m := range messages {
		of[m.tenant]++
		most = max(most, of[m.tenant])
	}
	return len(of), most
}

func (l *lab) reportRace(c skew, readers []*reader) {
	mine := readers[0]
	rate := func(r *reader) float64 { return float64(len(r.got)) / r.spent.Seconds() }
	for _, r := range readers {
		if r.failed != nil {
			l.report.add(figure{
				Experiment: "rivals", Case: "read of 100, " + c.String(), Contender: r.name, Unit: "reads that succeeded", summary: summarize([]float64{0}),
				Note: fmt.Sprintf("%s, %s: %v", r.name, c, r.failed),
			})
			continue
		}
		tenants, most := spread(r.got[:min(firstOnes, len(r.got))])
		one := func(name, unit string, value float64) figure {
			return figure{Experiment: "rivals", Case: name + ", " + c.String(), Contender: r.name, Unit: unit, summary: summarize([]float64{value})}
		}
		read := one("read of 100", "ms", 0)
		read.summary = summarize(r.took)
		figures := []figure{
			read,
			one("drained", "messages/s", rate(r)),
			one("blocks of a read, of temporary files included", "blocks", r.buffers),
			one("tenants among the first 1,000 messages", "tenants", float64(tenants)),
			one("most of one tenant among the first 1,000 messages", "messages", float64(most)),
		}
		if r != mine {
			figures[0] = figures[0].against(fair, summarize(mine.took))
			figures[1] = figures[1].against(fair, summarize([]float64{rate(mine)}))
			figures[2] = figures[2].against(fair, summarize([]float64{mine.buffers}))
		}
		l.report.add(figures...)
		if r.name == pgmqFair && c.goal > 0 {
			l.report.atLeast("rivals", fmt.Sprintf("read of 100 by %s against claim_fair, %s", pgmqFair, c), figures[0].Ratio, c.goal)
		}
	}
}
