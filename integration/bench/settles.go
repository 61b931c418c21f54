package main

import (
	"context"
	"fmt"
	"time"
)

// settles times what a settle call costs a message, for few messages and for many. A call is timed within an open
// transaction, on rows that were written straight into outbox.claimed, with ids in no order.
func settles(ctx context.Context, l *lab) error {
	db, err := l.outbox(ctx, "settles")
	if err != nil {
		return err
	}
	for _, how := range []string{"complete", "retry", "fail", "release", "extend"} {
		least := 0.0
		for _, n := range l.size.settles {
			took, wal, err := l.timeSettle(ctx, db, how, n)
			if err != nil {
				return fmt.Errorf("%s of %d: %w", how, n, err)
			}
			f := figure{Experiment: "settles", Case: fmt.Sprintf("%s of %s", how, count(n)), Contender: fair, Unit: "us/message", summary: took}
			if least == 0 || took.Median < least {
				least = took.Median
			}
			l.report.add(f, figure{Experiment: "settles", Case: "WAL, " + f.Case, Contender: fair, Unit: "bytes/message", summary: wal})
			if n == l.size.settles[len(l.size.settles)-1] {
				l.report.atMost("settles", f.Case+", a message, against the number at which it costs least", took.Median/least, 1.5)
			}
		}
	}
	return l.drop(ctx, db)
}

// timeSettle makes calls for n messages each.
func (l *lab) timeSettle(ctx context.Context, db *database, how string, n int) (took, wal summary, err error) {
	calls := min(max(l.size.settleCalls/n, 5), 300)
	client, err := db.single(ctx)
	if err != nil {
		return took, wal, err
	}
	defer client.Close()
	if err := db.empty(ctx); err != nil {
		return took, wal, err
	}
	if _, err := db.pool.Exec(ctx, `insert into outbox.claimed (id, namespace, task_queue, shard, visible_after, attempt, payload_bytes, claim_token, claimed_by, claimed_at, lease_until)
		select i, 'tenant-' || i % 32, 'bench', i % 16, now(), 1, 1000, 4194304 * (1 + i / 1000), 'node-0', now(), now() + interval '60 s'
		from generate_series(0, $1::int - 1) as i`, calls*n); err != nil {
		return took, wal, err
	}
	if err := l.settleDown(ctx, db); err != nil {
		return took, wal, err
	}
	tx, err := client.Begin(ctx)
	if err != nil {
		return took, wal, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	var times, bytes []float64
	for call := range calls {
		var ids, tokens []int64
		var before, after string
		err := tx.QueryRow(ctx, `select array_agg(x.id), array_agg(4194304 * (1 + x.id / 1000)), pg_current_wal_insert_lsn()::text
			from (select x.id from generate_series($1::bigint, $2::bigint - 1) as x(id) order by md5(x.id::text)) as x`, call*n, (call+1)*n).Scan(&ids, &tokens, &before)
		if err != nil {
			return took, wal, err
		}
		settled := 0
		start := time.Now()
		if err := tx.QueryRow(ctx, "select count(*) from outbox."+how+"($1::bigint[], $2::bigint[]) as x", ids, tokens).Scan(&settled); err != nil {
			return took, wal, err
		}
		times = append(times, float64(time.Since(start).Nanoseconds())/1000/float64(n))
		if settled != n {
			return took, wal, fmt.Errorf("settled %d", settled)
		}
		if err := tx.QueryRow(ctx, `select pg_current_wal_insert_lsn()::text`).Scan(&after); err != nil {
			return took, wal, err
		}
		var size float64
		if err := tx.QueryRow(ctx, `select pg_wal_lsn_diff($1::text::pg_lsn, $2::text::pg_lsn)::float8`, after, before).Scan(&size); err != nil {
			return took, wal, err
		}
		bytes = append(bytes, size/float64(n))
	}
	skip := min(calls/4, l.size.warmUp)
	return summarize(times[skip:]), summarize(bytes[skip:]), nil
}
