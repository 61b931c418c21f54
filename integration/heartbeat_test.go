package integration

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// owned sends a heartbeat of a node and returns the shards that it is told to own.
func owned(t testing.TB, q querier, node string, args string) []int {
	t.Helper()
	return one[[]int](t, q, "select owned from outbox.heartbeat($1"+args+")", node)
}

// Only heartbeats make nodes that are given shards: no claim does, whatever its node's name.
func TestClaimsAreGivenNoShards(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	for _, node := range []string{"psql", "once", "n1"} {
		put(t, conn, "n", "q", node)
		claimOne(t, conn, node)
	}
	if got := owned(t, conn, "n1", ""); len(got) != 16 {
		t.Errorf("the one live node owns %v", got)
	}
	run(t, conn, "select outbox.leave('n1')")
	put(t, conn, "n", "q", "k")
	claimOne(t, conn, "n1")
	if got := one[int](t, conn, "select cardinality(outbox.unowned_shards())"); got != 16 {
		t.Errorf("%d shards are unowned after the only node left and claimed, want 16", got)
	}
}

// What a node names is its own: no other is given it, also where nothing else is left,
// until it stops, leaves or lapses. Two may name the same.
func TestFixedShards(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	check := func(node string, want ...int) {
		t.Helper()
		if got := owned(t, conn, node, ""); !slices.Equal(got, want) {
			t.Errorf("%s owns %v, want %v", node, got, want)
		}
	}
	run(t, conn, `select outbox.configure('{"shard_count": 4}')`)
	check("auto", 0, 1, 2, 3)
	if got := owned(t, conn, "f1", ", '{2,1,1}'"); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("f1 owns %v", got)
	}
	check("auto", 0, 3)
	owned(t, conn, "f2", ", '{0,1,3}'")
	check("auto")
	owned(t, conn, "f2", ", '{}', 'draining'") // it stops
	check("auto", 0, 3)
	run(t, conn, "select outbox.leave('f2')")
	check("auto", 0, 3)
	run(t, conn, "update outbox.node set heartbeat_at = heartbeat_at - interval '31 s' where node = 'f1'")
	check("auto", 0, 1, 2, 3)
	owned(t, conn, "f1", ", '{2}'")
	check("auto", 0, 1, 3)
	owned(t, conn, "f1", "") // it takes what it is given now
	check("auto", 0, 1)
	run(t, conn, `select outbox.configure('{"shard_count": 2}')`)
	check("auto", 0)
	check("f1", 1)
}

// INV-15: a heartbeat is of the instant of its call, not of its transaction; and it says
// when the next other node would lapse.
func TestHeartbeatInstants(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	tx := begin(t, conn)
	run(t, tx, "select outbox.heartbeat('other'), pg_sleep(0.02)")
	if !one[bool](t, tx, "select again_in between interval '29 s' and interval '29.98 s' from outbox.heartbeat('n1')") {
		t.Error("again_in is not what is left of the other's lapse")
	}
	if !one[bool](t, tx, "select min(heartbeat_at) > now() and max(heartbeat_at) > min(heartbeat_at) + interval '20 ms' from outbox.node") {
		t.Error("a heartbeat is of its transaction's start")
	}
	commit(t, tx)
	run(t, conn, "select outbox.leave('other')")
	if !one[bool](t, conn, "select again_in = interval '30 s' from outbox.heartbeat('n1')") {
		t.Error("again_in of a lone node is not the lapse")
	}
}

// A heartbeat under a stricter isolation counts, and leaves it to others to share out.
func TestHeartbeatIsolation(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	tx := beginAt(t, conn, pgx.RepeatableRead)
	if !one[bool](t, tx, "select owned = '{}' and again_in = '0' from outbox.heartbeat('n1')") {
		t.Error("a heartbeat under repeatable read has shared shards out")
	}
	commit(t, tx)
	if n := one[int](t, conn, "select cardinality(owned) from outbox.heartbeat('n2')"); n != 8 {
		t.Errorf("the next node owns %d shards of 16, beside one that lives", n)
	}
}

