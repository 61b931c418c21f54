package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDueRoutesFromAPausedOne: a search that begins behind a route and comes around to it finds
// it paused, as any other (INV-7).
func TestDueRoutesFromAPausedOne(t *testing.T) {
	t.Parallel()
	conn := setUp(t, longBacklog(1, 1, 3, 1)+`select outbox.pause('ns1', 'q1')`).Connect(t)
	const due = `select count(*) from outbox.due_routes('ns1', 'q1', outbox.next_held(outbox.all_shards(), 16), clock_timestamp(), 64, 1000, 0) as d where d.due`
	if n := one[int](t, conn, due); n != 0 {
		t.Errorf("%d routes may be served, the only one is paused", n)
	}
	run(t, conn, `select outbox.resume('ns1', 'q1')`)
	if n := one[int](t, conn, due); n != 1 {
		t.Errorf("%d routes may be served, want 1", n)
	}
}

// TestEdgesOfFewerShards: a node that has fewer shards than before goes on remembering how far back
// it need not look, for these (INV-14).
func TestEdgesOfFewerShards(t *testing.T) {
	t.Parallel()
	conn := setUp(t, longBacklog(4, 1, 40, 1)).Connect(t)
	const edge = `select w.edge from outbox.walk as w`
	claimAndSettle := func(shards string) int64 {
		t.Helper()
		run(t, conn, `select outbox.complete(array_agg(c.id), array_agg(c.claim_token)) from outbox.claim_fair('node', `+shards+`, 10) as c`)
		return one[int64](t, conn, edge)
	}
	claimAndSettle("outbox.all_shards()")
	before := claimAndSettle("'{0,1,2,3}'")
	if after := claimAndSettle("'{0,1,2,3}'"); after <= before {
		t.Errorf("the edge stays at %d", after)
	}
}

// TestReadsAreTheSame: the statement that reads for a claim and the one for explain_claim differ by the lock
// alone, so that explain_claim foretells what a claim does.
func TestReadsAreTheSame(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(functionsDir, "claim_read.sql"))
	if err != nil {
		t.Fatal(err)
	}
	_, reads, _ := strings.Cut(string(text), "    if claim_read.for_claim then\n")
	claims, rest, _ := strings.Cut(reads, "    else -- the same without the lock\n")
	explains, _, found := strings.Cut(rest, "    end if;\n")
	const lock = "              for update skip locked\n"
	if !found || strings.Count(claims, lock) != 1 {
		t.Fatalf("claim_read.sql is built otherwise: change this test along with it")
	}
	if diff := lineDiff(strings.Replace(claims, lock, "", 1), explains); diff != "" {
		t.Errorf("a claim reads (-), explain_claim reads (+):\n%s", diff)
	}
}
