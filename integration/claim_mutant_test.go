package integration

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// mutant is a fault planted into one of the functions. Some test must find it: a test
// that cannot fail proves nothing.
type mutant struct {
	file string // below sql/functions
	old  string // every one of these
	new  string // becomes one of these
	find func(ctx context.Context, t *testing.T, db *pgtest.DB) error
}

// mutantModel finds by histories against the model.
func mutantModel(ctx context.Context, t *testing.T, db *pgtest.DB) error {
	t.Helper()
	conn := db.Connect(t)
	for seed := range uint64(300) {
		if err := modelHistory(ctx, conn, seed, modelSteps); err != nil {
			return err
		}
	}
	return nil
}

// mutantLong finds by one of the long runs.
func mutantLong(name string) func(context.Context, *testing.T, *pgtest.DB) error {
	return func(ctx context.Context, t *testing.T, db *pgtest.DB) error {
		t.Helper()
		run, ok := longRuns()[name]
		if !ok {
			t.Fatalf("there is no long run %q", name)
		}
		return run.play(ctx, db.Connect(t))
	}
}

// mutantHammer finds by one of the hammers.
func mutantHammer(name string) func(context.Context, *testing.T, *pgtest.DB) error {
	return func(ctx context.Context, t *testing.T, db *pgtest.DB) error {
		t.Helper()
		h, ok := hammers()[name]
		if !ok {
			t.Fatalf("there is no hammer %q", name)
		}
		h.wait = 200 * time.Millisecond
		return h.run(ctx, db, patience(), 1)
	}
}

// mutantBeside finds by a claim beside an open one of the same shards.
func mutantBeside(ctx context.Context, t *testing.T, db *pgtest.DB) error {
	t.Helper()
	run(t, db.Connect(t), longBacklog(2, 1, 10, 1))
	claimOn(t, begin(t, withoutWaiting(t, db.Connect(t))), "node", longShards(), 5)
	_, err := modelClaimRows(ctx, withoutWaiting(t, db.Connect(t)), "other", longShards(), 5, 0)
	return err
}

// mutantAudit finds by outbox.check alone.
func mutantAudit(ctx context.Context, t *testing.T, db *pgtest.DB) error {
	t.Helper()
	h := hammers()["INV-4 strict namespaces, shards that move"]
	h.check, h.wait = "", time.Second
	return h.run(ctx, db, patience(), 1)
}

// mutantPlan finds by the plans, with statistics from when the tables were empty.
func mutantPlan(_ context.Context, t *testing.T, db *pgtest.DB) error {
	t.Helper()
	planPrepare(t, db, planStatistics["analysed while empty"])
	return planJudge(t, db)
}

// mutantStates finds by what a call reads, with statistics from when the tables were empty.
func mutantStates(call string) func(context.Context, *testing.T, *pgtest.DB) error {
	return func(_ context.Context, t *testing.T, db *pgtest.DB) error {
		t.Helper()
		stateOpen(t, db, states["analysed while empty, after use"], stateCalls())
		return stateCalls()[call].judge(t, stateWatch(t, db))
	}
}

// mutantPairs is how a settle compares pairs of ids and claim tokens.
func mutantPairs(function, alias string) string {
	return strings.NewReplacer("F", function, "A", alias).Replace("((d.id, d.claim_token) in (select A.id, A.token from unnest(F.ids, F.tokens) as A(id, token)\n" +
		"                                        where (A.id, A.token) is not null)) is true")
}

