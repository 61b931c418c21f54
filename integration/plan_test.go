package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// planNode is a node of a plan as EXPLAIN (FORMAT JSON) gives it.
type planNode struct {
	Type      string     `json:"Node Type"`
	Relation  string     `json:"Relation Name"`
	Index     string     `json:"Index Name"`
	Function  string     `json:"Function Name"`
	Cond      string     `json:"Index Cond"`
	Hit       int        `json:"Shared Hit Blocks"`
	Read      int        `json:"Shared Read Blocks"`
	Rows      float64    `json:"Actual Rows"` // of these and the next three, the mean of all loops
	Removed   float64    `json:"Rows Removed by Filter"`
	Unjoined  float64    `json:"Rows Removed by Join Filter"`
	Rechecked float64    `json:"Rows Removed by Index Recheck"`
	Loops     float64    `json:"Actual Loops"`
	Plans     []planNode `json:"Plans"`
}

// planStatement is one statement that ran inside a function.
type planStatement struct {
	where string   // the function and the line
	Query string   `json:"Query Text"`
	Plan  planNode `json:"Plan"`
}

// planTables are those that grow with the traffic, and the indexes that a claim reads
// them by.
var planTables = map[string][]string{
	"pending": {"pending_ripe", "pending_unripe_due", "pending_unripe_namespace"}, "claimed": {"claimed_namespace", "claimed_token", "claimed_pkey"}, "message": {"message_pkey"}, "namespace": {"namespace_pkey"},
	"settled": nil, "failure": nil,
}

// planInlined are functions that a statement must take in, besides those whose names begin with walk_.
var planInlined = []string{"due_routes", "claim_lanes", "route_start", "route_paused", "route_gate", "namespace_paused", "unripe_due", "unripe_namespaces"}

// planWatch returns a session whose nested statements are reported with their plans.
func planWatch(t *testing.T, db *pgtest.DB) (*pgx.Conn, *[]planStatement) {
	t.Helper()
	var seen []planStatement
	conn := db.Admin(t, func(c *pgx.ConnConfig) {
		c.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
			_, text, ok := strings.Cut(n.Message, "plan:\n")
			if !ok {
				return
			}
			s := planStatement{where: "the call itself"}
			if at := strings.Index(n.Where, "PL/pgSQL function "); at >= 0 {
				s.where, _, _ = strings.Cut(n.Where[at:], "\n")
			}
			if err := json.Unmarshal([]byte(text), &s); err != nil {
				t.Errorf("%v in a plan:\n%s", err, text)
			}
			seen = append(seen, s)
		}
	})
	run(t, conn, `load 'auto_explain'; set auto_explain.log_nested_statements = on; set auto_explain.log_level = notice;
		set auto_explain.log_format = json; set auto_explain.log_min_duration = 0`)
	return conn, &seen
}

// faults lists what must not be in a plan; above is what stands over n and decides how
// much of it is read.
func (n planNode) faults(above string) []string {
	var faults []string
	indexes, large := planTables[n.Relation]
	scan := strings.HasSuffix(n.Type, "Scan") && n.Type != "Tid Scan"
	switch {
	case strings.HasPrefix(n.Function, "walk_") || slices.Contains(planInlined, n.Function):
		faults = append(faults, n.Function+" is not inlined")
	case large && scan && !slices.Contains(indexes, n.Index):
		faults = append(faults, fmt.Sprintf("%s of %s by %q", n.Type, n.Relation, n.Index))
	case large && scan && n.Cond == "" && above != "Limit":
		faults = append(faults, fmt.Sprintf("%s of all of %s", n.Type, n.Relation))
	case large && scan && n.Relation == "pending" && planCollects(above):
		faults = append(faults, fmt.Sprintf("%s of a part of %s", above, n.Relation))
	}
	switch {
	case n.Type == "Limit" || planCollects(n.Type):
		above = n.Type
	case !slices.Contains([]string{"Result", "Subquery Scan", "Append", "LockRows"}, n.Type) && !planCollects(above):
		above = "" // a join or the like reads on
	}
	for _, below := range n.Plans {
		faults = append(faults, below.faults(above)...)
	}
	return faults
}

// planCollects: the node reads everything below before it gives its first row.
func planCollects(node string) bool {
	return slices.Contains([]string{"Sort", "Incremental Sort", "Hash", "Materialize"}, node)
}

func (n planNode) indexes() []string {
	used := []string{n.Index}
	for _, below := range n.Plans {
		used = append(used, below.indexes()...)
	}
	return used
}

