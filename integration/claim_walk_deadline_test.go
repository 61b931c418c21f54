package integration

import (
	"testing"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// A walk past what cannot be served ends at half of what the role's statements may take, and the
// next claim goes on behind it: so nobody waits for ever where a whole lap takes longer than that.
func TestWalkEndsWithinTheStatementTimeout(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, `select count(*) from generate_series(0, 60) as n, lateral outbox.enqueue_batch(
		array_fill('idle ' || n, array[1024]), array(select 'r' || i % 64 from generate_series(1, 1024) as i),
		array(select n || '/' || i from generate_series(1, 1024) as i), array_fill('x'::bytea, array[1024]),
		null, null, array_fill(interval '900 years', array[1024])) as b`)
	put(t, db.Pool, "quiet", "q", "k")
	run(t, db.Pool, "vacuum analyze outbox.pending")
	role := db.Role(t, "set statement_timeout = '200 ms'")
	run(t, db.Pool, "select outbox.grant_worker($1)", role.Name)
	conn := db.Connect(t, pgtest.As(role))
	for claims := 1; ; claims++ {
		// A claim may be cut off where the machine stands still; never each of them.
		var id int64
		err := conn.QueryRow(t.Context(), "select coalesce(max(id), 0) from outbox.claim_fair('n1', outbox.all_shards(), 100)").Scan(&id)
		if err == nil && id > 0 {
			t.Logf("served by claim %d", claims)
			return
		}
		if claims == 40 {
			t.Fatalf("the quiet tenant is not served by %d claims; the last one: %v", claims, err)
		}
	}
}
