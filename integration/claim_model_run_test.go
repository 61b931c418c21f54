package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// modelRun plays one random history against a database and the model side by side.
type modelRun struct {
	conn     *pgx.Conn
	rng      *rand.Rand
	model    modelOutbox
	tenants  []modelTenant
	nodes    []modelNode
	log      []string
	keys     int
	token    int64                      // the highest seen
	expect   map[int64]modelExpect      // what the next compare may find, and takes over
	waiting  map[modelLane]modelServed  // node and namespace: who was served since it was
	claims   map[modelLane]int          // likewise: claims of the node since then
	isLarge  map[modelLane]bool         // likewise: one of those met a message that ends the claim alone
	route    map[modelRoute]modelServed // and route, likewise
	waits    map[modelRoute]int         // how often its namespace was served without it
	probed   map[modelRoute]modelServed // and route, whose namespace waits for the probe of the route of all, likewise
	hasHolds bool                       // destinations fail
	isOutage bool                       // mostly one that namespaces share, for long
	was      int64                      // token, when the step began
}

type (
	modelServed map[string]bool
	modelTenant struct {
		name   string
		routes []string
	}
	modelNode struct {
		name   string
		shards []int
	}
	modelRoute struct {
		node string
		modelLane
	}
	// modelExpect bounds the instants that the database chooses: visible_after, and
	// lease_until of a claimed message.
	modelExpect struct{ visible, lease [2]float64 }
)

// modelHistory plays one history of so many steps; the seed decides all of it. In every second one destinations fail,
// in every fourth one for long, and for all.
func modelHistory(ctx context.Context, conn *pgx.Conn, seed uint64, steps int) error {
	r := &modelRun{
		conn: conn, rng: rand.New(rand.NewPCG(seed, seed)), hasHolds: seed%2 == 1, isOutage: seed%4 == 3,
		expect: map[int64]modelExpect{}, waiting: map[modelLane]modelServed{}, claims: map[modelLane]int{}, isLarge: map[modelLane]bool{}, route: map[modelRoute]modelServed{},
		waits: map[modelRoute]int{}, probed: map[modelRoute]modelServed{},
	}
	if err := r.setUp(ctx); err != nil {
		return fmt.Errorf("seed %d: set up: %w", seed, err)
	}
	for step := range steps {
		err := r.step(ctx)
		if errors.Is(err, errModelClock) {
			return nil
		}
		if err != nil {
			tail := r.log[max(0, len(r.log)-12):]
			return fmt.Errorf("seed %d, step %d: %w\nwith %d shards, default quota %d, max_visits %d, max_routes %d; the last steps:\n%s", seed, step, err,
				r.model.shards, r.model.defaultQuota, r.model.maxVisits, r.model.maxRoutes, strings.Join(tail, "\n"))
		}
	}
	return nil
}