// planFill writes messages straight into the tables: namespaces times routes times each,
// on all shards, with the given expression for visible_after.
func planFill(t *testing.T, conn *pgx.Conn, prefix string, namespaces, routes, each int, visible string) {
	t.Helper()
	run(t, conn, fmt.Sprintf(`
		with m as (
		  insert into outbox.message (namespace, task_queue, dispatch_key, content_type, headers, payload)
		  select '%[1]s' || lpad(n::text, 6, '0'), 'q' || q, concat_ws('.', '%[1]s', n, q, k, (select count(*) from outbox.message)), 'text/plain', '{}', ''
		  from generate_series(1, %[4]d) as k, generate_series(1, %[2]d) as n, generate_series(1, %[3]d) as q
		  returning id, namespace, task_queue, dispatch_key)
		insert into outbox.pending (id, namespace, task_queue, shard, visible_after, ripe, payload_bytes)
		select m.id, m.namespace, m.task_queue, outbox.shard_of(m.dispatch_key, 16), %[5]s, %[5]s <= now(), 0 from m`,
		prefix, namespaces, routes, each, visible))
}

// planPast is a visible_after of its own for each row, as real traffic has it.
const planPast = `now() - make_interval(secs => 1 + m.id / 1000.0)`

// planStatistics are the states of the planner's statistics, as set-up scripts before
// and after the tables are filled.
var planStatistics = map[string][2]string{
	"never analysed":         {"", ""},
	"analysed while empty":   {"analyze", ""},
	"analysed while small":   {"small", ""},
	"analysed":               {"", "analyze"},
	"analysed and vacuumed":  {"", "vacuum analyze"},
	"analysed, then emptied": {"large", ""},
}

// TestPlanClaim: whatever the statistics say, a claim reads the large tables by the
// index made for that, and neither sorts nor collects them (INV-14).
func TestPlanClaim(t *testing.T) {
	t.Parallel()
	for name, statistics := range planStatistics {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pg.New(t)
			planPrepare(t, db, statistics)
			if err := planJudge(t, db); err != nil {
				t.Error(err)
			}
		})
	}
}

// planPrepare fills a database in one of the states of planStatistics.
func planPrepare(t *testing.T, db *pgtest.DB, statistics [2]string) {
	t.Helper()
	conn := db.Connect(t)
	planSettle(t, conn)
	switch statistics[0] {
	case "small":
		planFill(t, conn, "s", 2, 1, 5, planPast)
		run(t, conn, "analyze")
	case "large":
		planFill(t, conn, "l", 10, 2, 1000, planPast)
		run(t, conn, "analyze; truncate outbox.pending, outbox.message")
	default:
		run(t, conn, statistics[0])
	}
	planFill(t, conn, "ns", 40, 3, 150, planPast)
	claimOn(t, conn, "before", []int{8, 9}, 500)
	run(t, conn, statistics[1])
}

// planSettle keeps autovacuum from changing the statistics in between.
func planSettle(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	for table := range planTables {
		run(t, conn, fmt.Sprintf(`alter table outbox.%s set (autovacuum_enabled = off)`, pgx.Identifier{table}.Sanitize()))
	}
}

// planJudge explains and claims, and lists the faults of the plans of all statements.
func planJudge(t *testing.T, db *pgtest.DB) error {
	t.Helper()
	conn, seen := planWatch(t, db)
	run(t, conn, `select outbox.set_quota('ns000001', 5, true)`)
	*seen = nil
	for _, call := range []string{
		`select count(*) from outbox.explain_claim('node', outbox.all_shards(), 100)`,
		`select count(*) from outbox.claim_fair('node', array[0, 1, 2, 5, 6], 1000)`,
		`select count(*) from outbox.claim_fair('node', array[0, 1, 2, 5, 6], 10, 100)`,
		`select outbox.hold('ns000002', 'q1'), outbox.hold('ns000003', 'q1', '1 ms'), outbox.hold(null, 'q2'), outbox.lift(null, 'q2')`,
		`select count(*) from outbox.explain_claim('node', outbox.all_shards(), 100)`,
		`select count(*) from outbox.claim_fair('node', array[0, 1, 2, 5, 6], 1000)`,
	} {
		run(t, conn, call)
	}
	var errs []error
	used := map[string]bool{}
	for _, s := range *seen {
		for _, name := range s.Plan.indexes() {
			used[name] = true
		}
		for _, fault := range s.Plan.faults("") {
			errs = append(errs, fmt.Errorf("INV-14: %s: %s\n%s", s.where, fault, s.Query))
		}
	}
	for _, index := range []string{"pending_ripe", "claimed_namespace", "message_pkey"} {
		if !used[index] {
			errs = append(errs, fmt.Errorf("%s was not used: are the plans of the inner statements there? %d statements", index, len(*seen)))
		}
	}
	return errors.Join(errs...)
}

