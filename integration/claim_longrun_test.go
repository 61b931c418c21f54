package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// longRun is a long row of sweeps over a steady backlog.
type longRun struct {
	settings string // outbox.configure
	setUp    string // SQL, before any sweep
	sweeps   int
	batch    int
	maxBytes int
	once     bool // each sweep is a node's only one
	turns    bool // the sweeps take turns at the halves of the shards
	settle   bool // every message takes exactly one sweep
	judge    func(sweeps [][]modelClaimed) error
}

// play returns what each sweep got, in order, or what is wrong with it.
func (l longRun) play(ctx context.Context, conn *pgx.Conn) error {
	if l.settings != "" {
		if _, err := conn.Exec(ctx, `select outbox.configure($1)`, l.settings); err != nil {
			return err
		}
	}
	if err := conn.PgConn().Exec(ctx, l.setUp).Close(); err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	node := "node"
	sweeps := make([][]modelClaimed, l.sweeps)
	for i := range sweeps {
		if l.once {
			node = fmt.Sprint("node", i)
		}
		shards := longShards()
		if l.turns {
			shards = shards[i%2*8:][:8]
		}
		rows, err := modelClaimRows(ctx, conn, node, shards, l.batch, l.maxBytes)
		if err != nil {
			return err
		}
		sweeps[i] = rows
		if l.settle && len(rows) > 0 {
			var ids, tokens []int64
			for _, r := range rows {
				ids = append(ids, r.ID)
				tokens = append(tokens, r.Token)
			}
			if _, err := conn.Exec(ctx, `select outbox.complete($1, $2)`, ids, tokens); err != nil {
				return err
			}
		}
	}
	return l.judge(sweeps)
}

func longShards() []int { return (&modelOutbox{shards: 16}).everyShard() }

// longBacklog enqueues: namespaces times routes times messages of so many bytes.
func longBacklog(namespaces, routes, messages, bytes int) string {
	return fmt.Sprintf(`
		select count(b.id) from (
		  select array_agg('ns' || n), array_agg('q' || q), array_agg(concat_ws('.', n, q, k)), array_agg(decode(repeat('00', %d), 'hex'))
		  from generate_series(1, %d) as n, generate_series(1, %d) as q, generate_series(1, %d) as k
		) as x(ns, q, key, payload) cross join lateral outbox.enqueue_batch(x.ns, x.q, x.key, x.payload) as b;`,
		bytes, namespaces, routes, messages)
}

// longGap: each of the names comes up in every so many sweeps in a row.
func longGap(name func(modelClaimed) string, names []string, every int) func([][]modelClaimed) error {
	return func(sweeps [][]modelClaimed) error {
		last := map[string]int{}
		for _, n := range names {
			last[n] = -1
		}
		for i, sweep := range sweeps {
			for _, row := range sweep {
				if _, ok := last[name(row)]; ok {
					last[name(row)] = i
				}
			}
			for n, at := range last {
				if i-at >= every {
					return fmt.Errorf("%s was not served in sweeps %d to %d of %d", n, at+1, i, len(sweeps))
				}
			}
		}
		return nil
	}
}

// longEven: in the end none of the names has more than so many above another.
func longEven(names []string, within int) func([][]modelClaimed) error {
	return func(sweeps [][]modelClaimed) error {
		got := make([]int, len(names))
		for _, row := range slices.Concat(sweeps...) {
			got[slices.Index(names, row.Namespace)]++
		}
		if slices.Max(got)-slices.Min(got) > within {
			return fmt.Errorf("%v were served %v times", names, got)
		}
		return nil
	}
}

// longTotal: a namespace gets so many in all.
func longTotal(namespace string, want int) func([][]modelClaimed) error {
	return func(sweeps [][]modelClaimed) error {
		got := 0
		for _, row := range slices.Concat(sweeps...) {
			if row.Namespace == namespace {
				got++
			}
		}
		if got != want {
			return fmt.Errorf("%s was served %d times, want %d", namespace, got, want)
		}
		return nil
	}
}

// longRows takes each row for a sweep of its own.
func longRows(judge func([][]modelClaimed) error) func([][]modelClaimed) error {
	return func(sweeps [][]modelClaimed) error {
		var rows [][]modelClaimed
		for _, row := range slices.Concat(sweeps...) {
			rows = append(rows, []modelClaimed{row})
		}
		return judge(rows)
	}
}

func longNames(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint(prefix, i+1)
	}
	return names
}