func mutants() map[string]mutant {
	return map[string]mutant{
		"INV-2 rows are not locked": {
			"claim_read.sql", "for update skip locked", "",
			mutantHammer("INV-2 beside cancel, redrive, reschedule and rescue"),
		},
		"INV-4 no shard locks": {
			"claim_fair.sql", "where pg_try_advisory_xact_lock(v_class, s.shard)", "",
			mutantHammer("INV-4 one shard, so a claim must see the one before"),
		},
		"INV-4 a ceiling of all shards": {
			"claim_walk.sql", "claim_walk.held,\n", "(claim_walk.config).shard_count,\n", mutantModel,
		},
		"INV-4 an edge of other shards": {
			"claim_fair.sql", "if v_start.edge_shards is null or not v_held <@ v_start.edge_shards then", "if v_start.edge_shards is null then",
			mutantHammer("INV-4 any shards, any node"),
		},
		"INV-4 the edge passes by what is claimed": {
			"claim_fair.sql", "c.claim_token >= v_start.edge and v_next", "c.claim_token > v_start.edge and v_next", mutantModel,
		},
		"INV-4 claimed rows of other shards do not count for strict": {
			"claim_walk.sql", "where c.namespace = v_stride[v_last].namespace);",
			"where c.namespace = v_stride[v_last].namespace and c.shard = any (claim_walk.next_held));",
			mutantLong("INV-4 strict, the shards take turns"),
		},
		"INV-4 strict namespaces are not locked": {
			"claim_walk.sql", "for no key update skip locked", "", mutantHammer("INV-4 strict namespaces, disjoint shards"),
		},
		"INV-4 a ceiling of all shards, any shards, any node": {
			"claim_walk.sql", "claim_walk.held,\n", "(claim_walk.config).shard_count,\n", mutantHammer("INV-4 any shards, any node"),
		},
		"INV-4 a ceiling of all shards, a partition that moves": {
			"claim_walk.sql", "claim_walk.held,\n", "(claim_walk.config).shard_count,\n", mutantHammer("INV-4 a partition that moves"),
		},
		"INV-4 strict namespaces are not locked, shards that move": {
			"claim_walk.sql", "for no key update skip locked", "", mutantHammer("INV-4 strict namespaces, shards that move"),
		},
		"INV-4 all that is claimed is held against a ceiling without room for the batch": {
			"claim_walk.sql", "when v_few <= q.ceiling - claim_walk.batch then v_few", "when v_few <= q.ceiling then 0 * v_few", mutantModel,
		},
		"INV-4 no quota": {
			"claim_read.sql", "then v.ceiling - v.claimed else 0 end", "then 1000000 else 0 end", mutantAudit,
		},
		"INV-4 strict namespaces are not locked, seen by check": {
			"claim_walk.sql", "for no key update skip locked", "", mutantAudit,
		},
		"INV-5 no rotation of namespaces": {
			"walk_start.sql", "select w.namespace", "select ''::text", mutantLong("INV-5 200 namespaces, batch 7"),
		},
		"INV-5 the walk's cursor follows the walk where max_bytes cuts": {
			"claim_fair.sql", "v_order.left_out - 1", "null", mutantLong("INV-5 max_bytes cuts within the first round"),
		},
		"INV-5 new nodes start at the beginning": {
			"walk_start.sql", "w.claimed_at desc limit 1)", "w.claimed_at desc limit 0)", mutantLong("INV-5 nodes that live for one sweep"),
		},
		"INV-5 new nodes start where any other is": {
			"walk_start.sql", "w.edge_shards = walk_start.shards desc, w.edge_shards && walk_start.shards desc, ", "",
			mutantLong("INV-5 nodes that live for one sweep, the shards take turns"),
		},
		"INV-7 new nodes start at the route where any other is": {
			"route_start.sql", "t.shard is not distinct from route_start.next_held[1] desc, ", "",
			mutantLong("INV-7 nodes that live for one sweep, the shards take turns"),
		},
		"INV-5 a large payload ends the claim in its turn": {
			"claim_order.sql", "(p.payload_bytes >= claim_order.max_bytes and (p.rank > 1 or p.place > 0)) is true, ", "",
			mutantLong("INV-5 large payloads of one namespace"),
		},
		"INV-5 a large payload never has its turn": {
			"claim_order.sql", "not c.taken and c.rank = 1", "false", mutantLong("INV-5 large payloads of one namespace"),
		},
		"INV-5 one namespace after the other": {
			"claim_order.sql", "is true, p.rank,", "is true, p.visit,", mutantModel,
		},
		"INV-6 no second pass": {
			"claim_read.sql", "exit when v_left <= 0 or v_hungry = 0;", "exit;", mutantModel,
		},
		"INV-5 no turn among those that a claim reaches": {
			"claim_order.sql", "v_start := coalesce(claim_order.turn % v_places, 0);", "v_start := 0;", mutantLong("INV-6 the odd remainder moves on"),
		},
		"INV-5 who has no more stays in line": {
			"claim_order.sql", "if v_rank > v_least then -- some", "if v_rank > v_least and cardinality(v_before) = 1 then -- some", mutantModel,
		},
		"INV-6 the first reading is the last": {
			"claim_read.sql", "    if v_first and cardinality(ids)", "    if v_first or cardinality(ids)", mutantModel,
		},
		"INV-7 two or three routes are not taken in turn": {
			"claim_walk.sql", "t.task_queue), true) desc, u.n)", "t.task_queue), true) and false, u.n)", mutantModel,
		},
		"INV-7 more routes than a search may find": {
			"claim_walk.sql", "cardinality(w.task_queues) <= (claim_walk.config).max_routes\n", "true\n", mutantModel,
		},
		"one of two or three routes is paused": {
			"claim_walk.sql", "or v_any_pause and (select z", "or false and (select z", mutantModel,
		},
		"INV-7 no rotation of routes": {
			"claim_fair.sql", "if v_walk.several then", "if false then", mutantModel,
		},
		"INV-8 a row that is not claimed is charged": {
			"claim_fair.sql", "v_token := nextval(", "update outbox.pending as p set attempt = p.attempt + 1 where p.id = (select min(p.id) from outbox.pending as p); v_token := nextval(", mutantModel,
		},
		"INV-9 no token": {
			"complete.sql", "and " + mutantPairs("complete", "u"), "", mutantModel,
		},
		"INV-9 no token for a failed attempt": {
			"failed_attempts.sql", "and " + mutantPairs("failed_attempts", "x"), "", mutantModel,
		},
		"INV-9 no token for a release": {
			"release.sql", "and " + mutantPairs("release", "u"), "", mutantModel,
		},
		"INV-9 a token for all claims": {
			"claim_fair.sql", "nextval('outbox.claim_token')", "1", mutantModel,
		},
		"INV-10 a claim is not charged": {
			"claim_fair.sql", "2147483646) + 1, -- it must not", "2147483646), -- it must not", mutantModel,
		},
		"INV-10 a release is charged": {
			"release.sql", "greatest(c.attempt - 1, 0)", "c.attempt", mutantModel,
		},
		"INV-10 a rescue charges whoever was out with others": {
			"rescue.sql", "d.begun = 1 or d.begun > 1 and d.suspect >= 9 as charged", "true as charged", mutantModel,
		},
		"INV-10 a rescue charges nobody": {
			"rescue.sql", "d.begun = 1 or d.begun > 1 and d.suspect >= 9 as charged", "false as charged", mutantModel,
		},
		"INV-10 who waits for its turn becomes more suspect": {
			"rescue.sql", "case when f.waited then f.suspect else", "case when false then f.suspect else", mutantModel,
		},
		"INV-10 a release forgets what is suspect": {
			"release.sql", "c.payload_bytes, c.suspect\n", "c.payload_bytes, 0\n", mutantModel,
		},
		"INV-9 a delivery begins with any token": {
			"begin_delivery.sql", "where c.token = u.token", "where true", mutantModel,
		},
		"INV-11 a claim waits for the shards": {
			"claim_fair.sql", "where pg_try_advisory_xact_lock(v_class, s.shard)",
			"where pg_advisory_xact_lock(v_class, s.shard) is not null and random() >= 0", mutantBeside,
		},
		"INV-14 lanes are not inlined": {
			"walk_lanes.sql", "language sql stable", "language sql stable set search_path = pg_catalog", mutantPlan,
		},
		"INV-14 a lane is sorted": {
			"claim_read.sql", "order by p.visible_after, p.id limit", "order by p.visible_after desc, p.id limit", mutantPlan,
		},
		"INV-14 a lane is read by id": {
			"claim_read.sql", "order by p.visible_after, p.id limit", "order by p.id limit", mutantPlan,
		},
		"INV-14 claimed rows are counted by all": {
			"claim_walk.sql", "(c.namespace, c.claim_token)", "(c.namespace || '', c.claim_token)", mutantPlan,
		},
		"INV-14 payloads are joined": {
			"claim_fair.sql", "where m.id = v_read.ids[u.i] offset 0", "where m.id = v_read.ids[u.i]", mutantStates("claim_fair"),
		},
		"INV-14 claims are joined to settle them": {
			"complete.sql", mutantPairs("complete", "u"), strings.TrimSuffix(mutantPairs("complete", "u"), " is true"), mutantStates("complete"),
		},
		"INV-14 a settle looks up by token": {
			"lock_claimed.sql", "c.claim_token + 0 =", "c.claim_token =", mutantStates("complete, in trouble"),
		},
		"INV-14 a settle of many messages costs more a message": {
			"complete.sql", "v_now := clock_timestamp();",
			"v_now := clock_timestamp(); perform count(*) from generate_series(1, cardinality(ids)::bigint * cardinality(ids) / 1000);",
			mutantStates("complete"),
		},
		"future rows are claimed": {
			"claim_read.sql", "and p.visible_after <= claim_read.now", "", mutantModel,
		},
		"what waits is never ripe": {
			"claim_fair.sql", "from outbox.ripen(v_held,", "from outbox.ripen('{}',", mutantModel,
		},
		"what waits becomes ripe before its time": {
			"ripen.sql", "and p.visible_after <= ripen.now\n      order by p.visible_after, p.id limit v_part", "\n      order by p.visible_after, p.id limit v_part", mutantModel,
		},
		"a claim makes ripe what is on shards of others": {
			"claim_fair.sql", "from outbox.ripen(v_held,", "from outbox.ripen(outbox.all_shards(),", mutantModel,
		},
		"the edge of what waits is one of other shards": {
			"claim_fair.sql", "v_start.unripe_all_at := '-infinity'::timestamptz;", "", mutantModel,
		},
		"a retry is ripe at once": {
			"failed_attempts.sql", "f.due_at <= v_now", "true", mutantModel,
		},
		"explain_claim does not count what came due": {
			"count_due.sql", "(select from outbox.unripe_due(", "(select from outbox.unripe_due('none' || ", mutantModel,
		},
		"paused routes are claimed": {
			"route_paused.sql", "p.namespace = route_paused.namespace and p.task_queue = route_paused.task_queue", "false",
			mutantLong("paused routes and namespaces stand still"),
		},
		"a pause of a route does not end": {"route_paused.sql", "coalesce(p.until > route_paused.now, true)", "true", mutantModel},
		"a pause of a namespace does not end": {
			"namespace_paused.sql", "coalesce(p.until > namespace_paused.now, true)", "true", mutantModel,
		},
		"a pause of everything does not end": {"claim_walk.sql", "coalesce(p.until > claim_walk.now, true)", "true", mutantModel},
		"a pause with an end holds nothing":  {"route_paused.sql", "coalesce(p.until > route_paused.now, true)", "p.until is null", mutantModel},
		"max_bytes is never exceeded": {
			"claim_order.sql", "o.bytes_before < claim_order.max_bytes", "o.bytes_before + 50 < claim_order.max_bytes", mutantModel,
		},
		"explain_claim has its own batch": {
			"explain_claim.sql", "explain_claim.batch,\n                                            explain_claim.max_bytes", "explain_claim.batch + 1,\n                                            explain_claim.max_bytes", mutantModel,
		},
	}
}

// TestClaimMutants plants faults and wants each found.
func TestClaimMutants(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes up to a minute")
	}
	all := mutants()
	maps.Copy(all, mutantsOfHolds())
	maps.Copy(all, mutantsOfReports())
	for name, m := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pg.New(t)
			if err := m.plant(t, db); err != nil {
				t.Fatal(err)
			}
			err := m.find(t.Context(), t, db)
			if err == nil {
				t.Fatal("nobody has found it")
			}
			first, _, _ := strings.Cut(err.Error(), "\n")
			t.Log("found:", first)
		})
	}
}

func (m mutant) plant(t *testing.T, db *pgtest.DB) error {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(functionsDir, m.file))
	if err != nil {
		return err
	}
	if !strings.Contains(string(text), m.old) {
		return fmt.Errorf("%s does not contain %q any more", m.file, m.old)
	}
	run(t, db.Connect(t), strings.ReplaceAll(string(text), m.old, m.new))
	return nil
}
