package integration

import (
	"fmt"
	"slices"
	"testing"
)

// What prune() forgets of destinations: those that nobody has had to do with for long. A hold stays as
// long as messages wait for it, or nobody but an operator may end it.
func TestPruneDestinations(t *testing.T) {
	t.Parallel()
	db := setUp(t, "")
	put(t, db.Pool, "waits", "q", "k1")
	run(t, db.Pool, "select outbox.enqueue('delayed', 'q', 'k2', '', delay => '1 h')")
	run(t, db.Pool, `
		insert into outbox.destination (namespace, task_queue, state, held_since, held_until, changed_at)
		select n.name, 'q', 'held', now() - interval '9 days', now() - interval '2 days', now() - interval '9 days'
		from unnest(array['waits', 'delayed', 'left', null]) as n(name)
		union all select 'given up', 'q', 'held', now() - interval '9 days', 'infinity', now() - interval '9 days'
		union all select 'new', 'q', 'held', now(), now() - interval '1 hour', now()`)
	run(t, db.Pool, `
		insert into outbox.destination (namespace, task_queue, state, shared, lifted_at, changed_at)
		values ('failing', 'q', 'failing', null, null, now() - interval '1 hour'), ('failed', 'q', 'failing', null, null, now() - interval '9 days'),
		       ('back', 'q', 'recovering', null, now() - interval '9 days', now() - interval '9 days'), (null, 'shared', 'well', true, null, now() - interval '9 days')`)
	run(t, db.Pool, "select outbox.prune()")
	got := list[string](t, db.Pool, "select coalesce(d.namespace, 'all') from outbox.destination as d order by 1")
	want := []string{"all", "all", "delayed", "failing", "given up", "new", "waits"}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("prune() leaves %q, want %q", got, want)
	}
	if got := list[string](t, db.Pool, "select e.event || ' ' || e.namespace || ' ' || extract(day from e.at - e.since) from outbox.hold_events() as e"); !slices.Equal(got, []string{"lifted left 9"}) {
		t.Errorf("prune() tells %q of holds", got)
	}
}

// Holds that stay, since messages wait for them, are in the way of none that can go, however many they are and
// whenever their time was over: at one moment, say.
func TestPruneDestinationsInTurn(t *testing.T) {
	t.Parallel()
	db := setUp(t, "select outbox.enqueue(n::text, 'q', n::text, ''), outbox.pause(n::text) from generate_series(1, 300) as n")
	hold := func(namespace string, days int) {
		run(t, db.Pool, `
			insert into outbox.destination (namespace, task_queue, state, held_since, held_until, changed_at)
			values ($1, 'q', 'held', now() - interval '90 days', date_trunc('day', now()) - $2 * interval '1 day', now())`, namespace, days)
	}
	for n := range 300 {
		hold(fmt.Sprint(n+1), 30+n%2)
	}
	for _, days := range []int{20, 31, 40, 20} {
		hold("left", days)
		for range 12 {
			run(t, db.Pool, "select outbox.prune()")
		}
		if n := one[int](t, db.Pool, "select count(*) from outbox.destination where namespace = 'left'"); n != 0 {
			t.Fatalf("prune() leaves a hold that was over for %d days, beside 300 that stay", days)
		}
	}
	if n := one[int](t, db.Pool, "select count(*) from outbox.destination"); n != 300 {
		t.Errorf("%d holds are left, want 300", n)
	}
}

// A destination stays as long as its probe is out, and until what that has come to is read: else the outcome
// would be that of a destination that nothing is known of (INV-16).
func TestPruneProbeOut(t *testing.T) {
	t.Parallel()
	db := setUp(t, "select outbox.enqueue('n', 'q', 'k', ''), outbox.hold('n', 'q')")
	run(t, db.Pool, "update outbox.destination set held_since = now() - interval '9 days', held_until = now() - interval '2 days', changed_at = now() - interval '9 days'")
	probe := claimOne(t, db.Pool, "n1")
	state := func() string {
		run(t, db.Pool, "select outbox.prune()")
		return one[string](t, db.Pool, "select coalesce(min(d.state), 'forgotten') from outbox.destination as d")
	}
	if got := state(); got != "held" {
		t.Errorf("while the probe is out, it is %s", got)
	}
	if !settle(t, db.Pool, "complete", probe.ID, probe.Token) {
		t.Fatal("the probe was lost")
	}
	if got := state(); got != "held" {
		t.Errorf("while nobody has read that the probe came through, it is %s", got)
	}
	claim(t, db.Pool, "n1", 1)
	if got := state(); got != "recovering" {
		t.Errorf("after that, it is %s", got)
	}
}

// What became of holds is kept for a day, whether somebody has told of it or not; and what is older is told no more.
func TestPruneHoldEvents(t *testing.T) {
	t.Parallel()
	db := setUp(t, "select outbox.hold(n::text, 'q') from generate_series(1, 4) as n")
	if got := list[string](t, db.Pool, "select e.namespace from outbox.hold_events(2) as e order by e.id"); !slices.Equal(got, []string{"1", "2"}) {
		t.Fatalf("told are %q", got)
	}
	run(t, db.Pool, "update outbox.hold_event set at = at - interval '25 hours' where namespace in ('1', '3')")
	if got := list[string](t, db.Pool, "select e.namespace from outbox.hold_events() as e order by e.id"); !slices.Equal(got, []string{"4"}) {
		t.Errorf("then told are %q", got)
	}
	run(t, db.Pool, "select outbox.prune()")
	if got := list[string](t, db.Pool, "select e.namespace from outbox.hold_event as e order by e.id"); !slices.Equal(got, []string{"2", "4"}) {
		t.Errorf("prune() leaves %q", got)
	}
}
