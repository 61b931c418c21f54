package integration

import (
	"syscall"
	"testing"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// badPhase is a point in a node's work at which it can be struck.
type badPhase struct {
	args  []string
	put   int // messages of each of four namespaces
	twice int // most messages that may then be delivered twice
	// reach brings the node to the point, and returns what lets PostgreSQL go on.
	reach func(t *testing.T, b *badDay) (goOn func())
}

func badPhases() map[string]badPhase {
	nothing := func() {}
	working := func(t *testing.T, db *pgtest.DB, function string) {
		t.Helper()
		await(t, db.Pool, `select count(*) > 0 from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock' and query like '%outbox.' || $1 || '(%' and pid <> pg_backend_pid()`, function)
	}
	return map[string]badPhase{
		// In the middle of the claim's transaction: it is undone, and nobody has seen it.
		"claiming": {put: 10, reach: func(t *testing.T, b *badDay) func() {
			tx := begin(t, b.db.Connect(t))
			run(t, tx, "lock table outbox.walk in exclusive mode")
			b.put(t.Context(), 10)
			working(t, b.db, "claim_fair")
			return func() { commit(t, tx) }
		}},
		// All is claimed, and all but one wait for a slot.
		"claimed": {args: []string{"--slots", "1", "--share", "1"}, twice: 1, reach: func(t *testing.T, b *badDay) func() {
			b.put(t.Context(), 10)
			await(t, b.db.Pool, "select count(*) = 40 from outbox.claimed")
			eventually(t, "one is delivered", func() bool { return b.hooks.from("victim") == 1 })
			return nothing
		}},
		// All are on their way.
		"delivering": {twice: 40, reach: func(t *testing.T, b *badDay) func() {
			b.put(t.Context(), 10)
			eventually(t, "all are delivered", func() bool { return b.hooks.from("victim") == 40 })
			return nothing
		}},
		// All have arrived, and the first of them are being settled, which comes through.
		"acking": {twice: 3, reach: func(t *testing.T, b *badDay) func() {
			b.put(t.Context(), 1)
			eventually(t, "all are delivered", func() bool { return b.hooks.from("victim") == 4 })
			tx := begin(t, b.db.Connect(t))
			run(t, tx, "select from outbox.claimed for update")
			b.hooks.let("victim")
			working(t, b.db, "complete")
			return func() { commit(t, tx) }
		}},
	}
}

// A node is killed, or frozen for longer than its lease, at any point of its work. Another
// one takes over what it held; whoever thaws finds out, settles nothing that is another's
// (INV-9), and goes on. Nothing is lost (INV-2), and delivered twice is only what was on
// its way.
func TestNodeStruck(t *testing.T) {
	t.Parallel()
	for name, phase := range badPhases() {
		for how, strike := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "frozen": syscall.SIGSTOP} {
			t.Run(how+" while "+name, func(t *testing.T) {
				t.Parallel()
				b := newBadDay(t, pg.New(t))
				b.hooks.hold("victim")
				victim := b.node("victim", b.db.DSN, phase.args...)
				goOn := phase.reach(t, b)
				victim.signal(t, strike)
				goOn()
				other := b.node("other", b.db.DSN)
				b.settled()

				if strike == syscall.SIGSTOP {
					victim.signal(t, syscall.SIGCONT)
					b.hooks.let("victim")
					other.stop(t)
					before := b.hooks.from("victim")
					b.put(t.Context(), 10)
					eventually(t, "the thawed node works", func() bool { return b.hooks.from("victim") >= before+40 })
					b.settled()
					victim.stop(t)
					victim.quiet(t, 30)
				} else {
					other.stop(t)
				}
				b.account(phase.twice, 0)
			})
		}
	}
}
