package integration

import "testing"

// INV-4: marking a namespace strict waits for the claims under way: they do not know of it.
func TestStrictWaitsForOpenClaims(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	watch := db.Connect(t)
	run(t, watch, "select count(outbox.enqueue('n', 'q', i::text, '')) from generate_series(1, 50) as i")
	run(t, watch, "select outbox.set_quota('n', 3)")

	open, operator := db.Connect(t), db.Connect(t)
	tx := begin(t, open)
	run(t, tx, "select count(*) from outbox.claim_fair('n1', '{0,1,2,3,4,5,6,7}', 100)")
	marked := async(t, operator, "select count(outbox.set_quota('n', 3, true)::text)")
	awaitBlocked(t, watch, operator.PgConn().PID())
	commit(t, tx)
	if err := (<-marked).err; err != nil {
		t.Fatal(err)
	}
	run(t, watch, "select count(*) from outbox.claim_fair('n2', '{8,9,10,11,12,13,14,15}', 100)")
	if n := one[int](t, watch, "select count(*) from outbox.claimed"); n > 3 {
		t.Errorf("%d are claimed, the strict quota is 3", n)
	}
}
