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
			h.judgeImport(t, "without an import", calm, isServed)
			tx := beginAt(t, h.db.Connect(t), pgx.ReadCommitted)
			hostileFill(t, tx, fmt.Sprintf(`select 'other 1' as namespace, 'q' as task_queue, null::int as shard from generate_series(1, %d)`, hostileRows(t)), hostilePast)
			h.judgeImport(t, "beside an open import", calm, isServed)
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			h.judgeImport(t, "once it is rolled back", calm, isServed)
		})
	}
}

// judgeImport judges claims; where the importing tenant is served, it gets a message before each.
func (h *hostileRun) judgeImport(t *testing.T, when string, calm int, isServed bool) {
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
	t.Logf("%d buffers a claim before, %d in the first one %s, %d at most in later ones, the median is %d; %d claims until the quiet tenant is served",
		calm, h.cost[0], when, slices.Max(h.cost[1:]), median, claims)
	if median > calm+hostileNothing {
		t.Errorf("INV-18: a claim touched %d buffers %s, %d without the import, want %d more at most", median, when, calm, hostileNothing)
	}
}
