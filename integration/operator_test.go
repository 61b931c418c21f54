package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestCancel: pending and claimed messages become cancelled, the rest is left out,
// and a claimed one's settle is lost (INV-9).
func TestCancel(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	put(t, conn, "n", "q", "claimed")
	row := claimOne(t, conn, "n1")
	put(t, conn, "n", "q", "done")
	done := claimOne(t, conn, "n1")
	settle(t, conn, "complete", done.ID, done.Token)
	pending := put(t, conn, "n", "q", "pending")

	const call = "select dispatch_key || ' was ' || was from outbox.cancel('{pending,claimed,done,unknown,null,pending}') order by 1"
	got := list[string](t, conn, call)
	if want := []string{"claimed was claimed", "pending was pending"}; !slices.Equal(got, want) {
		t.Errorf("cancel gave %q, want %q", got, want)
	}
	if got := list[string](t, conn, call); len(got) != 0 {
		t.Errorf("cancel gave %q a second time", got)
	}
	if settle(t, conn, "complete", row.ID, row.Token) {
		t.Error("the settle of a cancelled message was not lost")
	}
	if status(t, conn, row.ID) != "cancelled" || status(t, conn, pending) != "cancelled" || status(t, conn, done.ID) != "done" {
		t.Error("not what they should be")
	}
	if got := list[string](t, conn, "select dispatch_key from outbox.cancel('{}')"); len(got) != 0 {
		t.Errorf("cancelling nothing gave %q", got)
	}
	back := list[int64](t, conn, "select outbox.redrive(array[$1, $2, $3, $2, 99999, null]::bigint[])", row.ID, pending, done.ID)
	slices.Sort(back)
	if !slices.Equal(back, []int64{row.ID, pending}) {
		t.Errorf("redrive brought back %v", back)
	}
	if got := one[int](t, conn, "select count(*) from outbox.redrive('n') as n where n > 0"); got != 0 {
		t.Error("redriving the namespace brought something back")
	}
}

// TestCancelNamespace works in chunks, leaves other namespaces alone, and is repeated
// until nothing is left.
func TestCancelNamespace(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	run(t, conn, "select outbox.enqueue(n, 'q', n || g, '') from unnest('{a,b}'::text[]) as n, generate_series(1, 20) as g")
	claim(t, conn, "n1", 10) // five of each
	var got []int
	for n := -1; n != 0; {
		n = one[int](t, conn, "select outbox.cancel_namespace('a', 8)")
		got = append(got, n)
	}
	if !slices.Equal(got, []int{8, 8, 4, 0}) {
		t.Errorf("cancelled %v", got)
	}
	left := list[string](t, conn, "select namespace || ' ' || status || ' ' || count(*) from outbox.messages group by namespace, status order by 1")
	if want := []string{"a cancelled 20", "b claimed 5", "b pending 15"}; !slices.Equal(left, want) {
		t.Errorf("left are %q", left)
	}
	if n := one[int](t, conn, "select outbox.cancel_namespace('b')"); n != 20 {
		t.Errorf("cancelled %d, want 20", n)
	}
}

// TestRedriveNamespace brings failed messages back, oldest first, up to a number:
// pending, due, attempts from 0 (INV-10).
func TestRedriveNamespace(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	run(t, conn, "select outbox.enqueue(n, 'q', n || g, 'x', delay => '-1 s') from unnest('{a,b}'::text[]) as n, generate_series(1, 5) as g")
	for _, row := range claim(t, conn, "n1", 10) {
		settle(t, conn, "fail", row.ID, row.Token)
	}
	var got []int
	for _, limit := range []any{2, 2, nil, nil} {
		got = append(got, one[int](t, conn, "select outbox.redrive('a', $1)", limit))
	}
	if !slices.Equal(got, []int{2, 2, 1, 0}) {
		t.Errorf("redrove %v", got)
	}
	if got := list[string](t, conn, "select dispatch_key from outbox.messages where status = 'failed' order by 1"); !slices.Equal(got, []string{"b1", "b2", "b3", "b4", "b5"}) {
		t.Errorf("still failed: %q", got)
	}
	for _, row := range claim(t, conn, "n1", 10) {
		if row.Namespace != "a" || row.Attempt != 1 || string(row.Payload) != "x" {
			t.Errorf("claimed %+v", row)
		}
	}
}

// TestRescue: only expired leases, up to a number, and none that is locked.
func TestRescue(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn, other := impatient(t, db.Connect(t)), db.Connect(t)
	run(t, conn, "select outbox.enqueue('n', 'q', 'k' || g, '') from generate_series(1, 10) as g")
	rows := claim(t, conn, "n1", 10)
	if got := list[int64](t, conn, "select id from outbox.rescue()"); len(got) != 0 {
		t.Errorf("rescued %v before their leases ran out", got)
	}
	expire(t, conn, "n")
	tx := begin(t, other)
	settle(t, tx, "complete", rows[0].ID, rows[0].Token)
	var got []int
	for range 3 {
		got = append(got, len(list[int64](t, conn, "select id from outbox.rescue(7) where state = 'pending'")))
	}
	if !slices.Equal(got, []int{7, 2, 0}) {
		t.Errorf("rescued %v, want 7, 2 and 0", got)
	}
	commit(t, tx)
	if got := claim(t, conn, "n2", 20); len(got) != 9 {
		t.Errorf("%d are due again at once, want 9", len(got))
	}
}

