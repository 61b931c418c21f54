package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestClaimModel plays random histories (enqueue, claim, settle, rescue, cancel,
// redrive, pause, quota) against the model: INV-1, INV-2, INV-4 to INV-10 as far as
// one session can see them, and that explain_claim foretells each claim.
//
// FAIRCLAIM_MODEL_TIME is how long it goes on (15s), FAIRCLAIM_MODEL_SEED the first
// seed (a new one each time); a failure names the seed that repeats it.
func TestClaimModel(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64() >> 16
	if text := os.Getenv("FAIRCLAIM_MODEL_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("FAIRCLAIM_MODEL_SEED: %v", err)
		}
	}
	length := 15 * time.Second
	if testing.Short() {
		length = 3 * time.Second
	}
	if text := os.Getenv("FAIRCLAIM_MODEL_TIME"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatalf("FAIRCLAIM_MODEL_TIME: %v", err)
		}
	}
	conn := pg.New(t).Connect(t)
	histories := uint64(0)
	for start := time.Now(); time.Since(start) < length; histories++ {
		if err := modelHistory(t.Context(), conn, seed+histories, modelSteps); err != nil {
			t.Fatalf("%v\nrepeat it with FAIRCLAIM_MODEL_SEED=%d", err, seed+histories)
		}
	}
	t.Logf("%d histories from seed %d", histories, seed)
}

// modelSteps is the length of a history.
const modelSteps = 60

// modelLease is the lease in seconds, longer than a history takes on any machine.
const modelLease = 36000

// claim asks explain_claim, claims, judges the rows, and takes them over.
func (r *modelRun) claim(ctx context.Context) error {
	node := r.nodes[r.rng.IntN(len(r.nodes))]
	if r.rng.IntN(6) == 0 {
		r.keys++
		node = modelNode{fmt.Sprint("once", r.keys), r.someShards()}
	} else if r.rng.IntN(6) == 0 {
		node.shards = r.someShards()
	}
	c := modelClaim{
		node: node.name, shards: node.shards, batch: 1 + r.rng.IntN(60), lease: modelLease,
		maxBytes: []int{0, 0, 0, 1, 150, 1000, 1 << 20}[r.rng.IntN(7)],
	}
	if r.rng.IntN(2) == 0 {
		c.batch = 1 + r.rng.IntN(8)
	}
	if r.isOutage && r.rng.IntN(4) > 0 {
		c.maxBytes = 0
	}
	r.note("claim by %s on %v, batch %d, max_bytes %d", c.node, c.shards, c.batch, c.maxBytes)
	if err := r.start(ctx, &c); err != nil {
		return err
	}
	unread := len(r.model.unripe(c))+len(r.model.reports) > 0 // explain_claim leaves them where they are
	explained, err := r.explain(ctx, c)
	if err != nil {
		return fmt.Errorf("explain_claim: %w", err)
	}
	payloads := r.rng.IntN(3) > 0
	rows, err := modelClaimWith(ctx, r.conn, c.node, c.shards, c.batch, c.maxBytes, payloads)
	if err != nil {
		return fmt.Errorf("claim_fair: %w", err)
	}
	now, err := r.past(ctx, c.now)
	if err != nil {
		return err
	}
	if err := r.judgeDue(c, explained); err != nil {
		return err
	}
	if !unread {
		if err := r.judgeExplain(c, explained, rows); err != nil {
			return err
		}
	}
	r.model.ripen(c)
	r.model.fold(now, r.token)
	if err := errors.Join(r.model.judge(c, rows), r.judgeRotation(c, rows), r.judgeProbes(c, rows)); err != nil {
		return err
	}
	r.model.tried(rows)
	for _, row := range rows {
		if row.Token <= r.token {
			return fmt.Errorf("INV-9: token %d after %d", row.Token, r.token)
		}
		m := r.model.messages[row.ID]
		m.State, m.Ripe, m.Token, m.Node, m.Lease, m.Attempt = "claimed", false, row.Token, c.node, row.Lease, row.Attempt
		if payloads {
			m.Begun = len(rows)
		}
	}
	if len(rows) > 0 {
		r.token = rows[0].Token
	}
	r.note("  %d rows", len(rows))
	return nil
}

