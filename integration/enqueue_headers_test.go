package integration

import (
	"strings"
	"testing"

	"github.com/fairclaim/fairclaim/driver"
)

// TestHeadersAreBounded: headers come back with each claim and count in no budget, so
// enqueue bounds them.
func TestHeadersAreBounded(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	large := strings.Repeat("x", 16<<10)
	_, err := conn.Exec(t.Context(), `select outbox.enqueue('n', 'q', 'k', '', headers => jsonb_build_object('a', $1::text))`, large)
	wantError(t, err, "OB004", "headers have")
	_, err = conn.Exec(t.Context(), `select * from outbox.enqueue_batch('{n,n}', '{q,q}', '{k1,k2}', '{x,x}', null,
		array['{}', jsonb_build_object('a', $1::text)])`, large)
	wantError(t, err, "OB004", "headers[2] have")
	if n := one[int](t, conn, "select count(*) from outbox.message"); n != 0 {
		t.Errorf("%d messages were written", n)
	}
}

// TestHeadersThatGoCannotRead: a row whose headers nest deeper than encoding/json reads
// costs nobody else the claim (INV-2).
func TestHeadersThatGoCannotRead(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	put(t, conn, "n", "q", "deep")
	put(t, conn, "n", "q", "plain")
	run(t, conn, `update outbox.message set headers = ('{"a":' || repeat('[', 10001) || repeat(']', 10001) || '}')::jsonb
		where dispatch_key = 'deep'`)
	claimed, err := driver.Claim(t.Context(), db.Pool, driver.ClaimRequest{Node: "n1", Shards: one[[]int32](t, conn, "select outbox.all_shards()"), Batch: 10})
	messages := claimed.Deliveries
	if err != nil || len(messages) != 2 {
		t.Fatalf("%d messages, %v", len(messages), err)
	}
	for _, m := range messages {
		if m.DispatchKey == "deep" && !strings.HasPrefix(m.Headers[""], `{"a":`) {
			t.Errorf("headers %.40q", m.Headers)
		}
	}
}
