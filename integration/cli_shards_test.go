package integration

import (
	"bytes"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestCLINodesDie: the shards of a process that is killed, or frozen, go to the others once
// its heartbeat has lapsed, within a sweep of that; one that starts again under its name,
// or wakes up, has its part again; what is enqueued all the while is delivered once.
func TestCLINodesDie(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, `select outbox.configure('{"node_lapse": "8 s"}')`)
	var outs []*bytes.Buffer
	procs := map[string]*exec.Cmd{}
	start := func(name string) {
		out := &bytes.Buffer{}
		cmd := sweepCall{dsn: db.DSN, args: []string{"run", "--node", name, "--sink", "stdout", "--tick", "200ms"}}.start(t)
		cmd.Stdout, cmd.Stderr = out, t.Output()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		outs, procs[name] = append(outs, out), cmd
	}
	names := []string{"a", "b", "c"}
	for _, name := range names {
		start(name)
	}
	awaitParts := func(want string) {
		t.Helper()
		eventually(t, "the parts are "+want, func() bool {
			return one[bool](t, db.Pool, "select ("+parts+") = $1::int[] and outbox.unowned_shards() = '{}'", want)
		})
	}
	awaitParts("{5,5,6}")

	enqueued := 0
	enqueue := func() { // on every shard
		fill(t, db.Pool, string(rune('k'+enqueued/200)), "q", 200, 10)
		enqueued += 200
		if n := one[int](t, db.Pool, "select count(distinct outbox.shard_of(dispatch_key, 16)) from outbox.message"); n != 16 {
			t.Fatalf("messages are on %d shards", n)
		}
	}
	settled := func() {
		t.Helper()
		eventually(t, "all is settled", func() bool { return one[int](t, db.Pool, "select count(*) from outbox.settled") == enqueued })
	}
	// Its shards wait until the lapse of the last heartbeat, and then for less than a sweep.
	unserved := func(node string) {
		t.Helper()
		shards := one[[]int](t, db.Pool, "select shards from outbox.nodes where node = $1", node)
		at := one[time.Time](t, db.Pool, "select heartbeat_at + interval '8 s' from outbox.nodes where node = $1", node)
		enqueue()
		settled()
		late := one[time.Time](t, db.Pool, "select max(settled_at) from outbox.settled where shard = any ($1)", shards).Sub(at)
		t.Logf("the shards of %s are served %v after its lapse", node, late)
		if late > scaled(15*time.Second) { // of a machine that does much else
			t.Errorf("the shards of %s were served only %v after its lapse", node, late)
		}
		awaitParts("{8,8}")
	}

	if err := procs["b"].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = procs["b"].Wait() // killed
	unserved("b")
	start("b")
	awaitParts("{5,5,6}")

	if err := procs["c"].Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	unserved("c")
	if err := procs["c"].Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	awaitParts("{5,5,6}")
	enqueue()
	settled()

	if got := sweep(t, db.DSN, "nodes"); strings.Count(got, " live ") != 3 || !strings.Contains(got, "unowned shards: none\n") {
		t.Errorf("nodes:\n%s", got)
	}
	for _, name := range names {
		if err := procs[name].Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := procs[name].Wait(); err != nil {
			t.Errorf("%s ends with %v", name, err)
		}
	}
	if n := one[int](t, db.Pool, "select count(*) from outbox.node"); n != 0 {
		t.Errorf("%d nodes are live after all have stopped", n)
	}
	lines := 0
	for _, out := range outs {
		lines += strings.Count(out.String(), "\n")
	}
	if lines != enqueued {
		t.Errorf("%d deliveries of %d messages", lines, enqueued)
	}
}

// A node with --shards has those, and the others share the rest.
func TestCLIFixedAndAuto(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	for _, args := range [][]string{{"--shards", "0-7,12"}, {"--shards", "auto"}, {}} {
		cmd := sweepCall{dsn: db.DSN, args: append([]string{"run", "--sink", "stdout"}, args...)}.start(t)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // killed
		})
	}
	await(t, db.Pool, "select ("+parts+") = '{3,4,9}' and (select shards from outbox.nodes where not auto) = '{0,1,2,3,4,5,6,7,12}'")
	cmd := sweepCall{dsn: db.DSN, args: []string{"run", "--sink", "stdout", "--shards", "all", "--node", "all"}}.start(t)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, db.Pool, "select ("+parts+") = '{0,0,9,16}'")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	await(t, db.Pool, "select ("+parts+") = '{3,4,9}'")
}
