package integration

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestShareOut checks, after each of many random events, that the shards are shared out
// evenly, wholly and the same each time, and that none moved without need.
func TestShareOut(t *testing.T) {
	t.Parallel()
	for i, c := range []struct{ shards, nodes, events int }{
		{1, 3, 20}, {2, 5, 20}, {7, 12, 30}, {16, 5, 30}, {16, 20, 30}, {64, 10, 30}, {100, 33, 20}, {1024, 50, 15},
	} {
		t.Run(fmt.Sprintf("%d shards %d nodes", c.shards, c.nodes), func(t *testing.T) {
			t.Parallel()
			s := &sharing{T: t, conn: pg.New(t).Connect(t), rand: rand.New(rand.NewPCG(rand.Uint64(), uint64(i))), shards: c.shards, nodes: map[string]*sharer{}}
			run(t, s.conn, "select outbox.configure(jsonb_build_object('shard_count', $1::int))", c.shards)
			for range c.events {
				s.event(c.nodes)
				if t.Failed() {
					t.Fatalf("after %v", s.log)
				}
			}
		})
	}
}

// sharer is what a node should be: with shards of its own, or with those that it is given.
type sharer struct {
	live  bool
	fixed []int // nil: none of its own
}

// sharing is a cluster of nodes without processes, and what is known of it.
type sharing struct {
	*testing.T
	conn   *pgx.Conn
	rand   *rand.Rand
	shards int
	nodes  map[string]*sharer
	log    []string
}

// event lets one thing happen to one node, and checks what became of the shards.
func (s *sharing) event(most int) {
	name := fmt.Sprint("n", s.rand.IntN(most))
	before := s.given()
	n := s.nodes[name]
	switch k := s.rand.IntN(10); {
	case n != nil && n.live && k < 3:
		s.note("%s leaves", name)
		delete(s.nodes, name)
		if !one[bool](s, s.conn, "select outbox.leave($1)", name) {
			s.Errorf("%s was not there", name)
		}
	case n != nil && n.live && k < 6:
		s.note("%s lapses", name)
		n.live = false
		run(s, s.conn, "update outbox.node set heartbeat_at = heartbeat_at + $2::interval where node = $1", name, s.pick("-31 s", "-1 h", "1 h"))
		for other, n := range s.nodes { // whoever is heard of next
			if n.live {
				s.beat(other)
				break
			}
		}
	case k == 9:
		own := s.rand.Perm(s.shards)[:s.rand.IntN(min(s.shards/2+2, s.shards+1))]
		s.note("%s comes with %d of its own", name, len(own))
		s.nodes[name] = &sharer{live: true, fixed: own}
		s.beat(name)
	default:
		s.note("%s comes", name)
		s.nodes[name] = &sharer{live: true}
		s.beat(name)
	}
	s.check(before, s.given())
}

func (s *sharing) note(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

func (s *sharing) pick(texts ...string) string { return texts[s.rand.IntN(len(texts))] }

func (s *sharing) beat(name string) {
	owned := one[[]int](s, s.conn, "select owned from outbox.heartbeat($1, $2)", name, s.nodes[name].fixed)
	want := slices.Sorted(slices.Values(s.nodes[name].fixed))
	if s.nodes[name].fixed == nil {
		want = list[int](s, s.conn, "select shard from outbox.shard where node = $1 order by 1", name)
	}
	if !slices.Equal(owned, want) {
		s.Errorf("%s is told that it owns %v, it owns %v", name, owned, want)
	}
}

// given is which node each shard is given to.
func (s *sharing) given() map[int]string {
	rows, _ := s.conn.Query(s.Context(), "select shard, node from outbox.shard")
	given, shard, node := map[int]string{}, 0, ""
	if _, err := pgx.ForEachRow(rows, []any{&shard, &node}, func() error { given[shard] = node; return nil }); err != nil {
		s.Fatal(err)
	}
	return given
}

// check compares with what sharing out means, by counting.
func (s *sharing) check(before, after map[int]string) {
	free, counts, kept := map[int]bool{}, map[string]int{}, map[string]int{}
	for shard := range s.shards {
		free[shard] = true
	}
	for name, n := range s.nodes {
		switch {
		case n.live && n.fixed == nil:
			counts[name], kept[name] = 0, 0
		case n.live:
			for _, shard := range n.fixed {
				delete(free, shard)
			}
		}
	}
	unowned := one[[]int](s, s.conn, "select outbox.unowned_shards()")
	if len(counts) == 0 {
		if len(unowned) != len(free) {
			s.Errorf("%d shards are called unowned, want %d", len(unowned), len(free))
		}
		return
	}
	moved, most := 0, 0
	for shard := range free {
		if _, ok := counts[after[shard]]; !ok {
			s.Errorf("shard %d is with %q, which takes none", shard, after[shard])
		}
		counts[after[shard]]++
		if _, ok := kept[before[shard]]; ok {
			kept[before[shard]]++
		}
		if after[shard] != before[shard] {
			moved++
		}
	}
	given := 0 // to nodes that take them; what is left of others is nobody's
	for _, node := range after {
		if _, ok := counts[node]; ok {
			given++
		}
	}
	low, high := slices.Min(slices.Collect(maps.Values(counts))), slices.Max(slices.Collect(maps.Values(counts)))
	if high-low > 1 || given != len(free) || len(unowned) != 0 {
		s.Errorf("parts of %d to %d, %d of %d shards given, %v unowned", low, high, given, len(free), unowned)
	}
	// The most that could have stayed: each node its part, and one more for so many of
	// those that have more as parts are larger by one.
	part, larger := len(free)/len(counts), len(free)%len(counts)
	for _, n := range kept {
		most += min(n, part)
		if n > part && larger > 0 {
			most, larger = most+1, larger-1
		}
	}
	if moved != len(free)-most {
		s.Errorf("%d shards moved, %d had to", moved, len(free)-most)
	}
	s.again(before, after)
}

// again shares out the same once more, from rows in another order.
func (s *sharing) again(before, after map[int]string) {
	tx := begin(s, s.conn)
	run(s, tx, "delete from outbox.shard")
	var shards []int
	var nodes []string
	for shard, node := range before { // in any order
		shards, nodes = append(shards, shard), append(nodes, node)
	}
	run(s, tx, "insert into outbox.shard select * from unnest($1::int[], $2::text[])", shards, nodes)
	run(s, tx, "create temp table n on commit drop as select * from outbox.node order by random()")
	run(s, tx, "delete from outbox.node")
	run(s, tx, "insert into outbox.node select * from n")
	run(s, tx, "select outbox.share_out(clock_timestamp())")
	if got := s.given(); !maps.Equal(got, after) {
		s.Errorf("shared out again, it is otherwise: %v, not %v", got, after)
	}
	_ = tx.Rollback(s.Context())
}
