package integration

import (
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// Extending waits for nobody (INV-11): a row that a settle or an operator has locked is
// passed over, and counts as ours until it is known to be lost (INV-9).
func TestExtendPassesOverWhatIsLocked(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	fill(t, db.Pool, "ns", "q", 3, 0)
	rows := claim(t, db.Pool, "n1", 3)
	var refs []driver.Ref
	for _, row := range rows {
		refs = append(refs, driver.Ref{ID: row.ID, Token: row.Token})
	}
	tx := begin(t, db.Connect(t))
	run(t, tx, "select from outbox.claimed where id = $1 for update", rows[0].ID)
	conn := impatient(t, db.Connect(t))
	lost := func() []driver.Ref {
		t.Helper()
		lost, err := driver.Extend(t.Context(), conn, refs, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return lost
	}
	if got := lost(); len(got) != 0 {
		t.Errorf("extend says that %v are lost, want none", got)
	}
	if got := one[int](t, db.Pool, "select count(*) from outbox.claimed where lease_until > clock_timestamp() + interval '50 min'"); got != 2 {
		t.Errorf("%d leases were extended, want those of the two rows that are not locked", got)
	}
	run(t, tx, "delete from outbox.claimed where id = $1", rows[0].ID)
	commit(t, tx)
	if got := lost(); len(got) != 1 || got[0] != refs[0] {
		t.Errorf("extend says that %v are lost, want the one that is gone", got)
	}
}

// While settles hang at a row that somebody has locked, the leases of all the others run
// on: no other node delivers them a second time, and once the lock is gone all is settled.
// The lease of the locked row has expired by then: whichever node comes first has the message (INV-9).
func TestLeasesRunOnWhileSettlesHang(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	shortLeases(t, db.Pool)
	fill(t, db.Pool, "ns", "q", 20, 0)
	sink := newHanging()
	n := startNode(t, newNode(t, db, sink, func(c *node.Config) { c.DeliveryTimeout = shortLease() * 2 / 3 }))
	eventually(t, "all deliveries are under way", func() bool { return len(sink.begun) == 20 })
	var other collector
	rescuer := startNode(t, newNode(t, db, &other, func(c *node.Config) { c.Node = "n2" }))
	tx := begin(t, db.Connect(t))
	run(t, tx, "select from outbox.claimed order by id limit 1 for update")
	close(sink.let)
	await(t, db.Pool, "select clock_timestamp() > min(claimed_at) + 2.4 * $1::interval from outbox.claimed", shortLease())
	commit(t, tx)
	await(t, db.Pool, "select count(*) = 20 from outbox.settled")
	if s := n.drained(t); s.Done < 19 || s.Lost > 1 || len(other.keys()) > 1 {
		t.Errorf("stats are %+v, and the other node delivered %d", s, len(other.keys()))
	}
	rescuer.drained(t)
}
