package integration

import "testing"

// TestQuota: set, changed in part, cleared; what is not given stays.
func TestQuota(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	put(t, conn, "n", "q", "k")
	for _, c := range []struct{ call, want string }{
		{"select 1", "256 false"},
		{"select outbox.set_quota('n', 5)", "5 false"},
		{"select outbox.set_quota('n', null, true)", "5 true"},
		{"select outbox.set_quota('n', 0)", "0 true"},
		{"select outbox.set_quota('n', 7, false)", "7 false"},
		{"select outbox.set_quota('n', null)", "7 false"},
		{"select outbox.clear_quota('n')", "256 false"},
		{"select outbox.configure('{\"default_quota\": 3}')", "3 false"},
		{"select outbox.set_quota('n', null, true)", "3 true"},
	} {
		run(t, conn, c.call)
		if got := one[string](t, conn, "select quota || ' ' || strict from outbox.namespaces where namespace = 'n'"); got != c.want {
			t.Errorf("after %s: %s, want %s", c.call, got, c.want)
		}
	}
	if one[bool](t, conn, "select outbox.clear_quota('other')") || !one[bool](t, conn, "select outbox.clear_quota('n')") {
		t.Error("clear_quota does not say whether there was one")
	}
	for _, call := range []string{"set_quota(null, 1)", "set_quota('', 1)", "set_quota('n', -1)", "clear_quota(null)"} {
		_, err := conn.Exec(t.Context(), "select outbox."+call)
		wantError(t, err, "OB001")
	}
}
