package integration

import (
	"testing"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// TestSessionBound: what keeps others from their work bounds how long its transaction may
// wait for its client, for that transaction alone; a stricter bound of the session stays.
func TestSessionBound(t *testing.T) {
	t.Parallel()
	const setting = `select current_setting('idle_in_transaction_session_timeout')`
	for name, call := range map[string]string{
		"a heartbeat that shares out": `select owned from outbox.heartbeat(gen_random_uuid()::text)`,
		"a quota made strict":         `select outbox.set_quota('n', 3, true)`,
		"a prune":                     `select outbox.prune()`,
		"the end of a purge":          `select next from outbox.purge('n')`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pg.New(t)
			for before, within := range map[string]string{"0": "10s", "5s": "5s", "1d": "10s"} {
				conn := db.Connect(t, pgtest.Param("idle_in_transaction_session_timeout", before))
				tx := begin(t, conn)
				run(t, tx, call)
				if got := one[string](t, tx, setting); got != within {
					t.Errorf("with %s before, %s within the transaction, want %s", before, got, within)
				}
				if err := tx.Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := one[string](t, conn, setting); got != before {
					t.Errorf("with %s before, %s after the transaction", before, got)
				}
			}
		})
	}
}
