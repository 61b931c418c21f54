package integration

import (
	"strings"
	"testing"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// TestCLIOnceWithoutPrune: a duty that the database refuses ends no run of once.
func TestCLIOnceWithoutPrune(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	role := db.Role(t)
	run(t, db.Pool, "select outbox.grant_worker($1)", role.Name)
	run(t, db.Pool, "revoke execute on function outbox.prune from "+role.Name)
	conn := db.Connect(t, pgtest.As(role))
	run(t, conn, "select count(outbox.enqueue('n', 'q', i::text, '')) from generate_series(1, 250) as i")
	if got := sweep(t, role.DSN, "once", "--sink", "stdout"); strings.Count(got, "\n") != 250 {
		t.Errorf("%d delivered, want 250", strings.Count(got, "\n"))
	}
}

// Every command that lacks a right says who gives which, in whatever language the server
// speaks: the hint goes by the SQLSTATE.
func TestCLIMissingRight(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	role := db.Role(t)
	run(t, db.Pool, "grant usage on schema outbox to "+role.Name)
	line := `{"namespace": "n", "task_queue": "q", "dispatch_key": "k", "payload": 1}` + "\n"
	for _, tt := range []struct {
		args []string
		hint string
	}{
		{[]string{"enqueue"}, "outbox.grant_producer('role')"},
		{[]string{"once", "--sink", "stdout"}, "outbox.grant_worker('role')"},
		{[]string{"run", "--sink", "stdout"}, "outbox.grant_worker('role')"},
		{[]string{"status"}, "outbox.grant_operator('role')"},
		{[]string{"explain"}, "outbox.grant_operator('role')"},
		{[]string{"why", "k"}, "outbox.grant_operator('role')"},
		{[]string{"check"}, "outbox.grant_operator('role')"},
		{[]string{"quota", "n"}, "outbox.grant_operator('role')"},
		{[]string{"pause", "n"}, "outbox.grant_operator('role')"},
		{[]string{"hold", "n", "--queue", "q"}, "outbox.grant_operator('role')"},
		{[]string{"lift", "n", "--queue", "q"}, "outbox.grant_operator('role')"},
		{[]string{"shared", "q", "yes"}, "outbox.grant_operator('role')"},
		{[]string{"cancel", "k"}, "outbox.grant_operator('role')"},
		{[]string{"redrive", "k"}, "outbox.grant_operator('role')"},
		{[]string{"failed"}, "outbox.grant_operator('role')"},
		{[]string{"retry", "k"}, "outbox.grant_operator('role')"},
		{[]string{"purge", "n", "--yes"}, "outbox.grant_operator('role')"},
		{[]string{"migrate", "up"}, "as the role that owns the schema"},
	} {
		sweepCall{dsn: role.DSN, args: tt.args, stdin: line}.do(t).want(t, 1, tt.args, tt.hint)
	}
}
