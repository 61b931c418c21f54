package integration

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/driver"
)

// Keys and notes are texts from outside. The driver and the database agree on which can
// be keys; what is taken comes back byte for byte from each function that shows it, and
// what is not taken names the argument.
func FuzzTexts(f *testing.F) {
	for _, text := range []string{"acme", "", "a\x00b", "\xff", "ä\u202e\n\t'\"\\%s{}", strings.Repeat("x", 512), strings.Repeat("x", 513), strings.Repeat("ä", 256) + "x", "NULL", "$1", "{a,b}"} {
		f.Add(text, text)
	}
	conn := pg.New(f).Connect(f)
	f.Fuzz(func(t *testing.T, key, note string) {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(t.Context()) }()
		m := driver.Message{Namespace: key, TaskQueue: key, DispatchKey: key, Payload: []byte(note)}
		invalid := m.Validate()
		if (invalid == nil) != (key != "" && len(key) <= 512 && utf8.ValidString(key) && !strings.Contains(key, "\x00")) {
			t.Fatalf("Validate of %q: %v", key, invalid)
		}
		if err := textsEnqueue(t, tx, key, note); invalid != nil {
			if err == nil {
				t.Fatalf("the database takes %q, the driver does not: %v", key, invalid)
			}
			if utf8.ValidString(key) && !strings.Contains(key, "\x00") {
				wantError(t, err, "OB001", "namespace")
			}
			return
		} else if err != nil {
			t.Fatalf("the database does not take %q: %v", key, err)
		}
		got := one[[]string](t, tx, `select array[m.namespace, m.task_queue, m.dispatch_key] from outbox.messages as m where m.dispatch_key = $1`, key)
		if got[0] != key || got[1] != key || got[2] != key {
			t.Fatalf("%q came back as %q", key, got)
		}
		if payload := one[[]byte](t, tx, `select m.payload from outbox.messages as m where m.dispatch_key = $1`, key); string(payload) != note {
			t.Fatalf("payload %q came back as %q", note, payload)
		}
		if !utf8.ValidString(note) || strings.Contains(note, "\x00") {
			return
		}
		run(t, tx, `select outbox.pause($1::text, $1::text, $2::text)`, key, note)
		if got := one[string](t, tx, `select p.note from outbox.pauses as p where p.namespace = $1 and p.task_queue = $1`, key); got != note {
			t.Fatalf("note %q came back as %q", note, got)
		}
		if reason := one[string](t, tx, `select w.reason from outbox.why($1) as w`, key); !strings.Contains(reason, note) {
			t.Fatalf("why says %q, without the note %q", reason, note)
		}
		run(t, tx, `select outbox.resume($1::text, $1::text), outbox.hold($1, $1, null, $2), outbox.hold(null, $1, null, $2)`, key, note)
		if got := one[int](t, tx, `select count(*) from outbox.holds as h where h.task_queue = $1 and coalesce(h.namespace, $1) = $1 and h.reason is not distinct from left(nullif($2, ''), 1000)`, key, note); got != 2 {
			t.Fatalf("of two holds, %d have the reason %q", got, note)
		}
		if reason := one[string](t, tx, `select w.reason from outbox.why($1) as w`, key); strings.Count(reason, firstOf(note, 200)) < 2 {
			t.Fatalf("why says %q, without the reason %q of each hold", reason, note)
		}
		if n := one[int](t, tx, `select count(*) from outbox.claim_fair($1, outbox.all_shards(), 1)`, key); n != 0 {
			t.Fatalf("a paused message was claimed")
		}
	})
}

// textsEnqueue enqueues in a savepoint.
func textsEnqueue(t *testing.T, tx pgx.Tx, key, note string) error {
	t.Helper()
	inner, err := tx.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := inner.Exec(t.Context(), `select outbox.enqueue($1, $1, $1, $2)`, key, []byte(note)); err != nil {
		_ = inner.Rollback(t.Context())
		return err
	}
	return inner.Commit(t.Context())
}

// firstOf are the first n characters of a text.
func firstOf(text string, n int) string {
	if all := []rune(text); len(all) > n {
		return string(all[:n])
	}
	return text
}
