package integration

import (
	"testing"

	"github.com/fairclaim/fairclaim/integration/pgtest"
	"github.com/fairclaim/fairclaim/sql/migrations"
)

// released is the schema's version that has been in use.
const released = 2

// TestUpgradeKeepsRights: who could enqueue, claim or look before an upgrade from what is in
// use can afterwards, with all that a node calls by then, and after the way back.
func TestUpgradeKeepsRights(t *testing.T) {
	t.Parallel()
	db := emptyDatabase(t)
	up := func(to uint) {
		t.Helper()
		if _, err := migrations.Up(t.Context(), db.DSN, migrations.Options{To: to}); err != nil {
			t.Fatal(err)
		}
	}
	up(released)
	producer, worker, operator := db.Role(t), db.Role(t), db.Role(t)
	run(t, db.Pool, "select outbox.grant_producer($1)", producer.Name)
	run(t, db.Pool, "select outbox.grant_worker($1)", worker.Name)
	run(t, db.Pool, "select outbox.grant_operator($1)", operator.Name)
	use := func(key string) {
		t.Helper()
		put(t, db.Connect(t, pgtest.As(producer)), "n", "q", key)
		if rows := list[int64](t, db.Connect(t, pgtest.As(worker)), "select id from outbox.claim_fair('n1', outbox.all_shards(), 1)"); len(rows) != 1 {
			t.Errorf("a worker claims %d", len(rows))
		}
		run(t, db.Connect(t, pgtest.As(operator)), "select * from outbox.explain_claim('n', '{0}', 1)")
		run(t, db.Connect(t, pgtest.As(operator)), "select * from outbox.nodes")
		run(t, db.Connect(t, pgtest.As(operator)), "select * from outbox.namespaces")
	}
	up(latestVersion(t))
	use("after the upgrade")
	sweep(t, worker.DSN, "once", "--sink", "stdout")
	put(t, db.Pool, "n", "q", "for the node")
	sweep(t, worker.DSN, "once", "--sink", "stdout")
	await(t, db.Pool, "select count(*) = 1 from outbox.settled where outcome = 'done'")
	run(t, db.Connect(t, pgtest.As(worker)), "select * from outbox.heartbeat('n1')")
	if _, err := migrations.Down(t.Context(), db.DSN, int(latestVersion(t)-released), migrations.Options{}); err != nil {
		t.Fatal(err)
	}
	run(t, db.Connect(t, pgtest.As(worker)), "select * from outbox.heartbeat('n1')")
	put(t, db.Connect(t, pgtest.As(producer)), "n", "q", "after the way back")
	run(t, db.Connect(t, pgtest.As(worker)), "select * from outbox.claim_fair('n1', outbox.all_shards(), 10)")
}
