package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// hammer is many sessions that claim and settle at once. Its check is a query that
// gives a row for each thing wrong; it is asked within each claim's transaction and by
// a session of its own all the time.
type hammer struct {
	setUp    string
	sessions int
	node     func(session int, rng *rand.Rand) string
	shards   func(session int, rng *rand.Rand) []int
	batch    int
	check    string
	others   []func(ctx context.Context, conn *pgx.Conn, rng *rand.Rand) error // what goes on beside
	lossy    bool                                                              // the others may end claims
	wait     time.Duration                                                     // a claim that waits this long for a lock fails
}

// hammerLength is how long a hammer goes on: FAIRCLAIM_HAMMER_TIME, or 4s.
func hammerLength(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("FAIRCLAIM_HAMMER_TIME")
	if text == "" {
		return 4 * time.Second
	}
	length, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("FAIRCLAIM_HAMMER_TIME: %v", err)
	}
	return length
}

// held is who holds which message, as the sessions know it.
type held struct {
	mu  sync.Mutex
	ids map[int64]int
}

// take notes what a session has claimed. INV-1: nobody else holds it.
func (h *held) take(session int, rows []modelClaimed) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range rows {
		if other, ok := h.ids[r.ID]; ok {
			return fmt.Errorf("INV-1: message %d is claimed by session %d while session %d holds it", r.ID, session, other)
		}
		h.ids[r.ID] = session
	}
	return nil
}

func (h *held) drop(ids []int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range ids {
		delete(h.ids, id)
	}
}

// run hammers for so long, and then accounts for every message.
func (h hammer) run(ctx context.Context, db *pgtest.DB, length time.Duration, seed uint64) error {
	conn, err := pgx.Connect(ctx, db.DSN)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	// The quotas of the set-up have been in force for long: outbox.check takes them at their word.
	if err := conn.PgConn().Exec(ctx, h.setUp+"; delete from outbox.former_quota").Close(); err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	deadline := time.Now().Add(length)
	group, groupCtx := errgroup.WithContext(ctx)
	holders := &held{ids: map[int64]int{}}
	for i := range h.sessions {
		group.Go(func() error {
			return h.session(groupCtx, db.DSN, i, holders, deadline, rand.New(rand.NewPCG(seed, uint64(i))))
		})
	}
	for i, other := range h.others {
		group.Go(func() error {
			return hammerLoop(groupCtx, db.DSN, deadline, "", func(conn *pgx.Conn) error {
				return other(groupCtx, conn, rand.New(rand.NewPCG(rand.Uint64(), uint64(i))))
			})
		})
	}
	if h.check != "" {
		group.Go(func() error {
			return hammerLoop(groupCtx, db.DSN, deadline, "", func(conn *pgx.Conn) error { return hammerCheck(groupCtx, conn, h.check) })
		})
	}
	group.Go(func() error {
		return hammerLoop(groupCtx, db.DSN, deadline, "", func(conn *pgx.Conn) error { return hammerAudit(groupCtx, conn) })
	})
	return errors.Join(group.Wait(), hammerAccount(ctx, conn), hammerAudit(ctx, conn))
}

// hammerAudit is the audit that ships, under traffic too: it sees one snapshot.
func hammerAudit(ctx context.Context, conn *pgx.Conn) error {
	return hammerCheck(ctx, conn, "select format('check: %s %s %s', v.guarantee, v.subject, v.detail) from outbox.check() as v where v.guarantee <> 'advice'")
}

// hammerLoop does something on a connection of its own until the deadline.
func hammerLoop(ctx context.Context, dsn string, deadline time.Time, settings string, do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := conn.PgConn().Exec(ctx, settings).Close(); err != nil {
		return err
	}
	for time.Now().Before(deadline) && ctx.Err() == nil {
		if err := do(conn); err != nil {
			return err
		}
	}
	return nil
}