// longHalves judges the sweeps of each half of the shards by themselves.
func longHalves(judge func([][]modelClaimed) error) func([][]modelClaimed) error {
	return func(sweeps [][]modelClaimed) error {
		var halves [2][][]modelClaimed
		for i, sweep := range sweeps {
			halves[i%2] = append(halves[i%2], sweep)
		}
		return errors.Join(judge(halves[0]), judge(halves[1]))
	}
}

// longLarge: the claims take turns at a full batch of the others, and at one of the large
// messages, which nobody else pays for with a row.
func longLarge(sweeps [][]modelClaimed) error {
	large, others := 0, 0
	for _, row := range slices.Concat(sweeps...) {
		if row.Namespace == "large" {
			large++
		} else {
			others++
		}
	}
	if large != 6 || others != 600 {
		return fmt.Errorf("%d sweeps served %d large messages and %d others, want 6 and 600", len(sweeps), large, others)
	}
	return nil
}

func longNamespace(c modelClaimed) string { return c.Namespace }
func longRoute(c modelClaimed) string     { return c.Namespace + " " + c.Queue }
func longShard(c modelClaimed) string     { return fmt.Sprint("shard ", c.Shard) }

// longRoutes are the names of routes as longRoute gives them.
func longRoutes(namespaces, routes int) []string {
	var names []string
	for n := range namespaces {
		for q := range routes {
			names = append(names, fmt.Sprintf("ns%d q%d", n+1, q+1))
		}
	}
	return names
}

