package integration

import (
	"strings"
	"testing"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// TestCLIOnceWithoutPrune: a duty that the database refuses ends no run of once.
func TestCLIOnceWithoutPrune(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	role := db.Role(t)
	run(t, db.Pool, "select outbox.grant_worker($1)", role.Name)
	run(t, db.Pool, "revoke execute on function outbox.prune from "+role.Name)
	conn := db.Connect(t, pgtest.As(role))
	run(t, conn, "select count(outbox.enqueue('n', 'q', i::text, '')) from generate_series(1, 250) as i")
	if got := sweep(t, role.DSN, "once", "--sink", "stdout"); strings.Count(got, "\n") != 250 {
		t.Errorf("%d delivered, want 250", strings.Count(got, "\n"))
	}
}
