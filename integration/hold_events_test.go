package integration

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestHoldEventsAtOnce: of two sessions that ask for events of holds at the same moment one is told each event, and
// the other one, which does not wait for it, nothing.
func TestHoldEventsAtOnce(t *testing.T) {
	t.Parallel()
	db := setUp(t, `select outbox.hold(null, 'q' || n) from generate_series(1, 3) as n`)
	a, b := db.Connect(t), db.Connect(t)
	const ask = `select e.task_queue from outbox.hold_events() as e order by e.id`
	slow := begin(t, db.Connect(t))
	run(t, slow, `lock table outbox.hold_event`) // so that the first one is between what it reads and what it notes
	var told [2][]string
	asks := func(i int, conn *pgx.Conn) func() error {
		return func() error {
			rows, err := conn.Query(t.Context(), ask)
			if err == nil {
				told[i], err = pgx.CollectRows(rows, pgx.RowTo[string])
			}
			return err
		}
	}
	first := whileWaiting(t, db, a, asks(0, a))
	second := make(chan error, 1)
	go func() { second <- asks(1, b)() }()
	await(t, db.Pool, `select coalesce(a.wait_event_type, '') = 'Lock' or a.state = 'idle' and a.query like '%hold_events%' from pg_stat_activity as a where a.pid = $1`, b.PgConn().PID())
	commit(t, slow)
	for _, err := range []error{first(), <-second} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(told[0], []string{"q1", "q2", "q3"}) || len(told[1]) > 0 {
		t.Errorf("two that ask at the same moment are told of %q", told)
	}
	run(t, b, `select outbox.lift(null, 'q2')`)
	if got := list[string](t, b, ask); !slices.Equal(got, []string{"q2"}) {
		t.Errorf("the next one is told of %q", got)
	}
}
