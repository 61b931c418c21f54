package integration

import (
	"strings"
	"testing"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// TestCLIOddRole: what a role has set for its sessions changes nothing of what sweep reads
// and writes.
func TestCLIOddRole(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	role := db.Role(t, "set client_encoding = 'latin1'", "set datestyle = 'German'", "set intervalstyle = 'iso_8601'",
		"set bytea_output = 'escape'", "set default_transaction_isolation = 'serializable'", "set extra_float_digits = -15")
	run(t, db.Pool, "select outbox.grant_operator($1)", role.Name)
	line := `{"namespace":"mö😀","task_queue":"q","dispatch_key":"k1","payload":{"ö":"é"}}` + "\n"
	sweepWith(t, role.DSN, line, "enqueue")
	if got := one[string](t, db.Pool, "select namespace || convert_from(payload, 'UTF8') from outbox.messages"); got != `mö😀{"ö":"é"}` {
		t.Errorf("stored %q", got)
	}
	sweep(t, role.DSN, "pause", "mö😀", "--note", "why")
	sweep(t, role.DSN, "why", "k1")
	sweep(t, role.DSN, "status")
	sweep(t, role.DSN, "explain")
	sweep(t, role.DSN, "resume", "mö😀")
	if got := sweep(t, role.DSN, "once", "--sink", "stdout"); !strings.Contains(got, `"mö😀"`) {
		t.Errorf("delivered %q", got)
	}
}

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
