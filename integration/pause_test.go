package integration

import "testing"

// pauseKinds are the arguments of pause(), and of the resume() that takes it back.
var pauseKinds = []struct{ pause, resume string }{
	{"'n'", "'n'"}, {"'n', 'q'", "'n', 'q'"}, {"null, 'q'", "null, 'q'"}, {"everything => true", "null"},
}

// TestPause: each of the four kinds stands for itself, says whether it changed
// anything, keeps who, since when and why, and is taken back by the same arguments.
func TestPause(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	for _, k := range pauseKinds {
		if one[bool](t, conn, "select outbox.resume("+k.resume+")") {
			t.Errorf("resume(%s) took back a pause of other arguments", k.resume)
		}
		if !one[bool](t, conn, "select outbox.pause("+k.pause+", note => 'one')") {
			t.Errorf("pause(%s) says that it was paused already", k.pause)
		}
		if one[bool](t, conn, "select outbox.pause("+k.pause+", note => repeat('x', 2000))") || one[bool](t, conn, "select outbox.pause("+k.pause+")") {
			t.Errorf("pause(%s) says that it was not paused", k.pause)
		}
	}
	if !one[bool](t, conn, "select count(*) = 4 and bool_and(by = session_user and note = repeat('x', 1000) and since <= clock_timestamp() and until is null) from outbox.pauses") {
		t.Error("outbox.pauses does not show four pauses, with who, since when and the note cut at 1000 characters")
	}
	for _, k := range pauseKinds {
		if !one[bool](t, conn, "select outbox.resume("+k.resume+")") || one[bool](t, conn, "select outbox.resume("+k.resume+")") {
			t.Errorf("resume(%s) took back none, or one twice", k.resume)
		}
	}
	for _, args := range []string{"''", "'n', ''", "null, repeat('x', 513)"} {
		_, err := conn.Exec(t.Context(), "select outbox.pause("+args+")")
		wantError(t, err, "OB001")
	}
}

// TestPauseOfNothingNamed: a namespace that is null by mistake pauses nothing, and the error says how
// to pause everything on purpose.
func TestPauseOfNothingNamed(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	for _, args := range []string{"", "null", "null, null, 'why'", "namespace => null, note => 'why'", "null, everything => false", "null, everything => null"} {
		_, err := conn.Exec(t.Context(), "select outbox.pause("+args+")")
		wantError(t, err, "OB001", "everything => true")
	}
	for _, args := range []string{"'n'", "null, 'q'", "'n', 'q'"} {
		_, err := conn.Exec(t.Context(), "select outbox.pause("+args+", everything => true)")
		wantError(t, err, "OB001")
	}
	if got := one[int](t, conn, "select count(*) from outbox.pauses"); got != 0 {
		t.Errorf("%d pauses were made", got)
	}
}