func (r *modelRun) setUp(ctx context.Context) error {
	pick := func(of ...int) int { return of[r.rng.IntN(len(of))] }
	r.model = modelOutbox{
		shards: pick(1, 2, 3, 8, 16), defaultQuota: pick(0, 1, 3, 256, 256, 256), maxVisits: pick(1+r.rng.IntN(6), 1000, 1000),
		maxRoutes: pick(1+r.rng.IntN(3), 64, 64), maxAttempts: pick(2, 20), countCap: pick(3, 1000),
		messages: map[int64]*modelMessage{}, quotas: map[string]modelQuota{}, pauses: map[modelLane]bool{}, ring: map[string]int32{},
	}
	most, routes, letters := 40, 5, 6
	if r.hasHolds { // fewer, of which more fail together
		most, routes, letters = pick(2, 3, 6, 12), 3, pick(1, 2)
	}
	if r.isOutage {
		r.model.defaultQuota, r.model.maxVisits, r.model.maxRoutes, r.model.maxAttempts = 256, 1000, 64, 20
		most, routes, letters = 12, 1, 1
	}
	r.model.modelHolds = r.setHolds()
	for i := range 1 + r.rng.IntN(most) {
		t := modelTenant{name: fmt.Sprintf("%c%x", []rune("aZ_é0")[r.rng.IntN(5)], r.rng.IntN(1<<20)*64+i)}
		for q := range 1 + r.rng.IntN(routes) {
			t.routes = append(t.routes, fmt.Sprintf("%c%d", 'a'+rune(r.rng.IntN(letters)), q))
		}
		r.tenants = append(r.tenants, t)
	}
	for i := range 3 {
		r.nodes = append(r.nodes, modelNode{fmt.Sprintf("node%d", i), r.someShards()})
	}
	m := r.model
	if err := r.exec(ctx, `truncate outbox.message, outbox.pending, outbox.claimed, outbox.settled, outbox.failure, outbox.namespace,
		  outbox.pause, outbox.node, outbox.walk, outbox.route, outbox.destination, outbox.report restart identity;
		select setval('outbox.report_edge', 1);`+fmt.Sprintf(`
		select outbox.configure(jsonb_build_object('shard_count', %d, 'default_quota', %d, 'max_visits', %d, 'max_routes', %d,
		  'max_attempts', %d, 'count_cap', %d, 'retry_base', '1 h', 'retry_cap', '1 h', 'retry_jitter', 0.2, 'lease', '10 h',
		  'hold_after', %d, 'hold_base', '%f s', 'hold_cap', '%f s', 'hold_give_up', '%f s'))`,
		m.shards, m.defaultQuota, m.maxVisits, m.maxRoutes, m.maxAttempts, m.countCap,
		m.holdAfter, m.holdBase, m.holdCap, m.holdGiveUp)); err != nil {
		return err
	}
	if err := r.exec(ctx, `create or replace function pg_temp.end_pause(namespace text, task_queue text) returns boolean language sql as $$
		update outbox.pause as p set until = clock_timestamp()
		where p.namespace is not distinct from $1 and p.task_queue is not distinct from $2 returning true $$`); err != nil {
		return err
	}
	if err := r.setRing(ctx); err != nil || !r.isOutage {
		return err
	}
	r.nodes = r.nodes[:1+r.rng.IntN(2)]
	if r.rng.IntN(3) > 0 {
		r.model.share("a0", "true")
		if err := r.exec(ctx, `select outbox.set_shared('a0', true)`); err != nil {
			return err
		}
	}
	if r.rng.IntN(3) == 0 {
		return nil
	}
	return r.holdThis(ctx, modelLane{Queue: "a0"})
}

// setRing gives the ring a salt of the history's own, and asks where all names stand.
func (r *modelRun) setRing(ctx context.Context) error {
	if err := r.exec(ctx, fmt.Sprintf(`create or replace function outbox.ring(name text) returns int language sql immutable parallel safe
		begin atomic select (hashtextextended(ring.name collate "C", %d::bigint) >> 32)::int; end`, r.rng.Int64())); err != nil {
		return err
	}
	names := []string{""}
	for _, t := range r.tenants {
		names = append(append(names, t.name), t.routes...)
	}
	rows, err := r.conn.Query(ctx, `select u.name, outbox.ring(u.name) from unnest($1::text[]) as u(name)`, names)
	if err != nil {
		return err
	}
	var name string
	var place int32
	_, err = pgx.ForEachRow(rows, []any{&name, &place}, func() error { r.model.ring[name] = place; return nil })
	return err
}

func (r *modelRun) someShards() []int {
	all := r.model.everyShard()
	if r.rng.IntN(3) > 0 {
		r.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:1+r.rng.IntN(len(all))]
	}
	return all
}

// step does one thing at random and compares the database with the model.
func (r *modelRun) step(ctx context.Context) error {
	var err error
	switch n := r.rng.IntN(100); {
	case r.hasHolds && len(r.model.messages) > 0 && (r.rng.IntN(3) == 0 || r.isOutage && r.rng.IntN(2) == 0):
		err = r.destination(ctx)
	case n < 18 || len(r.model.messages) == 0:
		err = r.enqueue(ctx)
	case n < 60:
		err = r.claim(ctx)
	case n < 79:
		err = r.settle(ctx)
	case n < 80:
		err = r.begin(ctx)
	case n < 82:
		err = r.rescue(ctx)
	case n < 85:
		err = r.cancel(ctx)
	case n < 88:
		err = r.redrive(ctx)
	case n < 96:
		err = r.hold(ctx)
	default:
		err = r.setQuota(ctx)
	}
	if err != nil {
		return err
	}
	return r.compared(ctx)
}

