package integration

import (
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// The nodes as an operator sees them: live, on standby, paused, silent, two under one
// name; what nobody owns is named.
func TestCLINodes(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	if got := sweep(t, db.DSN, "nodes"); got != "unowned shards: all; no live node has any, only 'sweep once' claims from them\n" {
		t.Errorf("without nodes: %q", got)
	}
	put(t, db.Pool, "n", "q", "k")
	claimOne(t, db.Pool, "psql\x1b")
	run(t, db.Pool, "select outbox.heartbeat('fixed', '{3,0,1,2,8}', 'high watermark', 77, 'host pid 1')")
	run(t, db.Pool, "select outbox.heartbeat('silent', '{4}')")
	run(t, db.Pool, "update outbox.node set heartbeat_at = heartbeat_at - interval '90 s' where node = 'silent'")
	role := db.Role(t)
	run(t, db.Pool, "select outbox.grant_operator($1)", role.Name)

	check := func(want string, lines ...string) {
		t.Helper()
		got := sweep(t, role.DSN, "nodes")
		for _, line := range lines {
			if !regexp.MustCompile(`(?m)^` + line + `$`).MatchString(got) {
				t.Errorf("nodes lacks a line like %q:\n%s", line, got)
			}
		}
		for _, text := range []string{got, sweep(t, role.DSN, "status")} {
			if !strings.Contains(text, want+"\n") || strings.Contains(text, "\x1b") {
				t.Errorf("want the line %q, and no control character:\n%s", want, text)
			}
		}
	}
	check("unowned shards: 4-7,9-15; only 'sweep once' claims from them until a node has them",
		`NODE +STATE +SHARDS +KIND +HEARTBEAT +IN FLIGHT +LAST CLAIM +ROWS`,
		`fixed +paused: high watermark +0-3,8 +fixed +\d+s ago +77 bytes`,
		`silent +lapsed +4 +fixed +1m3\ds ago +0 bytes`,
		`psql\\x1b +not running, or run by cron +\d+s ago +1`)
	run(t, db.Pool, "select outbox.heartbeat('auto')")
	run(t, db.Pool, "select outbox.heartbeat('rest', array(select generate_series(4, 15)))")
	check("unowned shards: none", `auto +standby: no shard is left for it +auto +\d+s ago +0 bytes`)
	run(t, db.Pool, "select outbox.leave('rest'), outbox.heartbeat('auto', process => 'a pid 1'), outbox.heartbeat('auto', process => 'b pid 2'), outbox.heartbeat('auto', process => 'a pid 1')")
	check(`Two processes use the name "auto": a pid 1, b pid 2. Give each a name of its own.`, `auto +live +4-7,9-15 +auto +\d+s ago +0 bytes`)

	type nodes struct {
		Count   int   `json:"shard_count"`
		Unowned []int `json:"unowned_shards"`
		Nodes   []struct {
			Node       string
			Live, Auto bool
			Shards     []int
			Processes  []string
			Paused     *string
		}
	}
	n := fromJSON[nodes](t, sweep(t, role.DSN, "nodes", "--json"))
	if n.Count != 16 || n.Unowned == nil || len(n.Unowned) != 0 || len(n.Nodes) != 4 || !n.Nodes[0].Auto || len(n.Nodes[0].Processes) != 2 ||
		len(n.Nodes[0].Shards) != 11 || n.Nodes[1].Paused == nil || n.Nodes[1].Auto || n.Nodes[2].Live {
		t.Errorf("%+v", n)
	}
	sweep(t, role.DSN, "explain", "--node", "auto", "--shards", "auto")
	sweepFails(t, role.DSN, 1, []string{"explain", "--node", "silent", "--shards", "auto"}, `no live node "silent"`, "sweep nodes")
	sweepFails(t, role.DSN, 2, []string{"once", "--sink", "stdout", "--shards", "auto"}, "--shards auto is for run")
	if got := sweep(t, role.DSN, "why", "k"); !strings.Contains(got, "claimed by") {
		t.Errorf("why: %s", got)
	}
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
	// Below nohup the signal is ignored, and children inherit that; one that is caught they do not.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
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