// TestPauseUntil: of two pauses of the same, the last call's end counts, and its note where there is one; a pause
// that is over is none for pause(), resume() and the view.
func TestPauseUntil(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	const row = "select format('%s %s', coalesce(extract(epoch from until - '2100-01-01'::timestamptz)::text, 'no end'), note) from outbox.pauses"
	for _, k := range pauseKinds {
		for _, c := range []struct {
			rest    string
			changed bool
			want    string
		}{
			{", until => '2100-01-01'::timestamptz, note => 'a'", true, "0.000000 a"},
			{"", false, "no end a"},
			{", until => '2100-01-01 01:00'::timestamptz", false, "3600.000000 a"},
			{", until => '2100-01-01 00:30'::timestamptz, note => 'b'", false, "1800.000000 b"},
		} {
			if got := one[bool](t, conn, "select outbox.pause("+k.pause+c.rest+")"); got != c.changed {
				t.Errorf("pause(%s%s) says %t", k.pause, c.rest, got)
			}
			if got := one[string](t, conn, row); got != c.want {
				t.Errorf("pause(%s%s): %s, want %s", k.pause, c.rest, got, c.want)
			}
		}
		run(t, conn, "update outbox.pause set until = clock_timestamp(), by = 'former', since = since - interval '1 day'")
		if got := list[string](t, conn, row); len(got) != 0 {
			t.Errorf("outbox.pauses has what is over: %s", got)
		}
		if !one[bool](t, conn, "select outbox.pause("+k.pause+")") {
			t.Errorf("pause(%s) after one that is over says that it was paused already", k.pause)
		}
		if !one[bool](t, conn, "select by = session_user and since > clock_timestamp() - interval '1 h' and note is null and until is null from outbox.pauses") {
			t.Errorf("pause(%s) took over what belongs to the pause before", k.pause)
		}
		run(t, conn, "update outbox.pause set until = clock_timestamp()")
		if one[bool](t, conn, "select outbox.resume("+k.resume+")") {
			t.Errorf("resume(%s) took back a pause that was over", k.resume)
		}
	}
	for _, until := range []string{"clock_timestamp()", "'2000-01-01'", "'-infinity'", "'infinity'", "'20000-01-01'"} {
		_, err := conn.Exec(t.Context(), "select outbox.pause('n', until => "+until+")")
		wantError(t, err, "OB001", "until")
	}
}

// TestPrunePauses: prune deletes pauses that have been over for a day, and no others.
func TestPrunePauses(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	run(t, conn, `insert into outbox.pause (namespace, since, by, until)
		select x.name, clock_timestamp(), 'me', clock_timestamp() + x.until::interval
		from (values ('lasts', null), ('to come', '1 h'), ('over', '-23 h'), ('long over', '-25 h'), (null, '-2 days')) as x(name, until);
		select outbox.prune()`)
	if got := one[string](t, conn, "select string_agg(namespace, ', ' order by namespace) from outbox.pause"); got != "lasts, over, to come" {
		t.Errorf("left are %s", got)
	}
}

// TestUpgradePauses: a pause of before has no end; on the way down, what is over is gone, since the functions of
// before know no end, and what is not stays paused.
func TestUpgradePauses(t *testing.T) {
	t.Parallel()
	const before = 12
	db := emptyDatabase(t)
	migrateTo(t, db, 0, before)
	conn := db.Connect(t)
	run(t, conn, `select outbox.pause('former', 'q', 'why'), outbox.enqueue(x.name, 'q', x.name, '') from unnest('{former,lasts,to come,over}'::text[]) as x(name)`)
	migrateTo(t, db, before, latestVersion(t))
	run(t, conn, `select outbox.pause('lasts'), outbox.pause('to come', until => clock_timestamp() + interval '1 h'), outbox.pause('over', until => clock_timestamp() + interval '1 h');
		update outbox.pause set until = clock_timestamp() where namespace = 'over'`)
	const paused = "select string_agg(concat_ws('/', p.namespace, p.task_queue, p.note), ', ' order by p.namespace) from outbox.pause as p"
	wantClaimed := func(when string) {
		t.Helper()
		tx := begin(t, conn)
		if got := list[string](t, tx, "select c.namespace from outbox.claim_fair('n', outbox.all_shards(), 10) as c"); len(got) != 1 || got[0] != "over" {
			t.Errorf("%s %q are claimed, want the one whose pause is over", when, got)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	wantClaimed("after the upgrade")
	migrateTo(t, db, latestVersion(t), before)
	if got := one[string](t, conn, paused); got != "former/q/why, lasts, to come" {
		t.Errorf("after the way down these are paused: %s", got)
	}
	wantClaimed("after the way down")
	migrateTo(t, db, before, latestVersion(t))
	if got := one[string](t, conn, paused+" where p.until is null"); got != "former/q/why, lasts, to come" {
		t.Errorf("after the way up again these are paused without an end: %s", got)
	}
	wantClaimed("after the way up again")
}