// TestPrune: done and cancelled messages older than the retention go, failed ones
// only when asked, with payloads and failures; keys are free again (INV-2).
func TestPrune(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	fill := func() {
		for i, how := range []string{"complete", "cancel", "fail"} {
			for age := range 3 {
				id := put(t, conn, "n", "q", fmt.Sprint(how, age))
				row := claimOne(t, conn, "n1")
				if how == "cancel" {
					run(t, conn, "select outbox.cancel(array[$1])", row.Key)
				} else {
					settle(t, conn, how, id, row.Token)
				}
				run(t, conn, "update outbox.settled set settled_at = clock_timestamp() - make_interval(days => $2) where id = $1", id, age*5+i)
			}
		}
	}
	keys := func() string {
		return strings.Join(list[string](t, conn, "select dispatch_key from outbox.messages order by 1"), " ")
	}
	fill()
	put(t, conn, "n", "q", "pending")
	for _, c := range []struct {
		call string
		gone int
		left string
	}{
		{"prune()", 2, "cancel0 cancel1 complete0 complete1 fail0 fail1 fail2 pending"},
		{"prune('1000000 years')", 0, "cancel0 cancel1 complete0 complete1 fail0 fail1 fail2 pending"},
		{"prune('3 days', 1)", 1, "cancel0 cancel1 complete0 fail0 fail1 fail2 pending"},
		{"prune('3 days', 1)", 1, "cancel0 complete0 fail0 fail1 fail2 pending"},
		{"prune('3 days', 1)", 0, "cancel0 complete0 fail0 fail1 fail2 pending"},
		{"prune('3 days', failed => true)", 2, "cancel0 complete0 fail0 pending"},
		{"prune('0', failed => true)", 3, "pending"},
	} {
		if got := one[int](t, conn, "select outbox."+c.call); got != c.gone {
			t.Errorf("%s deleted %d, want %d", c.call, got, c.gone)
		}
		if got := keys(); got != c.left {
			t.Errorf("after %s there are %s, want %s", c.call, got, c.left)
		}
	}
	if got := one[int](t, conn, "select (select count(*) from outbox.failure) + (select count(*) from outbox.settled)"); got != 0 {
		t.Errorf("%d rows of pruned messages stayed", got)
	}
	run(t, conn, "delete from outbox.pending")
	fill() // the keys are free
}

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
		t.Error("the view shows something else")
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

// TestConfigure: settings change by name; what is unknown or out of bounds changes
// nothing, and the shard count is fixed once a message exists.
func TestConfigure(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	before := one[string](t, conn, "select to_jsonb(outbox.settings())::text")
	for settings, code := range map[string]string{
		`null`: "OB001", `'[]'`: "OB001", `'1'`: "OB001",
		`'{"leese": "1 s"}'`: "OB001", `'{"singleton": true}'`: "OB001", `'{"lease": "1 s", "ctid": 1}'`: "OB001",
	} {
		_, err := conn.Exec(t.Context(), "select outbox.configure("+settings+")")
		wantError(t, err, code, "settings")
	}
	for _, settings := range []string{
		`{"shard_count": 0}`, `{"shard_count": 1025}`, `{"default_quota": -1}`, `{"lease": "0"}`, `{"retry_base": "2 h"}`,
		`{"retry_jitter": 1.1}`, `{"retry_jitter": "NaN"}`, `{"retry_multiplier": "Infinity"}`, `{"max_batch": 0}`, `{"retention": "-1 s"}`, `{"lease": null}`,
	} {
		if _, err := conn.Exec(t.Context(), "select outbox.configure($1)", settings); err == nil {
			t.Errorf("configure(%s) raised nothing", settings)
		}
	}
	if after := one[string](t, conn, "select to_jsonb(outbox.settings())::text"); after != before {
		t.Errorf("settings were %s, are %s", before, after)
	}
	if got := one[string](t, conn, `select lease || ' ' || shard_count || ' ' || default_quota from outbox.configure('{"lease": "30 s", "shard_count": 7}')`); got != "00:00:30 7 256" {
		t.Errorf("configure gave %s", got)
	}
	if got := one[int](t, conn, "select cardinality(outbox.all_shards())"); got != 7 {
		t.Errorf("%d shards, want 7", got)
	}
	put(t, conn, "n", "q", "k")
	_, err := conn.Exec(t.Context(), `select outbox.configure('{"shard_count": 8}')`)
	wantError(t, err, "OB005", "shard_count is fixed at 7")
	run(t, conn, `select outbox.configure('{"shard_count": 7, "lease": "60 s"}')`)
	_, err = conn.Exec(t.Context(), "delete from outbox.config")
	wantError(t, err, "OB005")
}