// A node that starts again under its name goes on with its shards; one that stops leaves
// the name to its successor; two at once are seen, and own the same.
func TestProcessesOfOneName(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	beat := func(process, shards string, count int, shared bool) {
		t.Helper()
		rows, _ := conn.Query(t.Context(), "select cardinality(owned), shared_name from outbox.heartbeat('n1', $2::int[], process => $1)",
			process, map[bool]*string{true: nil, false: &shards}[shards == ""])
		var n int
		var got bool
		if _, err := pgx.ForEachRow(rows, []any{&n, &got}, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		if n != count || got != shared {
			t.Errorf("%s is told %d shards, shared %v; want %d, %v", process, n, got, count, shared)
		}
	}
	left := func(process string, want bool) {
		t.Helper()
		if got := one[bool](t, conn, "select outbox.leave('n1', $1)", process); got != want {
			t.Errorf("%s leaves: %v, want %v", process, got, want)
		}
	}
	run(t, conn, "select outbox.heartbeat('n2')")
	beat("a", "", 8, false)
	was := list[int](t, conn, "select shard from outbox.shard where node = 'n1' order by 1")
	beat("b", "", 8, false) // a was killed, b is its successor
	if got := list[int](t, conn, "select shard from outbox.shard where node = 'n1' order by 1"); !slices.Equal(got, was) {
		t.Errorf("started again, it owns %v, it was %v", got, was)
	}
	beat("a", "{}", 0, false) // a was stopping all the while
	beat("b", "", 8, false)
	left("a", false)
	beat("b", "", 8, false)
	beat("a", "", 8, true) // and now there are two
	beat("b", "", 8, true)
	beat("b", "", 8, true)
	run(t, conn, "update outbox.node set shared_at = shared_at - interval '31 s'")
	beat("b", "", 8, false)
	left("b", true)
	left("b", false)
	beat("c", "{}", 0, false)
	if got := owned(t, conn, "n2", ""); len(got) != 16 {
		t.Errorf("n2 owns %v", got)
	}
}

// A heartbeat left open in a session keeps no other from its own, and not for long from
// sharing out.
func TestHeartbeatLeftOpen(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	open := begin(t, db.Connect(t))
	run(t, open, "select outbox.heartbeat('open')")
	conn := impatient(t, db.Connect(t))
	if !one[bool](t, conn, "select again_in = '0' and owned = '{}' from outbox.heartbeat('n1')") {
		t.Error("beside a heartbeat left open, another one shares out")
	}
	if !one[bool](t, conn, "select not outbox.leave('n2')") {
		t.Error("n2 has left")
	}
	if err := open.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(t, db.Pool, `select outbox.configure('{"claim_idle_timeout": "300 ms"}')`)
	run(t, begin(t, db.Connect(t)), "select outbox.heartbeat('open')")
	await(t, conn, "select cardinality(owned) = 16 from outbox.heartbeat('n1')")
}

// Heartbeats and leaves of many sessions neither fail nor wait for each other for long, and
// when they are over every shard has one owner.
func TestHeartbeatsTogether(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	until := time.Now().Add(hammerLength(t) / 4)
	var sessions sync.WaitGroup
	for i := range 8 {
		conn := impatient(t, db.Connect(t))
		sessions.Go(func() {
			for rng := rand.New(rand.NewPCG(rand.Uint64(), uint64(i))); time.Now().Before(until); {
				node := fmt.Sprint("n", rng.IntN(6))
				call := []string{"select outbox.heartbeat($1)", "select outbox.heartbeat($1)", "select outbox.heartbeat($1, '{3,4}')", "select outbox.leave($1)"}[rng.IntN(4)]
				if _, err := conn.Exec(t.Context(), call, node); err != nil {
					t.Errorf("%s: %v", call, err)
					return
				}
			}
		})
	}
	sessions.Wait()
	var counts []int
	for _, node := range []string{"n0", "n1", "n2", "n3", "n4", "n5", "n0"} {
		owned(t, db.Pool, node, "")
	}
	counts = list[int](t, db.Pool, "select cardinality(shards) from outbox.nodes order by 1")
	if !slices.Equal(counts, []int{2, 2, 3, 3, 3, 3}) {
		t.Errorf("the parts are %v", counts)
	}
}