// start reads what decides where the claim goes on.
func (r *modelRun) start(ctx context.Context, c *modelClaim) error {
	if err := r.conn.QueryRow(ctx, `select extract(epoch from clock_timestamp())::float8,
		  coalesce((select w.namespace from outbox.walk as w
		            order by w.node = $1 desc, w.edge_shards = s.shards desc, w.edge_shards && s.shards desc, w.claimed_at desc limit 1), '')
		from (select array_agg(u.shard order by u.shard) as shards from unnest($2::int[]) as u(shard)) as s`,
		c.node, c.shards).Scan(&c.now, &c.cursor); err != nil {
		return err
	}
	c.routes = map[string]string{}
	rows, err := r.conn.Query(ctx, `select distinct on (t.namespace) t.namespace, t.task_queue from outbox.route as t
		order by t.namespace, t.node = $1 desc, t.shard is not distinct from (select min(u.shard) from unnest($2::int[]) as u(shard)) desc,
		  t.served_at desc`, c.node, c.shards)
	if err != nil {
		return err
	}
	var namespace, queue string
	_, err = pgx.ForEachRow(rows, []any{&namespace, &queue}, func() error {
		c.routes[namespace] = queue
		return nil
	})
	return err
}

func modelClaimRows(ctx context.Context, conn querier, node string, shards []int, batch, maxBytes int) ([]modelClaimed, error) {
	return modelClaimWith(ctx, conn, node, shards, batch, maxBytes, true)
}

// modelClaimWith claims, and reads the payloads after the claim where they do not come with it.
func modelClaimWith(ctx context.Context, conn querier, node string, shards []int, batch, maxBytes int, payloads bool) ([]modelClaimed, error) {
	rows, err := conn.Query(ctx, `select c.id, c.claim_token, c.namespace, c.task_queue, c.dispatch_key, c.shard, c.attempt,
		  coalesce(octet_length(c.payload), -1), extract(epoch from c.lease_until)::float8, c.pass, c.suspect, c.payload_bytes
		from outbox.claim_fair($1, $2, $3, nullif($4, 0), $5) as c`, node, shards, batch, maxBytes, payloads)
	if err != nil {
		return nil, err
	}
	bytes := map[int64]int{}
	var ids, tokens []int64
	claimed, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c modelClaimed, err error) {
		err = row.Scan(&c.ID, &c.Token, &c.Namespace, &c.Queue, &c.Key, &c.Shard, &c.Attempt, &c.Bytes, &c.Lease, &c.Pass, &c.Suspect, &c.Size)
		ids, tokens = append(ids, c.ID), append(tokens, c.Token)
		return c, err
	})
	if err != nil || payloads || len(claimed) == 0 {
		return claimed, err
	}
	rows, err = conn.Query(ctx, `select p.id, octet_length(p.payload) from outbox.payloads($1, $2) as p`, ids, tokens)
	if err != nil {
		return nil, err
	}
	var id int64
	var n int
	_, err = pgx.ForEachRow(rows, []any{&id, &n}, func() error { bytes[id] = n; return nil })
	for i := range claimed {
		c := &claimed[i]
		if c.Suspect > 0 && c.Bytes != -1 || c.Suspect == 0 && c.Bytes != bytes[c.ID] { // all of the model's are small
			return nil, fmt.Errorf("a claim without payloads returned %d bytes of a message with suspect %d, payloads() %d", c.Bytes, c.Suspect, bytes[c.ID])
		}
		c.Bytes = bytes[c.ID]
	}
	return claimed, err
}

// modelExplained is a row of explain_claim.
type modelExplained struct {
	Namespace string
	Due       int
	Claimed   int
	Quota     int
	Ceiling   int
	Headroom  int
	Slice     *int
	Pass1     int
	Pass2     int
	Reason    string
}