func longRuns() map[string]longRun {
	return map[string]longRun{
		"INV-4 strict, the shards take turns": {
			setUp: longBacklog(2, 1, 200, 1) + `select outbox.set_quota('ns1', 5, true)`, sweeps: 6, batch: 20, turns: true,
			judge: longTotal("ns1", 5),
		},
		"INV-4 not strict, the shards take turns": {
			setUp: longBacklog(2, 1, 200, 1) + `select outbox.set_quota('ns1', 5)`, sweeps: 6, batch: 20, turns: true,
			judge: longTotal("ns1", 6),
		},
		"INV-5 200 namespaces, batch 7": {
			setUp: longBacklog(200, 1, 12, 1), sweeps: 290, batch: 7,
			judge: longGap(longNamespace, longNames("ns", 200), 29),
		},
		"INV-5 as many as the batch": {
			setUp: longBacklog(7, 1, 20, 1), sweeps: 20, batch: 7, judge: longGap(longNamespace, longNames("ns", 7), 1),
		},
		"INV-5 nodes that live for one sweep": {
			setUp: longBacklog(50, 1, 20, 1), sweeps: 120, batch: 7, once: true,
			judge: longGap(longNamespace, longNames("ns", 50), 8),
		},
		"INV-5 nodes that live for one sweep, the shards take turns": {
			setUp: longBacklog(10, 1, 200, 1), sweeps: 60, batch: 5, once: true, turns: true,
			judge: longHalves(longGap(longNamespace, longNames("ns", 10), 2)),
		},
		"INV-7 nodes that live for one sweep, the shards take turns": {
			setUp: longBacklog(1, 4, 500, 1), sweeps: 60, batch: 2, once: true, turns: true,
			judge: longHalves(longGap(longRoute, longRoutes(1, 4), 2)),
		},
		"INV-5 large payloads of one namespace": {
			setUp: longBacklog(10, 1, 100, 100) + `
				select count(outbox.enqueue('large', 'q1', 'large/' || k, decode(repeat('00', 30000), 'hex'))) from generate_series(1, 10) as k;`,
			sweeps: 12, batch: 100, maxBytes: 20000, settle: true,
			judge: longLarge,
		},
		"INV-5 max_bytes cuts within the first round": {
			setUp: longBacklog(20, 1, 100, 100), sweeps: 200, batch: 100, maxBytes: 550,
			judge: longRows(longGap(longNamespace, longNames("ns", 20), 20)),
		},
		"INV-5 max_bytes cuts behind the first round": {
			setUp: longBacklog(20, 1, 100, 100), sweeps: 40, batch: 100, maxBytes: 2950,
			judge: longEven(longNames("ns", 20), 20),
		},
		"INV-5 max_bytes of one row, nodes that live for one sweep": {
			setUp: longBacklog(10, 1, 30, 100), sweeps: 200, batch: 10, maxBytes: 1, once: true,
			judge: longGap(longNamespace, longNames("ns", 10), 10),
		},
		"INV-5 the cap of visits, most are not eligible": {
			settings: `{"max_visits": 5}`, sweeps: 400, batch: 2,
			setUp: longBacklog(103, 1, 100, 1) + `update outbox.pending as p set visible_after = 'infinity' where p.namespace not in ('ns1', 'ns50', 'ns99')`,
			judge: longGap(longNamespace, []string{"ns1", "ns50", "ns99"}, 23),
		},
		"INV-6 the odd remainder moves on": {
			setUp: longBacklog(3, 1, 200, 1), sweeps: 30, batch: 10, judge: longEven(longNames("ns", 3), 2),
		},
		"INV-6 the odd remainder moves on, in pass 2": {
			setUp: longBacklog(4, 1, 100, 1) + `select outbox.set_quota('ns4', 1)`, sweeps: 30, batch: 9, settle: true,
			judge: func(sweeps [][]modelClaimed) error {
				return longEven(longNames("ns", 3), 2)(longWithout(sweeps, "ns4"))
			},
		},
		"INV-7 a quota of 1, two routes, a message takes a sweep": {
			settings: `{"default_quota": 1}`, setUp: longBacklog(2, 2, 50, 1), sweeps: 90, batch: 10, settle: true,
			judge: longGap(longRoute, longRoutes(2, 2), 2),
		},
		"INV-7 the rounds over namespaces and routes resonate": {
			setUp: longBacklog(4, 2, 50, 1), sweeps: 100, batch: 2, settle: true,
			judge: longGap(longRoute, longRoutes(4, 2), 4),
		},
		"INV-7 more routes than the batch, nodes that live for one sweep": {
			setUp: longBacklog(1, 5, 80, 1), sweeps: 100, batch: 2, once: true,
			judge: longGap(longRoute, longRoutes(1, 5), 3),
		},
		"INV-7 more routes than max_routes": {
			settings: `{"max_routes": 3}`, setUp: longBacklog(2, 10, 20, 1), sweeps: 100, batch: 2, settle: true,
			judge: longGap(longRoute, longRoutes(2, 10), 10),
		},
		"INV-7 more routes than max_routes, most are not due": {
			settings: `{"max_routes": 2}`, sweeps: 60, batch: 1, settle: true,
			setUp: longBacklog(1, 9, 60, 1) + `update outbox.pending as p set visible_after = 'infinity' where p.task_queue not in ('q1', 'q4', 'q9')`,
			judge: longGap(longRoute, []string{"ns1 q1", "ns1 q4", "ns1 q9"}, 9),
		},
		"INV-5 more routes than max_routes, the only due one is out of sight": {
			settings: `{"max_routes": 2}`, sweeps: 50, batch: 1,
			setUp: longBacklog(1, 5, 50, 1) + `
				update outbox.pending as p set visible_after = 'infinity' where p.task_queue > 'q1' and p.id not in (
				  select min(p.id) from outbox.pending as p where p.task_queue = 'q2')`,
			judge: longGap(longRoute, []string{"ns1 q1"}, 5),
		},
		"paused routes and namespaces stand still": {
			setUp:  longBacklog(3, 3, 20, 1) + `select outbox.pause('ns1', 'q1'), outbox.pause(null, 'q2'), outbox.pause('ns3')`,
			sweeps: 20, batch: 10,
			judge: func(sweeps [][]modelClaimed) error {
				got := map[string]int{}
				for _, row := range slices.Concat(sweeps...) {
					got[longRoute(row)]++
				}
				if len(got) != 3 || got["ns1 q3"] != 20 || got["ns2 q1"] != 20 || got["ns2 q3"] != 20 {
					return fmt.Errorf("served %v", got)
				}
				return nil
			},
		},
		"a quota of 1 passes no shard over": {
			settings: `{"default_quota": 1}`, setUp: longBacklog(1, 1, 600, 1), sweeps: 300, batch: 10, settle: true,
			judge: longGap(longShard, longNames("shard ", 15), 150),
		},
	}
}

func longWithout(sweeps [][]modelClaimed, namespace string) [][]modelClaimed {
	for i, sweep := range sweeps {
		sweeps[i] = slices.DeleteFunc(sweep, func(c modelClaimed) bool { return c.Namespace == namespace })
	}
	return sweeps
}

// TestClaimLongRun looks at what is only true of many sweeps: INV-5, INV-6, INV-7.
func TestClaimLongRun(t *testing.T) {
	t.Parallel()
	for name, run := range longRuns() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := longPlay(t, pg.New(t), run); err != nil {
				t.Error(err)
			}
		})
	}
}

func longPlay(t *testing.T, db *pgtest.DB, run longRun) error {
	return run.play(t.Context(), db.Connect(t))
}
