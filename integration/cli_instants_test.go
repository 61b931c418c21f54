package integration

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Commands and readers of standard output are told when a message was enqueued and came due: what
// the database has, to the microsecond.
func TestCLISinksTellInstants(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	const keys = "'plain', 'delayed', 'old'"
	run(t, db.Pool, `select outbox.enqueue('n', q, q || '-' || k, '{}', delay => case k when 'delayed' then '1 ms' else '0 s' end::interval)
		from unnest(array['lines', 'command']) as q, unnest(array[`+keys+`]) as k`)
	run(t, db.Pool, `update outbox.message set created_at = '2001-02-03 04:05:06.7Z' where dispatch_key like '%old'`)
	run(t, db.Pool, `update outbox.pending as p set visible_after = '2002-02-03 04:05:06.789012Z' from outbox.message as m where m.id = p.id and m.dispatch_key like '%old'`)
	want := map[string]string{}
	for _, line := range list[string](t, db.Pool, `select m.dispatch_key || ' ' || to_char(m.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
			|| ' ' || to_char(p.visible_after at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
		from outbox.pending as p join outbox.message as m using (id)`) {
		key, times, _ := strings.Cut(line, " ")
		want[key] = times
	}
	await(t, db.Pool, "select count(*) = 0 from outbox.pending where visible_after > clock_timestamp()")

	dir := t.TempDir()
	lines := sweep(t, db.DSN, "once", "--sink", "stdout", "--route",
		`command=exec:sh -c 'echo "$FAIRCLAIM_CREATED_AT $FAIRCLAIM_DUE_AT $FAIRCLAIM_CLAIMED_AT" > "$0/$FAIRCLAIM_DISPATCH_KEY"' `+dir)
	got, claimed := map[string]string{}, map[string]string{}
	for line := range strings.Lines(lines) {
		var m struct {
			Key       string `json:"dispatch_key"`
			CreatedAt string `json:"created_at"`
			DueAt     string `json:"due_at"`
			ClaimedAt string `json:"claimed_at"`
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		got[m.Key], claimed[m.Key] = m.CreatedAt+" "+m.DueAt, m.ClaimedAt
	}
	for key := range want {
		if !strings.HasPrefix(key, "command-") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, key))
		if err != nil {
			t.Fatal(err)
		}
		last := strings.LastIndexByte(string(text), ' ')
		got[key], claimed[key] = string(text[:last]), strings.TrimSpace(string(text[last+1:]))
	}
	if len(want) != 6 || !maps.Equal(got, want) {
		t.Errorf("sinks were told\n%v, want\n%v", got, want)
	}
	for key, at := range claimed {
		_, due, _ := strings.Cut(got[key], " ")
		if _, err := time.Parse(time.RFC3339, at); err != nil || at < due {
			t.Errorf("%s was claimed at %q, and came due at %s", key, at, due)
		}
	}
}
