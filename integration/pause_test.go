package integration

import "testing"

// TestPause: each of the four kinds stands for itself, says whether it changed
// anything, keeps who, since when and why, and is taken back by the same arguments.
func TestPause(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	for _, args := range []string{"'n'", "'n', 'q'", "null, 'q'", "null"} {
		if one[bool](t, conn, "select outbox.resume("+args+")") {
			t.Errorf("resume(%s) took back a pause of other arguments", args)
		}
		if !one[bool](t, conn, "select outbox.pause("+args+", note => 'one')") {
			t.Errorf("pause(%s) says that it was paused already", args)
		}
		if one[bool](t, conn, "select outbox.pause("+args+", note => repeat('x', 2000))") || one[bool](t, conn, "select outbox.pause("+args+")") {
			t.Errorf("pause(%s) says that it was not paused", args)
		}
	}
	if !one[bool](t, conn, "select count(*) = 4 and bool_and(by = session_user and note = repeat('x', 1000) and since <= clock_timestamp()) from outbox.pauses") {
		t.Error("outbox.pauses does not show four pauses, with who, since when and the note cut at 1000 characters")
	}
	for _, args := range []string{"'n'", "'n', 'q'", "null, 'q'", "null"} {
		if !one[bool](t, conn, "select outbox.resume("+args+")") || one[bool](t, conn, "select outbox.resume("+args+")") {
			t.Errorf("resume(%s) took back none, or one twice", args)
		}
	}
	for _, args := range []string{"''", "'n', ''", "null, repeat('x', 513)"} {
		_, err := conn.Exec(t.Context(), "select outbox.pause("+args+")")
		wantError(t, err, "OB001")
	}
}