func hammerCheck(ctx context.Context, conn querier, check string) error {
	rows, err := conn.Query(ctx, check)
	if err != nil {
		return err
	}
	wrong, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err == nil && len(wrong) > 0 {
		err = fmt.Errorf("%v", wrong)
	}
	return err
}

func (h hammer) session(ctx context.Context, dsn string, session int, holders *held, deadline time.Time, rng *rand.Rand) error {
	settings := fmt.Sprintf("set lock_timeout = %d", h.wait.Milliseconds())
	return hammerLoop(ctx, dsn, deadline, settings, func(conn *pgx.Conn) error {
		tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
		rows, err := modelClaimRows(ctx, tx, h.node(session, rng), h.shards(session, rng), h.batch, 0)
		if err != nil {
			return fmt.Errorf("claim: %w", err)
		}
		if h.check != "" {
			if err := hammerCheck(ctx, tx, h.check); err != nil {
				return err
			}
		}
		if rng.IntN(10) == 0 {
			return tx.Rollback(ctx)
		}
		if !h.lossy {
			if err := holders.take(session, rows); err != nil {
				return err
			}
		}
		if err := tx.Commit(ctx); err != nil {
			return err
		}
		return h.settle(ctx, conn, holders, rows, rng)
	})
}

// settle ends what was claimed, each message in some way; a fifth of the claims is
// left alone until they are rescued (by the others, where there are some).
func (h hammer) settle(ctx context.Context, conn *pgx.Conn, holders *held, rows []modelClaimed, rng *rand.Rand) error {
	if _, err := conn.Exec(ctx, "set lock_timeout = 0"); err != nil {
		return err
	}
	ids, tokens := map[string][]int64{}, map[string][]int64{}
	for _, r := range rows {
		if h.lossy && rng.IntN(5) == 0 {
			continue
		}
		how := []string{"complete", "complete", "complete", "retry", "release", "fail"}[rng.IntN(6)]
		ids[how] = append(ids[how], r.ID)
		tokens[how] = append(tokens[how], r.Token)
	}
	for how := range ids {
		holders.drop(ids[how])
		sql := fmt.Sprintf(`select count(*) from outbox.%s($1::bigint[], $2) as x`, how)
		if how == "retry" {
			sql = `select count(*) from outbox.retry($1::bigint[], $2, null, array_fill('0'::interval, array[cardinality($1::bigint[])])) as x`
		}
		var n int
		if err := conn.QueryRow(ctx, sql, ids[how], tokens[how]).Scan(&n); err != nil {
			return fmt.Errorf("%s: %w", how, err)
		}
		if n != len(ids[how]) && !h.lossy {
			return fmt.Errorf("INV-9: %s settled %d of %d of its own claims", how, n, len(ids[how]))
		}
	}
	_, err := conn.Exec(ctx, fmt.Sprintf("set lock_timeout = %d", h.wait.Milliseconds()))
	return err
}

// hammerAccount: INV-2, every message stands in exactly one table.
func hammerAccount(ctx context.Context, conn *pgx.Conn) error {
	return hammerCheck(ctx, conn, `
		select format('INV-2: message %s stands in %s tables', coalesce(m.id, x.id), count(x.id))
		from outbox.message as m
		full join (select p.id from outbox.pending as p union all select c.id from outbox.claimed as c
		           union all select s.id from outbox.settled as s) as x on x.id = m.id
		group by m.id, x.id having count(x.id) <> 1 or count(m.id) = 0`)
}

// hammerAbove reports namespaces with more claimed than a limit.
func hammerAbove(limit int) string {
	return fmt.Sprintf(`select format('INV-4: %%s of %%s are claimed', count(*), c.namespace) from outbox.claimed as c
		group by c.namespace having count(*) > %d`, limit)
}

