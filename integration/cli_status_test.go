package integration

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// The status shows what is there, in a form for people and one for programs, and to
// an operator too.
func TestCLIStatus(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	empty := sweep(t, db.DSN, "status")
	for _, want := range []string{"No namespace has messages", "No node has claimed", "Nothing is paused", "expired leases: none"} {
		if !strings.Contains(empty, want) {
			t.Errorf("an empty outbox lacks %q:\n%s", want, empty)
		}
	}
	putMany(t, db, "big", 1200)
	put(t, db.Pool, "small\x1b", "q", "s1")
	put(t, db.Pool, "字幕", "q", "s2")
	run(t, db.Pool, `select outbox.set_quota('big', 1, true), outbox.heartbeat('n1', '{0,1,2,5}', null, 77)`)
	claim(t, db.Pool, "n1", 10)
	run(t, db.Pool, `update outbox.claimed set lease_until = clock_timestamp() - interval '1 s'`)
	pinned := begin(t, db.Connect(t, pgtest.Param("application_name", "forgotten")))
	run(t, pinned, `select txid_current()`)

	role := db.Role(t)
	run(t, db.Pool, `select outbox.grant_operator($1)`, role.Name)
	for _, dsn := range []string{db.DSN, role.DSN} {
		got := sweep(t, dsn, "status")
		for _, want := range []string{
			"big        1000+    1        1 strict  0       at its quota\n", `small\x1b`, "字幕",
			"n1    live   0-2,5   77 bytes", "expired leases: 3;", "forgotten, " + db.Owner,
		} {
			if !strings.Contains(got, want) {
				t.Errorf("status lacks %q:\n%s", want, got)
			}
		}
		if strings.Contains(got, "\x1b") {
			t.Error("status prints a control character")
		}
		first := sweep(t, dsn, "status", "--top", "1", "--scan", "2")
		if !strings.Contains(first, "The 1 with the largest backlog of the first 2 by name; there are more") || strings.Contains(first, "small") {
			t.Errorf("--top, --scan:\n%s", first)
		}
	}
	type status struct {
		Namespaces []struct {
			Namespace                string
			Pending, Claimed, Failed int
			Strict, Paused           bool
		}
		Scanned       int  `json:"namespaces_scanned"`
		More          bool `json:"more_namespaces"`
		Nodes, Pauses []json.RawMessage
		Expired       int `json:"expired_leases"`
		Horizon       []struct{ Kind, Name, Who string }
	}
	s := fromJSON[status](t, sweep(t, db.DSN, "status", "--json"))
	if len(s.Namespaces) != 3 || s.Namespaces[0].Pending != 1000 || s.Namespaces[1].Namespace != "small\x1b" || s.Scanned != 3 || s.More ||
		len(s.Nodes) != 1 || s.Pauses == nil || s.Expired != 3 || len(s.Horizon) == 0 {
		t.Errorf("%+v", s)
	}
}
