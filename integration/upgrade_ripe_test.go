package integration

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/fairclaim/fairclaim/integration/pgtest"
	"github.com/fairclaim/fairclaim/sql/migrations"
)

// beforeRipe is the last version in which what waited stood among what was due.
const beforeRipe = 8

// migrateTo goes up or down to a version.
func migrateTo(t *testing.T, db *pgtest.DB, from, to uint) {
	t.Helper()
	var err error
	if to > from {
		_, err = migrations.Up(t.Context(), db.DSN, migrations.Options{To: to})
	} else {
		_, err = migrations.Down(t.Context(), db.DSN, int(from-to), migrations.Options{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestUpgradeRipe: rows in every state come through the migration that sets apart what waits, and
// through the way back: what waits is not ripe and not claimed early, what is due is claimed, and
// nothing is lost (INV-2, INV-18).
func TestUpgradeRipe(t *testing.T) {
	t.Parallel()
	db := emptyDatabase(t)
	migrateTo(t, db, 0, beforeRipe)
	conn := db.Connect(t)
	run(t, conn, `select outbox.enqueue('n' || n % 3, 'q' || n % 2, 'key ' || n, '') from generate_series(1, 20) as n;
		select outbox.enqueue('n1', 'q1', 'later ' || n, '', delay => '1 h') from generate_series(1, 3) as n;
		select outbox.complete(array_agg(c.id), array_agg(c.claim_token)) from outbox.claim_fair('node', outbox.all_shards(), 4) as c;
		select outbox.fail(array_agg(c.id), array_agg(c.claim_token)) from outbox.claim_fair('node', outbox.all_shards(), 2) as c;
		select outbox.retry(array_agg(c.id), array_agg(c.claim_token), null, array_fill('1 h'::interval, array[2])) from outbox.claim_fair('node', outbox.all_shards(), 2) as c;
		select count(*) from outbox.claim_fair('node', outbox.all_shards(), 2);
		select outbox.cancel(array(select m.dispatch_key from outbox.messages as m where m.status = 'pending' and m.dispatch_key ~ 'key' order by m.id limit 1))`)
	states := `select string_agg(format('%s %s', x.status, x.n), ', ' order by x.status) from (select m.status, count(*) as n from outbox.messages as m group by 1) as x`
	before := one[string](t, conn, states)

	migrateTo(t, db, beforeRipe, latestVersion(t))
	if got := one[string](t, conn, states); got != before {
		t.Errorf("after the upgrade %s, before %s", got, before)
	}
	if n := one[int](t, conn, `select count(*) from outbox.pending as p where p.ripe = (p.visible_after > clock_timestamp())`); n > 0 {
		t.Errorf("%d messages are ripe too early, or are not ripe and due", n)
	}
	// As a function of the version before writes a message that waits: it goes no earlier for that.
	run(t, conn, `with m as (insert into outbox.message (namespace, task_queue, dispatch_key, content_type, headers, payload) values ('n1', 'q1', 'meanwhile', 'text/plain', '{}', '') returning id)
		insert into outbox.pending (id, namespace, task_queue, shard, visible_after, payload_bytes)
		select m.id, 'n1', 'q1', outbox.shard_of('meanwhile', 16), clock_timestamp() + interval '1 h', 0 from m`)
	if n := one[int](t, conn, `select count(*) from outbox.claim_fair('node', outbox.all_shards(), 3)`); n != 3 {
		t.Errorf("a claim brought %d, want 3 of those that are due", n)
	}

	migrateTo(t, db, latestVersion(t), beforeRipe)
	due := one[int](t, conn, `select count(*) from outbox.pending as p where p.visible_after <= clock_timestamp()`)
	if n := one[int](t, conn, `select count(*) from outbox.claim_fair('node', outbox.all_shards(), 100)`); n != due || n == 0 {
		t.Errorf("after the way back a claim brought %d, %d were due", n, due)
	}
	migrateTo(t, db, beforeRipe, latestVersion(t))
	if n := one[int](t, conn, `select count(*) from outbox.pending as p where not p.ripe`); n != 6 {
		t.Errorf("%d wait, want 3 that were delayed, 2 that were tried, 1 of meanwhile", n)
	}
	if rows := list[string](t, conn, `select c.guarantee || ' ' || c.subject || ': ' || c.detail from outbox.check() as c`); len(rows) > 0 {
		t.Errorf("check: %v", rows)
	}
}

// TestUpgradeRipeUnderTraffic: a consumer that asks for what both versions have works on across the
// migration and the way back, and gets what is due and what comes due.
func TestUpgradeRipeUnderTraffic(t *testing.T) {
	t.Parallel()
	db := emptyDatabase(t)
	migrateTo(t, db, 0, beforeRipe)
	ctx, stop := context.WithCancel(t.Context())
	var consumer sync.WaitGroup
	consumer.Go(func() {
		for ctx.Err() == nil { // a call that meets the change itself fails, and is made again
			_, _ = db.Pool.Exec(ctx, `select outbox.complete(array_agg(c.id), array_agg(c.claim_token)) from outbox.claim_fair('before', outbox.all_shards(), 10) as c having count(*) > 0`)
		}
	})
	defer consumer.Wait()
	defer stop()
	done := 0
	for from, to := uint(beforeRipe), latestVersion(t); done < 120; from, to = to, from {
		run(t, db.Pool, `select outbox.enqueue('n' || n % 5, 'q', $1::text || '/' || n, '', delay => n % 2 * interval '300 ms') from generate_series(1, 40) as n`, fmt.Sprint(done))
		migrateTo(t, db, from, to)
		done += 40
		await(t, db.Pool, `select count(*) = $1 from outbox.settled as s where s.outcome = 'done'`, done)
	}
}