// compared finds every difference, and ends a step.
func (r *modelRun) compared(ctx context.Context) error {
	err := errors.Join(r.compare(ctx), r.compareHolds(ctx), r.model.judgeHeld())
	r.was = r.token
	return err
}

func (r *modelRun) exec(ctx context.Context, sql string, args ...any) error {
	if len(args) == 0 {
		return r.conn.PgConn().Exec(ctx, sql).Close()
	}
	_, err := r.conn.Exec(ctx, sql, args...)
	return err
}

func (r *modelRun) note(format string, args ...any) {
	r.log = append(r.log, fmt.Sprintf(format, args...))
}

func (r *modelRun) clock(ctx context.Context) (now float64, err error) {
	err = r.conn.QueryRow(ctx, `select extract(epoch from clock_timestamp())::float8`).Scan(&now)
	return now, err
}

// modelTables reads every message as the tables hold it.
const modelTables = `
select m.id, coalesce(x.state, 'lost'), m.namespace, m.task_queue, m.dispatch_key, coalesce(x.shard, -1), octet_length(m.payload),
       coalesce(extract(epoch from x.visible_after)::float8, 0), coalesce(x.attempt, 0), coalesce(x.claim_token, 0),
       coalesce(x.claimed_by, ''), coalesce(extract(epoch from x.lease_until)::float8, 0), coalesce(x.suspect, 0), coalesce(x.begun, 0), coalesce(x.ripe, false), x.agrees and count(*) over (partition by m.id) = 1
from outbox.message as m
full join (
  select p.id, 'pending' as state, p.shard, p.visible_after, p.attempt, p.suspect, p.ripe, null::smallint as begun, null::bigint as claim_token, null as claimed_by,
         null::timestamptz as lease_until, (p.namespace, p.task_queue, p.payload_bytes)
           = (select m.namespace, m.task_queue, octet_length(m.payload) from outbox.message as m where m.id = p.id) as agrees
  from outbox.pending as p
  union all
  select c.id, 'claimed', c.shard, c.visible_after, c.attempt, c.suspect, null, c.begun, c.claim_token, c.claimed_by, c.lease_until,
         (c.namespace, c.task_queue, c.payload_bytes)
           = (select m.namespace, m.task_queue, octet_length(m.payload) from outbox.message as m where m.id = c.id)
  from outbox.claimed as c
  union all
  select s.id, s.outcome, s.shard, null, s.attempts, null, null, null, null, null, null,
         (s.namespace, s.task_queue) = (select m.namespace, m.task_queue from outbox.message as m where m.id = s.id)
  from outbox.settled as s
) as x on x.id = m.id`

// compare finds every difference between the tables and the model. INV-2: a message
// stands in exactly one table. INV-8: what the step did not touch is as it was.
func (r *modelRun) compare(ctx context.Context) error {
	rows, err := r.conn.Query(ctx, modelTables)
	if err != nil {
		return err
	}
	var errs []error
	found := 0
	var got modelMessage
	var once bool
	_, err = pgx.ForEachRow(rows, []any{
		&got.ID, &got.State, &got.Namespace, &got.Queue, &got.Key, &got.Shard, &got.Bytes, &got.Visible,
		&got.Attempt, &got.Token, &got.Node, &got.Lease, &got.Suspect, &got.Begun, &got.Ripe, &once,
	}, func() error {
		found++
		want := r.model.messages[got.ID]
		if want == nil || !once {
			return fmt.Errorf("INV-2: %+v stands where it should not, or more than once", got)
		}
		if e, ok := r.expect[got.ID]; ok && got.State == want.State {
			if modelWithin(got.Visible, e.visible) {
				want.Visible = got.Visible
			}
			if modelWithin(got.Lease, e.lease) {
				want.Lease = got.Lease
			}
		}
		if got != *want {
			errs = append(errs, fmt.Errorf("INV-8, INV-2: is %+v, should be %+v (or %+v)", got, *want, r.expect[got.ID]))
		}
		return nil
	})
	if found != len(r.model.messages) {
		errs = append(errs, fmt.Errorf("INV-2: %d messages, should be %d", found, len(r.model.messages)))
	}
	clear(r.expect)
	return errors.Join(append(errs, err)...)
}