// explain asks in a read-only transaction, where nothing can be written or locked.
func (r *modelRun) explain(ctx context.Context, c modelClaim) ([]modelExplained, error) {
	tx, err := r.conn.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	rows, err := tx.Query(ctx, `select e.namespace, e.due, e.claimed, e.quota, e.ceiling, e.headroom, e.slice, e.pass1, e.pass2, e.reason
		from outbox.explain_claim($1, $2, $3, nullif($4, 0)) as e where e.namespace is not null`, c.node, c.shards, c.batch, c.maxBytes)
	if err != nil {
		return nil, err
	}
	explained, err := pgx.CollectRows(rows, pgx.RowToStructByPos[modelExplained])
	if err != nil {
		return nil, err
	}
	var locks int
	err = tx.QueryRow(ctx, `select count(*) from pg_locks as l where l.pid = pg_backend_pid() and l.locktype = 'advisory'`).Scan(&locks)
	if err == nil && locks > 0 {
		err = fmt.Errorf("it holds %d advisory locks", locks)
	}
	return explained, err
}

// judgeExplain: explain_claim names the namespaces that the claim visits, in order,
// with the numbers of the model and the rows of the claim.
func (r *modelRun) judgeExplain(c modelClaim, explained []modelExplained, rows []modelClaimed) error {
	visits := r.model.visits(c)
	active := 0
	for _, v := range visits {
		if v.verdict == "eligible" {
			active++
		}
	}
	got := map[string][3]int{}
	for _, row := range rows {
		n := got[row.Namespace]
		if row.Pass == 0 { // the probe, which is of one of the passes
			row.Pass = 1 + min((n[1]+n[2])/((c.batch+max(active, 1)-1)/max(active, 1)), 1)
		}
		n[row.Pass]++
		got[row.Namespace] = n
	}
	if len(explained) < len(visits) {
		return fmt.Errorf("explain_claim names %d namespaces, the claim visits %d: %v", len(explained), len(visits), explained)
	}
	for _, e := range explained[len(visits):] { // nothing of theirs is ripe
		if e.Due > 0 || e.Pass1+e.Pass2 > 0 || len(r.model.namespaces(modelStart)) > 0 && slices.Contains(r.model.namespaces(modelStart), e.Namespace) {
			return fmt.Errorf("explain_claim names %+v, which the claim does not visit", e)
		}
	}
	for i, e := range explained[:len(visits)] {
		v := visits[i]
		due := 0
		for _, queue := range slices.Collect(maps.Keys(r.routes(v.namespace))) {
			due += r.model.due(modelLane{v.namespace, queue}, c.shards, c.now)
		}
		want := modelExplained{
			Namespace: v.namespace, Due: min(due, r.model.countCap), Claimed: v.claimed, Quota: r.model.quota(v.namespace).quota,
			Ceiling: v.ceiling, Headroom: v.headroom, Pass1: got[v.namespace][1], Pass2: got[v.namespace][2],
			Slice: e.Slice, Reason: e.Reason,
		}
		if e != want || e.Reason == "" {
			return fmt.Errorf("explain_claim says %+v, the claim and the model %+v", e, want)
		}
		if active > 0 && (e.Slice == nil || *e.Slice != (c.batch+active-1)/active) {
			return fmt.Errorf("explain_claim: %d active in a batch of %d, wrong slice: %+v", active, c.batch, e)
		}
	}
	return nil
}

// judgeDue: explain_claim counts what is due, ripe or not.
func (r *modelRun) judgeDue(c modelClaim, explained []modelExplained) error {
	for _, e := range explained {
		due := len(r.model.all(func(m *modelMessage) bool {
			return m.State == "pending" && m.Namespace == e.Namespace && m.Visible <= c.now && slices.Contains(c.shards, m.Shard)
		}))
		if e.Due != min(due, r.model.countCap) {
			return fmt.Errorf("explain_claim counts %d due messages of %q, there are %d", e.Due, e.Namespace, due)
		}
	}
	return nil
}

