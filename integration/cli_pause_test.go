package integration

import (
	"strings"
	"testing"
	"time"
)

// INV-8: what is paused stays as it is; each form of pause is taken back by the same.
func TestCLIPauseResume(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	put(t, db.Pool, "acme", "mail", "k")
	for _, c := range []struct {
		target []string
		name   string
	}{
		{[]string{"acme"}, `namespace "acme"`},
		{[]string{"acme", "--queue", "mail"}, `route "mail" of namespace "acme"`},
		{[]string{"--all", "--queue", "mail"}, `route "mail" of all namespaces`},
		{[]string{"--all"}, "everything"},
	} {
		pause := append([]string{"pause", "--note", "provider \x1bdown"}, c.target...)
		resume := append([]string{"resume"}, c.target...)
		if got, want := sweep(t, db.DSN, pause...), "paused "+c.name+"\n"; got != want {
			t.Errorf("%q printed %q, want %q", pause, got, want)
		}
		if got, want := sweep(t, db.DSN, pause...), c.name+" was paused already\n"; got != want {
			t.Errorf("%q printed %q, want %q", pause, got, want)
		}
		if rows := claim(t, db.Pool, "n1", 10); len(rows) != 0 {
			t.Errorf("%q: claimed %v", pause, rows)
		}
		if got := sweep(t, db.DSN, "status"); !strings.Contains(got, `provider \x1bdown`) || !strings.Contains(got, c.name+"  ") {
			t.Errorf("status does not show the pause of %s:\n%s", c.name, got)
		}
		if got, want := sweep(t, db.DSN, resume...), "resumed "+c.name+"\n"; got != want {
			t.Errorf("%q printed %q, want %q", resume, got, want)
		}
		if got, want := sweep(t, db.DSN, resume...), c.name+" was not paused\n"; got != want {
			t.Errorf("%q printed %q, want %q", resume, got, want)
		}
	}
	sweep(t, db.DSN, "pause", "--all", "--note", "night")
	sweep(t, db.DSN, "pause", "acme", "--queue", "mail")
	got := sweep(t, db.DSN, "resume", "acme")
	for _, want := range []string{`namespace "acme" was not paused`, "still paused: everything, by ", `"night"`, `still paused: route "mail" of namespace "acme"`} {
		if !strings.Contains(got, want) {
			t.Errorf("resume lacks %q:\n%s", want, got)
		}
	}
	type result struct {
		Changed bool
		Pauses  []struct{ Namespace, TaskQueue, Note *string }
	}
	if r := fromJSON[result](t, sweep(t, db.DSN, "resume", "--all", "--json")); !r.Changed || len(r.Pauses) != 1 {
		t.Errorf("%+v", r)
	}
}

// TestCLIPauseUntil: a pause ends by itself after --for, by the database's clock, or at --until; of two pauses of
// the same the last call counts, and the command says what was before.
func TestCLIPauseUntil(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	put(t, db.Pool, "acme", "mail", "k")
	const lasts = "select round(extract(epoch from until - clock_timestamp()) / 60)::int from outbox.pauses"
	if got := sweep(t, db.DSN, "pause", "acme", "--for", "2h"); !strings.HasPrefix(got, `paused namespace "acme" until 2`) {
		t.Errorf("%q", got)
	}
	if got := one[int](t, db.Pool, lasts); got > 120 || got < 60 {
		t.Errorf("--for 2h: %d minutes are left", got)
	}
	if got := sweep(t, db.DSN, "pause", "acme"); !strings.Contains(got, `"acme" was paused already until 2`) || !strings.Contains(got, "; now without an end") {
		t.Errorf("%q", got)
	}
	type result struct {
		Changed bool
		Pauses  []struct{ Until *time.Time }
	}
	at := time.Date(2100, 1, 31, 3, 0, 0, 0, time.UTC)
	r := fromJSON[result](t, sweep(t, db.DSN, "pause", "acme", "--until", "2100-01-31T03:00:00Z", "--json"))
	if r.Changed || len(r.Pauses) != 1 || r.Pauses[0].Until == nil || !r.Pauses[0].Until.Equal(at) {
		t.Errorf("%+v", r)
	}
	sweep(t, db.DSN, "pause", "--all", "--queue", "mail", "--until", "2100-02-01 03:00") // of this machine's time zone
	status := sweep(t, db.DSN, "status")
	for _, want := range []string{"UNTIL", at.Local().Format("2006-01-02 15:04:05Z07:00"), "2100-02-01 03:00:00"} {
		if !strings.Contains(status, want) {
			t.Errorf("status lacks %q:\n%s", want, status)
		}
	}
	if got := sweep(t, db.DSN, "resume", "acme"); !strings.Contains(got, " until 2100-02-01 03:00:00") {
		t.Errorf("resume does not say until when the other pause lasts:\n%s", got)
	}
	sweepFails(t, db.DSN, 2, []string{"pause", "acme", "--until", "2000-01-31T03:00:00Z"}, "until is over: it is 2")
	run(t, db.Pool, "update outbox.pause set until = clock_timestamp()")
	if got := sweep(t, db.DSN, "status"); !strings.Contains(got, "Nothing is paused.") {
		t.Errorf("status shows what is over:\n%s", got)
	}
}
