package integration

import (
	"context"
	"fmt"
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
		stateOpen(t, db, states["analysed while empty, after use"])
		return stateCalls()[call].judge(t, stateWatch(t, db))
	}
}

func mutants() map[string]mutant {
	return map[string]mutant{
		"INV-2 rows are not locked": {
			"claim_pick.sql", "for update skip locked", "",
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
			"claim_fair.sql", "if v_edges is null or not v_held <@ v_edges then", "if v_edges is null then",
			mutantHammer("INV-4 any shards, any node"),
		},
		"INV-4 the edge passes by what is claimed": {
			"claim_fair.sql", "c.claim_token >= v_edge and v_next", "c.claim_token > v_edge and v_next", mutantModel,
		},
		"INV-4 claimed rows of other shards do not count for strict": {
			"claim_walk.sql", "(select count(*) from outbox.claimed as c where c.namespace = v_names[i])",
			"(select count(*) from outbox.claimed as c where c.namespace = v_names[i] and c.shard = any (claim_walk.next_held))",
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
		"INV-4 no quota": {
			"claim_pick.sql", "claim_pick.headrooms[n]", "1000000", mutantAudit,
		},
		"INV-4 strict namespaces are not locked, seen by check": {
			"claim_walk.sql", "for no key update skip locked", "", mutantAudit,
		},
		"INV-5 no rotation of namespaces": {
			"walk_start.sql", "select w.namespace", "select ''::text", mutantLong("INV-5 200 namespaces, batch 7"),
		},
		"INV-5 the walk's cursor follows the walk where max_bytes cuts": {
			"claim_fair.sql", "v_pick.left_out - 1", "null", mutantLong("INV-5 max_bytes cuts within the first round"),
		},
		"INV-5 new nodes start at the beginning": {
			"walk_start.sql", "w.claimed_at desc limit 1)", "w.claimed_at desc limit 0)", mutantLong("INV-5 nodes that live for one sweep"),
		},
		"INV-5 new nodes start where any other is": {
			"walk_start.sql", "w.edge_shards = walk_start.shards desc, w.edge_shards && walk_start.shards desc, ", "",
			mutantLong("INV-5 nodes that live for one sweep, the shards take turns"),
		},
		"INV-7 new nodes start at the route where any other is": {
			"due_routes.sql", "t.shard is not distinct from due_routes.next_held[1] desc, ", "",
			mutantLong("INV-7 nodes that live for one sweep, the shards take turns"),
		},
		"INV-5 a large payload ends the claim in its turn": {
			"claim_pick.sql", "(p.bytes >= claim_pick.max_bytes and (p.rank > 1 or p.place > 0)) is true, ", "",
			mutantLong("INV-5 large payloads of one namespace"),
		},
		"INV-5 a large payload never has its turn": {
			"claim_pick.sql", "not c.taken and c.rank = 1", "false", mutantLong("INV-5 large payloads of one namespace"),
		},
		"INV-5 one namespace after the other": {
			"claim_pick.sql", "is true, p.rank,", "is true, p.i,", mutantModel,
		},
		"INV-6 no second pass": {
			"claim_pick.sql", "exit when v_left <= 0 or v_more = 0;", "exit;", mutantModel,
		},
		"INV-7 no rotation of routes": {
			"claim_fair.sql", "if v_walk.idle is not null or v_pick.many is not null then", "if false then", mutantModel,
		},
		"INV-8 a row that is not claimed is charged": {
			"claim_fair.sql", "v_token := nextval(", "update outbox.pending as p set attempt = p.attempt + 1 where p.id = (select min(p.id) from outbox.pending as p); v_token := nextval(", mutantModel,
		},
		"INV-9 no token": {
			"lock_claimed.sql", "and c.claim_token + 0 = u.token", "", mutantModel,
		},
		"INV-9 a token for all claims": {
			"claim_fair.sql", "nextval('outbox.claim_token')", "1", mutantModel,
		},
		"INV-10 a claim is not charged": {
			"claim_fair.sql", "2147483646) + 1, -- a charge", "2147483646), -- a charge", mutantModel,
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
			"claim_pick.sql", "order by p.visible_after, p.id limit", "order by p.visible_after desc, p.id limit", mutantPlan,
		},
		"INV-14 a lane is read by id": {
			"claim_pick.sql", "order by p.visible_after, p.id limit", "order by p.id limit", mutantPlan,
		},
		"INV-14 claimed rows are counted by all": {
			"claim_walk.sql", "(c.namespace, c.claim_token)", "(c.namespace || '', c.claim_token)", mutantPlan,
		},
		"INV-14 payloads are joined": {
			"claim_fair.sql", "where m.id = u.id offset 0", "where m.id = u.id", mutantStates("claim_fair"),
		},
		"INV-14 claims are joined to settle them": {
			"lock_claimed.sql", "cross join lateral ( -- by id alone: the planner may take a token, which a claim's rows share, for unique\n      select c.id from outbox.claimed as c where c.id = u.id and c.claim_token + 0 = u.token for update\n    ) as c",
			"join outbox.claimed as c on c.id = u.id and c.claim_token = u.token", mutantStates("complete"),
		},
		"INV-14 a settle looks up by token": {
			"lock_claimed.sql", "c.claim_token + 0 =", "c.claim_token =", mutantStates("complete"),
		},
		"INV-14 pending messages are looked up in lanes": {
			"cancel.sql", "where p.id >= u.id and p.id <= u.id order by p.id limit 1", "where p.id = u.id", mutantStates("cancel"),
		},
		"future rows are claimed": {
			"claim_pick.sql", "and p.visible_after <= claim_pick.now", "", mutantModel,
		},
		"paused routes are claimed": {
			"due_routes.sql", "p.namespace = due_routes.namespace and p.task_queue = r.task_queue)\n       and", "false)\n       and",
			mutantLong("paused routes and namespaces stand still"),
		},
		"max_bytes is never exceeded": {
			"claim_pick.sql", "o.bytes_before < claim_pick.max_bytes", "o.bytes_before + 50 < claim_pick.max_bytes", mutantModel,
		},
		"explain_claim has its own batch": {
			"explain_claim.sql", "explain_claim.batch, explain_claim.max_bytes", "explain_claim.batch + 1, explain_claim.max_bytes", mutantModel,
		},
	}
}

// TestClaimMutants plants faults and wants each found.
func TestClaimMutants(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes up to a minute")
	}
	for name, m := range mutants() {
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