// hammerAboveCeiling reports, within a claim's transaction, namespaces that it brought above
// their ceiling on the shards that it holds.
func hammerAboveCeiling(quota int) string {
	return fmt.Sprintf(`select format('INV-4: a claim brought %%s to %%s on %%s shards', c.namespace, count(*), cardinality(h.shards))
		from (select array_agg(l.objid::bigint::int) as shards from pg_locks as l where l.pid = pg_backend_pid() and l.locktype = 'advisory'
		        and l.classid = 'outbox.pending'::regclass and l.objsubid = 2 and l.objid < 1024) as h
		join outbox.claimed as c on c.shard = any (h.shards)
		group by c.namespace, h.shards having bool_or(c.xmin = pg_current_xact_id_if_assigned()::xid)
		  and count(*) > outbox.node_ceiling(%d, cardinality(h.shards), 16)`, quota)
}

// hammerAboveOwners reports namespaces of which the owners of one partition, the part of
// claimed_by behind the dot, have claimed more than a limit.
func hammerAboveOwners(limit int) string {
	return fmt.Sprintf(`select format('INV-4: the owners by partition %%s have claimed %%s of %%s', x.partition, count(*), x.namespace)
		from (select c.namespace, split_part(c.claimed_by, '.', 2) as partition from outbox.claimed as c) as x
		group by x.namespace, x.partition having count(*) > %d`, limit)
}

// hammerPartition shares the shards out among the sessions, anew at random times.
type hammerPartition struct {
	mu    sync.Mutex
	n     int     // how often it moved
	owned [][]int // by session, now
	of    [][]int // and when the session asked for its name
}

// node is asked before shards. The name says by which partition its session claims.
func (p *hammerPartition) node(session int, rng *rand.Rand) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n == 0 || rng.IntN(20) == 0 {
		p.n++
		p.owned = make([][]int, len(p.of))
		for shard := range 16 {
			owner := rng.IntN(len(p.of))
			p.owned[owner] = append(p.owned[owner], shard)
		}
	}
	p.of[session] = p.owned[session]
	return fmt.Sprintf("node%d.%d", session, p.n)
}

func (p *hammerPartition) shards(session int, _ *rand.Rand) []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]int{}, p.of[session]...)
}

func hammerOwnShard(session int, _ *rand.Rand) []int { return []int{session % 16} }

func hammerOneShard(int, *rand.Rand) []int { return []int{0} }

func hammerSomeShards(_ int, rng *rand.Rand) []int { return rng.Perm(16)[:1+rng.IntN(16)] }

func hammerOwnName(session int, _ *rand.Rand) string { return fmt.Sprint("node", session) }

func hammerAnyName(_ int, rng *rand.Rand) string { return fmt.Sprint("node", rng.IntN(4)) }

// hammerReschedule moves messages in time, as an operator with update rights may.
func hammerReschedule(ctx context.Context, conn *pgx.Conn, rng *rand.Rand) error {
	_, err := conn.Exec(ctx, `update outbox.pending as p
		set visible_after = clock_timestamp() + make_interval(secs => $1)
		where p.id = any (array(select p.id from outbox.pending as p where p.id % 50 = $2 order by p.id for update))`,
		rng.Float64()*2-1.5, rng.IntN(50))
	return err
}

func hammerCancel(ctx context.Context, conn *pgx.Conn, rng *rand.Rand) error {
	_, err := conn.Exec(ctx, `select outbox.cancel(array(select m.dispatch_key from outbox.message as m where m.id % 200 = $1))`, rng.IntN(200))
	if err == nil {
		_, err = conn.Exec(ctx, `select outbox.redrive(array(select s.id from outbox.settled as s order by random() limit 30))`)
	}
	return err
}

// hammerRescue takes claims away at random.
func hammerRescue(ctx context.Context, conn *pgx.Conn, rng *rand.Rand) error {
	_, err := conn.Exec(ctx, `update outbox.claimed as c set lease_until = '2020-01-01' where c.id in (
		select c.id from outbox.claimed as c where c.id % 20 = $1 order by c.id for update skip locked)`, rng.IntN(20))
	if err == nil {
		_, err = conn.Exec(ctx, `select outbox.rescue(20)`)
	}
	return err
}