// planBuffers is how many buffers a claim touches, its second time in a session.
func planBuffers(t *testing.T, conn *pgx.Conn, claim string) int {
	t.Helper()
	buffers := 0
	for range 3 {
		run(t, conn, "begin")
		text := one[[]byte](t, conn, "explain (analyze, buffers, timing off, format json) "+claim)
		run(t, conn, "rollback")
		var plans []planStatement
		if err := json.Unmarshal(text, &plans); err != nil {
			t.Fatal(err)
		}
		buffers = plans[0].Plan.Hit + plans[0].Plan.Read
	}
	return buffers
}

// planGrowth is what may grow without making a claim read more.
var planGrowth = map[string]func(t *testing.T, conn *pgx.Conn){
	"the backlog of the same namespaces": func(t *testing.T, conn *pgx.Conn) {
		planFill(t, conn, "more", 0, 0, 0, planPast)
		planFill(t, conn, "ns", 120, 2, 800, planPast)
	},
	"future rows of the same routes": func(t *testing.T, conn *pgx.Conn) {
		planFill(t, conn, "ns", 120, 2, 800, `now() + interval '1 h'`)
	},
	"future rows of other namespaces' old routes": func(t *testing.T, conn *pgx.Conn) {
		planFill(t, conn, "future", 5, 2, 15000, `now() + interval '1 h'`)
	},
	"another node's shards": func(t *testing.T, conn *pgx.Conn) {
		planFill(t, conn, "ns", 120, 2, 800, planPast)
		run(t, conn, `delete from outbox.pending as p where p.id > 9600 and p.shard < 4`)
		run(t, conn, `vacuum outbox.pending`) // dead rows are not what is measured here
	},
	"a paused and a capped namespace": func(t *testing.T, conn *pgx.Conn) {
		planFill(t, conn, "held", 2, 1, 70000, planPast)
		run(t, conn, `select outbox.pause('held000001'), outbox.set_quota('held000002', 0)`)
	},
	"namespaces beyond the batch": func(t *testing.T, conn *pgx.Conn) {
		planFill(t, conn, "a", 5000, 1, 8, planPast)
	},
	"namespaces with settings": func(t *testing.T, conn *pgx.Conn) {
		run(t, conn, `select count(outbox.set_quota('other' || n, 5, true)) from generate_series(1, 20000) as n`)
	},
	"settled messages": func(t *testing.T, conn *pgx.Conn) {
		run(t, conn, `
			insert into outbox.message (namespace, task_queue, dispatch_key, content_type, headers, payload)
			select 'ns000001', 'q1', 'settled' || n, 'text/plain', '{}', '' from generate_series(1, 100000) as n;
			insert into outbox.settled (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
			select m.id, m.namespace, m.task_queue, 1, 'done', 1, now(), 'x' from outbox.message as m where m.dispatch_key like 'settled%'`)
	},
	"names of nodes that are gone": func(t *testing.T, conn *pgx.Conn) {
		run(t, conn, `
			insert into outbox.walk (node, namespace, round, claimed_at, claimed)
			select 'gone' || n, 'ns000001', 1, now() - interval '1 h', 1 from generate_series(1, 2000) as n;
			insert into outbox.route (node, namespace, task_queue, served_at)
			select 'gone' || n, 'ns' || lpad(k::text, 6, '0'), 'q1', now() - interval '1 h'
			from generate_series(1, 500) as n, generate_series(1, 120) as k`)
	},
	"what others have claimed": func(t *testing.T, conn *pgx.Conn) {
		run(t, conn, `
			insert into outbox.claimed (id, namespace, task_queue, shard, visible_after, attempt, payload_bytes, claim_token, claimed_by, claimed_at, lease_until)
			select 1000000 + n, 'x' || n % 1000, 'q', 1, now(), 1, 0, n, 'x', now(), now() + interval '1 min' from generate_series(1, 50000) as n`)
	},
}

// TestPlanBounded: what a claim reads does not grow with what it cannot take (INV-14).
// Trees that get a level higher may cost it half as much again.
func TestPlanBounded(t *testing.T) {
	t.Parallel()
	const claim = `select count(*) from outbox.claim_fair('node', array[0, 1, 2, 3], 100)`
	for name, grow := range planGrowth {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pg.New(t)
			conn := db.Connect(t)
			planSettle(t, conn)
			planFill(t, conn, "ns", 120, 2, 40, planPast)
			for range 3 { // its cursors stand in all namespaces
				claimOn(t, conn, "node", []int{0, 1, 2, 3}, 100)
			}
			run(t, conn, "vacuum analyze")
			before := planBuffers(t, conn, claim)
			grow(t, conn)
			stale := planBuffers(t, conn, claim)
			run(t, conn, "vacuum analyze")
			fresh := planBuffers(t, conn, claim)
			t.Logf("%d buffers before, %d after with stale statistics, %d with fresh ones", before, stale, fresh)
			if limit := before + before/2 + 100; stale > limit || fresh > limit {
				t.Errorf("INV-14: %d buffers before, %d and %d after", before, stale, fresh)
			}
		})
	}
}
