package integration

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
)

// newcomers are tenants, or routes of one tenant, with one message each, of which some are new
// before each claim. The old ones beside them have messages all the time.
type newcomers struct {
	name   func(n int) string // of the n-th one, from 1 on; the old ones are the first
	aimed  bool               // their names come in the order of PostgreSQL's hash, which anybody can compute
	routes bool               // they are routes of one namespace
	old    int
	each   int // new ones before each claim
	batch  int
}

// newcomerNames are orders of names by the time at which they are given.
var newcomerNames = map[string]func(n int) string{
	"serial":           func(n int) string { return fmt.Sprintf("u-%09d", n) },
	"serial backwards": func(n int) string { return fmt.Sprintf("u-%09d", 999999999-n) },
	"ULID":             newcomerULID,
	"drawn":            func(n int) string { return newcomerDigits(newcomerRandom(n).Uint64(), 12) },
}

// newcomerULID is a name of 48 bits of time and 80 random ones, in the digits of ULIDs.
func newcomerULID(n int) string {
	r := newcomerRandom(n)
	return newcomerDigits(uint64(1700000000000+n), 10) + newcomerDigits(r.Uint64(), 8) + newcomerDigits(r.Uint64(), 8)
}

func newcomerRandom(n int) *rand.Rand { return rand.New(rand.NewPCG(18, uint64(n))) }

// newcomerDigits are the last digits of a number, to the base 32.
func newcomerDigits(number uint64, digits int) string {
	text := make([]byte, digits)
	for i := range text {
		text[digits-1-i] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"[number%32]
		number /= 32
	}
	return string(text)
}

// bound is the number of claims within which each old one is served: a lap of the walk, and the
// slack. In claim k, A old ones and L k new ones stand in what is left of the lap, evenly, since their
// places are drawn by hash. So a claim of B comes past B / (A + L k) of the lap: it is over
// when the sum of that is 1, which is for k = A / L (e^(L/B) - 1).
//
// The new ones come in steps, and their places are random: a quarter more, and two, was never
// needed in some thousand simulated laps of these numbers.
func (n newcomers) bound() int {
	lap := float64(n.old) / float64(n.each) * (math.Exp(float64(n.each)/float64(n.batch)) - 1)
	return int(math.Ceil(lap*1.25)) + 2
}

// TestClaimNewcomers: whatever names new tenants have, and new routes of a tenant, the old ones
// are served in their turn (INV-5, INV-7).
func TestClaimNewcomers(t *testing.T) {
	t.Parallel()
	for name, names := range newcomerNames {
		for what, n := range map[string]newcomers{
			"namespaces": {name: names, old: 1000, each: 100, batch: 100},
			"routes":     {name: names, old: 500, each: 50, batch: 50, routes: true},
		} {
			t.Run(what+", "+name, n.run)
		}
	}
	t.Run("namespaces, aimed at the hash", newcomers{aimed: true, old: 1000, each: 100, batch: 100}.run)
	t.Run("routes, aimed at the hash", newcomers{aimed: true, old: 500, each: 50, batch: 50, routes: true}.run)
	t.Run("namespaces, serial, two for each row of a claim", newcomers{name: newcomerNames["serial"], old: 1000, each: 200, batch: 100}.run)
}

// run lets a node come past all old ones once, so that it may go on with any of them or of the
// new ones, and then counts its claims until each old one has had its turn again.
func (n newcomers) run(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	if n.aimed {
		names := list[string](t, conn, `select 'u' || k from generate_series(1, $1::int) as k
			order by hashtextextended(('u' || k) collate "C", 0)`, n.old+n.bound()*n.each)
		n.name = func(n int) string { return names[n-1] }
	}
	for range 2 + n.bound()*n.batch/n.old { // a lap leaves none of them without a message
		n.enqueue(t, conn, 1, n.old)
	}
	for range n.old / n.batch {
		n.claim(t, conn)
	}
	waiting := map[string]bool{}
	for k := range n.old {
		waiting[n.name(k+1)] = true
	}
	claims := 0
	for ; len(waiting) > 0 && claims < n.bound(); claims++ {
		n.enqueue(t, conn, n.old+claims*n.each+1, n.each)
		for _, name := range n.claim(t, conn) {
			delete(waiting, name)
		}
	}
	t.Logf("%d claims, bound %d", claims, n.bound())
	if len(waiting) > 0 {
		t.Errorf("INV-5: %d of %d old ones were not served in %d claims, among them %s",
			len(waiting), n.old, claims, slices.Min(slices.Collect(maps.Keys(waiting))))
	}
}

// enqueue gives a message each to count names from the first one on.
func (n newcomers) enqueue(t *testing.T, conn *pgx.Conn, first, count int) {
	t.Helper()
	names := make([]string, count)
	for i := range names {
		names[i] = n.name(first + i)
	}
	run(t, conn, `select count(b.id) from outbox.enqueue_batch(
		case when $2 then array_fill('one'::text, array[cardinality($1::text[])]) else $1 end,
		case when $2 then $1 else array_fill('q'::text, array[cardinality($1)]) end,
		array(select 'one/' || gen_random_uuid() from unnest($1)), array_fill(''::bytea, array[cardinality($1)])) as b`, names, n.routes)
}

// claim claims a batch, completes it, and returns the names of the ones that it served.
func (n newcomers) claim(t *testing.T, conn *pgx.Conn) []string {
	t.Helper()
	var names []string
	rows := claimOn(t, conn, "node", longShards(), n.batch)
	for _, r := range rows {
		if n.routes {
			names = append(names, r.Queue)
		} else {
			names = append(names, r.Namespace)
		}
	}
	if len(rows) != n.batch {
		t.Fatalf("a claim brought %d rows, want %d", len(rows), n.batch)
	}
	settleAll(t, conn, "complete", rows)
	return names
}