func hammers() map[string]hammer {
	partition := &hammerPartition{of: make([][]int, 16)}
	return map[string]hammer{
		"INV-1 INV-2 overlapping shards and the same names": {
			setUp: longBacklog(8, 2, 200, 10), sessions: 8, node: hammerAnyName, shards: hammerSomeShards, batch: 20, wait: patience(),
		},
		"INV-4 one shard, so a claim must see the one before": {
			setUp: `select outbox.configure('{"shard_count": 1, "default_quota": 3}');` + longBacklog(2, 2, 1500, 10), sessions: 8,
			node: hammerOwnName, shards: hammerOneShard, batch: 5, check: hammerAbove(3), wait: patience(),
		},
		"INV-4 disjoint shards share a quota": {
			setUp: `select outbox.configure('{"default_quota": 5}');` + longBacklog(2, 2, 1500, 10), sessions: 16,
			node: hammerOwnName, shards: hammerOwnShard, batch: 5, check: hammerAbove(5 + 16 - 1), wait: patience(),
		},
		"INV-4 strict namespaces, disjoint shards": {
			setUp:    `select outbox.set_quota('ns1', 3, true), outbox.set_quota('ns2', 1, true);` + longBacklog(2, 2, 1500, 10),
			sessions: 16, node: hammerOwnName, shards: hammerOwnShard, batch: 5, wait: patience(),
			check: hammerAbove(3) + ` or (c.namespace = 'ns2' and count(*) > 1)`,
		},
		"INV-4 strict namespaces, shards that move": {
			setUp:    `select outbox.set_quota('ns1', 3, true), outbox.set_quota('ns2', 1, true);` + longBacklog(3, 2, 1500, 10),
			sessions: 16, node: hammerAnyName, shards: hammerSomeShards, batch: 5, wait: patience(), lossy: true,
			others: []func(context.Context, *pgx.Conn, *rand.Rand) error{hammerRescue},
			check:  hammerAbove(3) + ` and c.namespace <> 'ns3' or (c.namespace = 'ns2' and count(*) > 1)`,
		},
		"INV-4 any shards, any node": {
			setUp: `select outbox.configure('{"default_quota": 5}');` + longBacklog(2, 2, 1500, 10), sessions: 16,
			node: hammerOwnName, shards: hammerSomeShards, batch: 5, wait: patience(), lossy: true,
			others: []func(context.Context, *pgx.Conn, *rand.Rand) error{hammerRescue}, check: hammerAboveCeiling(5),
		},
		"INV-4 a partition that moves": {
			setUp: `select outbox.configure('{"default_quota": 5}');` + longBacklog(2, 2, 1500, 10), sessions: 16,
			node: partition.node, shards: partition.shards, batch: 5, wait: patience(), lossy: true,
			others: []func(context.Context, *pgx.Conn, *rand.Rand) error{hammerRescue},
			check:  hammerAboveCeiling(5) + " union all " + hammerAboveOwners(5+16-1),
		},
		"INV-2 beside cancel, redrive, reschedule and rescue": {
			setUp: longBacklog(8, 2, 100, 10), sessions: 4, node: hammerAnyName, shards: hammerSomeShards, batch: 20, lossy: true,
			others: []func(context.Context, *pgx.Conn, *rand.Rand) error{hammerReschedule, hammerCancel, hammerRescue},
			wait:   patience(),
		},
	}
}

// TestClaimHammer has many real sessions claim and settle at once, and looks for what
// must not happen. A claim that waits for a lock longer than an extension of a table
// takes fails (INV-11).
func TestClaimHammer(t *testing.T) {
	for name, h := range hammers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64() >> 16
			err := h.run(t.Context(), pg.New(t), hammerLength(t), seed)
			if failed := (*pgconn.PgError)(nil); errors.As(err, &failed) {
				t.Logf("%s: %s", failed.Detail, failed.Where)
			}
			if err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
		})
	}
}
