package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// backlog is messages to be written straight into the tables: spread evenly over
// namespaces and routes, in the order of their ids and of the times at which they are
// due, as if they had come in one after the other.
type backlog struct {
	group    string // namespaces of other groups have other names, in no order
	from, to int    // its namespaces: from the first, up to but without the last; 0, 0 is one
	route    int    // the first of their routes
	routes   int    // 0 is one
	rows     int
	payload  int           // bytes of each; 0 is 100
	dueIn    time.Duration // when the last of them is due; 0 is a second ago
	shards   []int32       // only on these; nil: on all
}

// bulk is from how many rows on it pays to build the indexes afterwards.
const bulk = 400_000

// write puts the backlog into db and returns how many messages that made.
func (db *database) write(ctx context.Context, b backlog) (int, error) {
	b.to, b.routes = max(b.to, b.from+1), max(b.routes, 1)
	if b.payload == 0 {
		b.payload = 100
	}
	if b.dueIn == 0 {
		b.dueIn = -time.Second
	}
	generated := b.rows
	if b.shards != nil {
		total, err := ask[int](ctx, db.pool, `select cardinality(outbox.all_shards())`)
		if err != nil {
			return 0, err
		}
		generated = b.rows * total / len(b.shards)
	}
	var indexes []string
	if b.rows >= bulk {
		var err error
		if indexes, err = db.dropIndexes(ctx); err != nil {
			return 0, err
		}
	}
	last, err := ask[int64](ctx, db.pool,
		`select setval(pg_get_serial_sequence('outbox.message', 'id'), nextval(pg_get_serial_sequence('outbox.message', 'id')) + $1)`, generated)
	if err != nil {
		return 0, err
	}
	source := fmt.Sprintf(`(select %[1]d + i as id, substr(md5('%[2]s' || (%[3]d + i %% %[4]d)), 1, 10) || '%[2]s' as namespace,
	       'route-' || (%[5]d + i / %[4]d %% %[6]d) as task_queue, '%[2]s/' || lpad((%[1]d + i)::text, 12, '0') as dispatch_key,
	       now() + interval '%[7]d microseconds' - (%[8]d - i) * interval '10 microseconds' as due
	from generate_series(1, %[8]d) as i) as s where $1::int[] is null or outbox.shard_of(s.dispatch_key, (select c.shard_count from outbox.config as c)) = any ($1)`,
		last-int64(generated), b.group, b.from, b.to-b.from, b.route, b.routes, b.dueIn.Microseconds(), generated)

	var messages, pending int64
	g, inner := errgroup.WithContext(ctx)
	g.Go(func() error {
		tag, err := db.pool.Exec(inner, `insert into outbox.message (id, namespace, task_queue, dispatch_key, content_type, headers, payload)
		overriding system value
		select s.id, s.namespace, s.task_queue, s.dispatch_key, 'application/json', '{}', $2::bytea from `+source,
			b.shards, []byte(strings.Repeat("x", b.payload)))
		messages = tag.RowsAffected()
		return err
	})
	g.Go(func() error {
		tag, err := db.pool.Exec(inner, `insert into outbox.pending (id, namespace, task_queue, shard, visible_after, ripe, payload_bytes)
		select s.id, s.namespace, s.task_queue, outbox.shard_of(s.dispatch_key, (select c.shard_count from outbox.config as c)),
		       s.due, s.due <= now(), $2::int from `+source, b.shards, b.payload)
		pending = tag.RowsAffected()
		return err
	})
	if err := g.Wait(); err != nil {
		return 0, fmt.Errorf("write a backlog: %w", err)
	}
	if messages != pending || b.shards == nil && messages != int64(b.rows) {
		return 0, fmt.Errorf("write a backlog: %d messages, %d of them pending, of %d", messages, pending, b.rows)
	}
	return int(messages), db.exec(ctx, indexes...)
}

// dropIndexes drops what indexes outbox.pending has beside its primary key and returns
// the statements that make them again.
func (db *database) dropIndexes(ctx context.Context) ([]string, error) {
	rows, err := db.pool.Query(ctx, `select i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid) from pg_index as i
		where i.indrelid = 'outbox.pending'::regclass and not i.indisprimary order by i.indexrelid`)
	if err != nil {
		return nil, err
	}
	var definitions, drops []string
	var name, definition string
	_, err = pgx.ForEachRow(rows, []any{&name, &definition}, func() error {
		definitions = append(definitions, definition)
		drops = append(drops, "drop index "+name)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return definitions, db.exec(ctx, drops...)
}

// empty takes all messages out of db.
func (db *database) empty(ctx context.Context) error {
	return db.exec(ctx, `truncate outbox.message, outbox.pending, outbox.claimed, outbox.settled, outbox.failure,
		outbox.namespace, outbox.pause, outbox.walk, outbox.route`)
}

// tidy brings statistics and visibility up to date, as autovacuum does in time.
func (db *database) tidy(ctx context.Context) error {
	return db.exec(ctx, `vacuum (analyze) outbox.pending`, `vacuum (analyze) outbox.claimed`,
		`vacuum (analyze) outbox.message`, `vacuum (analyze) outbox.settled`)
}

// verify checks that every message is in exactly one state (INV-2).
func (db *database) verify(ctx context.Context) error {
	odd, err := ask[int64](ctx, db.pool, `select (select count(*) from outbox.message) - (select count(*) from outbox.pending)
		- (select count(*) from outbox.claimed) - (select count(*) from outbox.settled)`)
	if err == nil && odd != 0 {
		err = fmt.Errorf("%d messages more than pending, claimed and settled ones", odd)
	}
	return err
}