func (r *modelRun) routes(namespace string) map[string]bool {
	routes := map[string]bool{}
	for _, t := range r.tenants {
		if t.name == namespace {
			for _, q := range t.routes {
				routes[q] = true
			}
		}
	}
	return routes
}

// judgeRotation: while a namespace waits that a node could have served each time, the
// node serves no other one twice, or, where a claim met messages too large to go beside
// others, makes no more claims than there are namespaces (INV-5); likewise for the routes of a
// namespace each time that it is served (INV-7).
func (r *modelRun) judgeRotation(c modelClaim, rows []modelClaimed) error {
	served := map[string]bool{}
	lanes := map[modelLane]bool{}
	for _, row := range rows {
		served[row.Namespace] = true
		lanes[row.modelLane] = true
	}
	idle := map[string]bool{}
	large := false
	for _, v := range r.model.visits(c) {
		idle[v.namespace] = v.verdict == "idle"
		large = large || r.model.hasLarge(c, v.namespace)
	}
	for _, t := range r.tenants {
		v := r.model.visitAlone(c, t.name)
		at := modelLane{c.node, t.name}
		if v.verdict != "eligible" || served[t.name] {
			delete(r.waiting, at)
			delete(r.claims, at)
			delete(r.isLarge, at)
		} else if r.claims[at]++; r.claims[at] > len(r.tenants) {
			return fmt.Errorf("INV-5: %q was passed over in %d claims of %s, with %d namespaces", t.name, r.claims[at], c.node, len(r.tenants))
		} else if r.isLarge[at] = r.isLarge[at] || large; r.isLarge[at] {
			continue
		} else if twice := modelWait(r.waiting, at, served); twice != "" {
			return fmt.Errorf("INV-5: %q was served twice by %s while %q waited", twice, c.node, t.name)
		}
		if served[t.name] || idle[t.name] {
			if err := r.judgeRoutes(c, t, lanes); err != nil {
				return err
			}
		}
	}
	return nil
}

// judgeRoutes: a namespace had its turn: it was served, or it was idle, which moves the
// window of max_routes on. A route that had nothing due then has had its turn too.
func (r *modelRun) judgeRoutes(c modelClaim, t modelTenant, lanes map[modelLane]bool) error {
	if r.model.hasLarge(c, t.name) { // what a large message kept out has not had its turn
		for _, q := range t.routes {
			lane := modelLane{t.name, q}
			delete(r.route, modelRoute{c.node, lane})
			if lanes[lane] || !r.model.waits(c, lane) {
				delete(r.waits, modelRoute{c.node, lane})
			}
		}
		return nil
	}
	queues := map[string]bool{}
	for _, q := range t.routes {
		if lanes[modelLane{t.name, q}] {
			queues[q] = true
		}
	}
	for _, q := range t.routes {
		lane := modelLane{t.name, q}
		at := modelRoute{c.node, lane}
		if queues[q] || !r.model.waits(c, lane) {
			delete(r.route, at)
			delete(r.waits, at)
		} else if twice := modelWait(r.route, at, queues); twice != "" && len(t.routes) <= r.model.maxRoutes && r.model.gate(lane, c.now) == modelOpen {
			return fmt.Errorf("INV-7: route %q was served twice by %s while %v waited", twice, c.node, lane)
		} else if r.waits[at]++; r.waits[at] >= len(t.routes) {
			return fmt.Errorf("INV-7: %q had %d turns by %s that left out route %q", t.name, r.waits[at], c.node, q)
		}
	}
	return nil
}

// modelWait adds those served to what at has waited for; returns one that is there.
func modelWait[K comparable](waiting map[K]modelServed, at K, served map[string]bool) string {
	if waiting[at] == nil {
		waiting[at] = modelServed{}
	}
	for name := range served {
		if waiting[at][name] {
			return name
		}
		waiting[at][name] = true
	}
	return ""
}