func modelWithin(x float64, bounds [2]float64) bool {
	return bounds[0] <= x && x <= bounds[1] && bounds != [2]float64{}
}

// from says that visible_after of these will be what lies between the two instants,
// moved on by between least and most seconds.
func (r *modelRun) from(ctx context.Context, ids []int64, before, least, most float64) error {
	after, err := r.clock(ctx)
	for _, id := range ids {
		r.expect[id] = modelExpect{visible: [2]float64{before + least - 1e-5, after + most + 1e-5}}
	}
	return err
}

func (r *modelRun) enqueue(ctx context.Context) error {
	var names, queues, keys []string
	var payloads [][]byte
	burst := r.tenants[r.rng.IntN(len(r.tenants))]
	spread := r.rng.IntN(2) == 0
	for range 1 + r.rng.IntN(40) {
		t := burst
		if spread {
			t = r.tenants[r.rng.IntN(len(r.tenants))]
		}
		r.keys++
		names = append(names, t.name)
		queues = append(queues, t.routes[r.rng.IntN(len(t.routes))])
		keys = append(keys, fmt.Sprint("key", r.keys))
		payloads = append(payloads, make([]byte, r.rng.IntN(100)))
	}
	r.note("enqueue %d, spread %t", len(keys), spread)
	before, err := r.clock(ctx)
	if err != nil {
		return err
	}
	rows, err := r.conn.Query(ctx, `select e.ord, e.id, p.shard
		from outbox.enqueue_batch($1, $2, $3, $4) as e cross join lateral (
		  select outbox.shard_of(($3::text[])[e.ord], $5) as shard) as p`, names, queues, keys, payloads, r.model.shards)
	if err != nil {
		return err
	}
	var ids []int64
	var ord, shard int
	var id int64
	if _, err := pgx.ForEachRow(rows, []any{&ord, &id, &shard}, func() error {
		r.model.messages[id] = &modelMessage{
			ID: id, State: "pending", modelLane: modelLane{names[ord-1], queues[ord-1]}, Key: keys[ord-1], Shard: shard,
			Bytes: len(payloads[ord-1]), Ripe: true,
		}
		ids = append(ids, id)
		return nil
	}); err != nil {
		return err
	}
	if err := r.from(ctx, ids, before, 0, 0); err != nil {
		return err
	}
	return r.reschedule(ctx, ids)
}

// reschedule moves some messages in time: to the past, the future, and the ends of time.
// They wait for it, or are ripe, as if a version before had written them, whatever the time.
func (r *modelRun) reschedule(ctx context.Context, ids []int64) error {
	for _, x := range []struct {
		to    string
		exact float64
	}{{"-infinity", math.Inf(-1)}, {"infinity", math.Inf(1)}, {"2020-01-01 00:00:00Z", 1577836800}, {"2200-01-01 00:00:00Z", 7258118400}} {
		if r.rng.IntN(3) > 0 {
			continue
		}
		some := r.some(ids)
		ripe := r.rng.IntN(3) == 0
		if err := r.exec(ctx, `update outbox.pending as p set visible_after = $2::text::timestamptz, ripe = $3 where p.id = any ($1)`, some, x.to, ripe); err != nil {
			return err
		}
		if err := r.exec(ctx, `update outbox.walk set unripe_all_at = '-infinity'`); err != nil { // as 2 s later: see ripen
			return err
		}
		for _, id := range some {
			delete(r.expect, id)
			r.model.messages[id].Visible, r.model.messages[id].Ripe = x.exact, ripe
		}
	}
	return nil
}

func (r *modelRun) some(ids []int64) []int64 {
	if len(ids) == 0 {
		return []int64{} // not nil, which is null in SQL
	}
	ids = slices.Clone(ids)
	r.rng.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	return ids[:1+r.rng.IntN(len(ids))]
}

// in are the ids of the messages in any of these states.
func (r *modelRun) in(states ...string) []int64 {
	var ids []int64
	for _, id := range slices.Sorted(maps.Keys(r.model.messages)) {
		if slices.Contains(states, r.model.messages[id].State) {
			ids = append(ids, id)
		}
	}
	return ids
}
