package integration

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

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
		{[]string{"cancel", "k"}, "outbox.grant_operator('role')"},
		{[]string{"redrive", "k"}, "outbox.grant_operator('role')"},
		{[]string{"migrate", "up"}, "as the role that owns the schema"},
	} {
		sweepCall{dsn: role.DSN, args: tt.args, stdin: line}.do(t).want(t, 1, tt.args, tt.hint)
	}
}

// What only the outbox can know to be wrong is wrong usage all the same: exit code 2.
func TestCLIUsageOfTheOutbox(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, `select outbox.configure('{"max_batch": 50}')`)
	sweepFails(t, db.DSN, 2, []string{"once", "--sink", "stdout", "--shards", "0-99", "--batch", "10"}, "shard 16", "shards 0 to 15")
	sweepFails(t, db.DSN, 2, []string{"run", "--sink", "stdout", "--shards", "0-99", "--batch", "10"}, "shard 16", "shards 0 to 15")
	sweepFails(t, db.DSN, 2, []string{"explain", "--shards", "0-99", "--batch", "10"}, "outside 0 to 15")
	sweepFails(t, db.DSN, 2, []string{"once", "--sink", "stdout"}, "--batch is 100", "max_batch")
	sweepFails(t, db.DSN, 2, []string{"explain"}, "max_batch")
}

// migrate down takes one step, or all where that is said.
func TestCLIMigrateDownSteps(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	newest := latestVersion(t)
	sweep(t, db.DSN, "migrate", "down", "--yes")
	wantVersion(t, db.DSN, newest-1)
	sweepFails(t, db.DSN, 2, []string{"migrate", "down", "--all", "--steps", "1", "--yes"}, "--steps", "--all")
	sweepFails(t, db.DSN, 2, []string{"migrate", "down", "--all"}, "delete every message", "--yes")
	wantVersion(t, db.DSN, newest-1)
	sweep(t, db.DSN, "migrate", "down", "--all", "--yes")
	if got := sweep(t, db.DSN, "migrate", "version"); !strings.HasPrefix(got, "nothing is installed") {
		t.Errorf("after down --all: %s", got)
	}
}

// A prune of what the outbox is set to keep for longer is meant, or it is not done.
func TestCLIPruneBelowRetention(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	put(t, db.Pool, "n", "q", "k")
	sweep(t, db.DSN, "cancel", "k")
	run(t, db.Pool, "update outbox.settled set settled_at = settled_at - interval '1 day'")
	sweepFails(t, db.DSN, 2, []string{"prune", "--older-than", "6d"}, "before their retention of 7 days", "--yes")
	if got := sweep(t, db.DSN, "prune", "--older-than", "7d"); got != "pruned 0 messages\n" {
		t.Errorf("at the retention it says %q", got)
	}
	if got := sweep(t, db.DSN, "prune", "--older-than", "12h", "--yes"); got != "pruned 1 message\n" {
		t.Errorf("with --yes it says %q", got)
	}
}

// What only reads does so where nothing can be written, on a standby for example.
func TestCLIReadsWhereNothingCanBeWritten(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	put(t, db.Pool, "acme", "q", "k")
	role := db.Role(t, "set default_transaction_read_only = on")
	run(t, db.Pool, "select outbox.grant_operator($1)", role.Name)
	for _, args := range [][]string{
		{"status"}, {"nodes"}, {"explain"}, {"why", "k"}, {"check"}, {"quota", "acme"},
	} {
		got := sweepCall{dsn: role.DSN, args: args}.do(t)
		got.want(t, 0, args)
	}
	if n := one[int](t, db.Pool, "select count(*) from outbox.namespace"); n != 0 {
		t.Error("showing a quota set one")
	}
}

// SWEEP_ROUTE holds as many routes as the flag can be given: one a line.
func TestCLIRoutesFromTheEnvironment(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	for _, queue := range []string{"a", "b", "c"} {
		put(t, db.Pool, "n", queue, queue)
	}
	got := sweepCall{
		dsn: db.DSN, args: []string{"once", "--sink", "stdout"},
		env: []string{"SWEEP_ROUTE=a=exec:true\n\n  b=exec:sh -c 'exit 65'  \n"},
	}.do(t)
	got.want(t, 0, []string{"once"})
	if strings.Count(got.stdout, "\n") != 1 || !strings.Contains(got.stdout, `"c"`) {
		t.Errorf("the default sink got %q, want c alone", got.stdout)
	}
	wantOutcomes(t, db.Pool, map[string]int{"done": 2, "failed": 1})
}

// A terminal that is closed ends a node as SIGTERM does: it finishes what it has.
func TestCLIHangUpDrains(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	put(t, db.Pool, "n", "q", "k")
	gate := t.TempDir() + "/gate"
	cmd := sweepCall{dsn: db.DSN, args: []string{"run", "--sink", fmt.Sprintf("exec:sh -c 'until test -e %s; do sleep 0.05; done'", gate)}}.start(t)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, db.Pool, "select count(*) = 1 from outbox.claimed")
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	await(t, db.Pool, "select coalesce(bool_or(n.paused = 'draining'), false) from outbox.node as n")
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, stderr.String())
	}
	wantOutcomes(t, db.Pool, map[string]int{"done": 1})
}

// A node that starts where another one was killed takes its shards over at once: that
// process is gone, and nobody waits for its heartbeat to lapse.
func TestCLINodeLeavesForTheGone(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, `select outbox.configure('{"node_lapse": "1 day"}')`)
	run(t, db.Pool, "select outbox.heartbeat('elsewhere', '{15}', process => 'elsewhere pid 1 abc/1/x')")
	first := sweepCall{dsn: db.DSN, args: []string{"run", "--sink", "stdout"}}.start(t)
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, db.Pool, "select count(*) = 15 from outbox.shard")
	owner := one[string](t, db.Pool, "select distinct node from outbox.shard")
	_ = first.Process.Kill()
	_ = first.Wait() // killed
	second := sweepCall{dsn: db.DSN, args: []string{"run", "--sink", "stdout"}}.start(t)
	if err := second.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, db.Pool, "select count(*) = 15 from outbox.shard where node <> $1", owner)
	if names := list[string](t, db.Pool, "select node from outbox.node order by node"); len(names) != 2 || names[0] != "elsewhere" {
		t.Errorf("the nodes are %q, want the second one and that of another machine", names)
	}
	_ = second.Process.Signal(syscall.SIGTERM)
	if err := second.Wait(); err != nil {
		t.Error(err)
	}
}
