package integration

import (
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestClaimImport: while the import of one tenant is not committed, or is rolled back, a quiet tenant is
// served in the next claim (INV-18), and most claims do not wade through what they cannot see: they
// take a detour. So also where the tenant has messages besides, which claims see.
func TestClaimImport(t *testing.T) {
	t.Parallel()
	for name, isServed := range map[string]bool{"of a new tenant": false, "of a tenant that is served": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := hostileShape{claims: 60}.open(t)
			calm := h.calm(t)
			h.judgeImport(t, "without an import", calm+hostileNothing, isServed)
			tx := beginAt(t, h.db.Connect(t), pgx.ReadCommitted)
			hostileFill(t, tx, fmt.Sprintf(`select 'other 1' as namespace, 'q' as task_queue, null::int as shard from generate_series(1, %d)`, hostileRows(t)), hostilePast)
			h.judgeImport(t, "beside an open import", calm+hostileNothing, isServed)
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			// Until a vacuum, pages of the index with entries that are known to be dead are read past: no page of the
			// table is, so that no detour goes around them.
			h.judgeImport(t, "once it is rolled back", calm+3*hostileNothing, isServed)
		})
	}
}

// judgeImport judges claims, whose median may touch so many buffers; where the importing tenant is served, it gets a message before each.
func (h *hostileRun) judgeImport(t *testing.T, when string, most int, isServed bool) {
	t.Helper()
	h.toWorstPlace(t)
	h.cost = nil
	h.enqueueQuiet(t)
	beside := func(n int) {
		if isServed {
			run(t, h.other, `select outbox.enqueue('other 1', 'q', $1, '')`, fmt.Sprint(when, n))
		}
	}
	beside(0)
	claims := h.untilServed(t)
	for n := range hostileClaims {
		beside(n + 1)
		h.claim(t, hostileBatch)
	}
	median := slices.Sorted(slices.Values(h.cost[1:]))[len(h.cost[1:])/2]
	t.Logf("%d buffers in the first claim %s, %d at most in later ones, the median is %d; %d claims until the quiet tenant is served",
		h.cost[0], when, slices.Max(h.cost[1:]), median, claims)
	if median > most {
		t.Errorf("INV-18: a claim touched %d buffers %s, want %d at most", median, when, most)
	}
}

// TestDetourPastTheEnd: a detour around what an open import has written, which leads past the end of the walk, comes to an
// end where nobody else is served meanwhile: the claims say that they have not been all around, and what was
// committed is served (INV-6, INV-18).
func TestDetourPastTheEnd(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn, importer := db.Connect(t), db.Connect(t)
	// In the order of a first walk, which begins behind the place of the empty name.
	names := list[string](t, conn, `select x.name from (values ('n1'), ('n2')) as x(name) order by outbox.ring(x.name) <= outbox.ring(''), outbox.ring(x.name)`)
	run(t, conn, `select outbox.enqueue($1::text, 'q', 'paused', ''), outbox.pause($1::text)`, names[0])
	run(t, conn, `select outbox.enqueue($1::text, 'q', 'k' || n, '') from generate_series(1, 20) as n`, names[1])
	tx := beginAt(t, importer, pgx.ReadCommitted)
	hostileFill(t, tx, fmt.Sprintf(`select '%s' as namespace, 'q' as task_queue, null::int as shard from generate_series(1, %d)`, names[1], hostileRows(t)), hostilePast)
	wantClaimed(t, "beside the import", claimOn(t, conn, "node", longShards(), 100), 20)
	if n := one[int](t, conn, `select cardinality(w.detours) from outbox.walk as w`); n != 1 {
		t.Fatalf("%d detours, want 1", n)
	}
	commit(t, tx)
	for n := range 101 {
		if rows := claimOn(t, conn, "node", longShards(), 100); len(rows) > 0 {
			t.Logf("served in claim %d after the commit", n+1)
			return
		}
	}
	t.Error("INV-18: what was imported is not served in 101 claims after its commit")
}
