package integration

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// putMany enqueues n messages with the keys k0, k1, ...
func putMany(t testing.TB, db *pgtest.DB, namespace string, n int) {
	t.Helper()
	ms := make([]driver.Message, n)
	for i := range ms {
		ms[i] = driver.Message{Namespace: namespace, TaskQueue: "q", DispatchKey: fmt.Sprint("k", i)}
	}
	if _, err := driver.EnqueueBatch(t.Context(), db.Pool, ms); err != nil {
		t.Fatal(err)
	}
}

func TestCLIWhy(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	key := "k\n\x1b[31m\u202e"
	put(t, db.Pool, "acme", "mail", key)
	got := sweep(t, db.DSN, "why", key)
	for _, want := range []string{"state       pending\n", "reason      due", "namespace   acme\n", "task queue  mail\n", "attempts    0\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("why lacks %q:\n%s", want, got)
		}
	}
	c := claimOne(t, db.Pool, "n1")
	run(t, db.Pool, `select outbox.retry(array[$1::bigint], array[$2::bigint], array[$3::text])`, c.ID, c.Token, "refused\x1b[2J by \u202eprovider")
	got = sweep(t, db.DSN, "why", key)
	if !strings.Contains(got, `refused\x1b[2J by \u202eprovider`) || strings.ContainsAny(got, "\x1b\u202e") {
		t.Errorf("the failure is not made visible:\n%q", got)
	}
	row := fromJSON[map[string]any](t, sweep(t, db.DSN, "why", key, "--json"))
	if row["state"] != "pending" || row["attempts"] != 1.0 || row["next_at"] == nil || len(row["failures"].([]any)) != 1 {
		t.Errorf("%v", row)
	}
	sweepFails(t, db.DSN, 1, []string{"why", "typo"}, `no message has the key "typo"`)
	missing := sweepFails(t, db.DSN, 1, []string{"why", "typo", "--json"})
	if row := fromJSON[map[string]any](t, missing.stdout); row["state"] != "unknown" || row["id"] != nil {
		t.Errorf("%v", row)
	}
	run(t, db.Pool, `update outbox.pending set visible_after = 'infinity'`)
	if row := fromJSON[map[string]any](t, sweep(t, db.DSN, "why", key, "--json")); row["next_at"] != nil {
		t.Errorf("next_at of a message that is never due: %v", row["next_at"])
	}
}

func TestCLIExplain(t *testing.T) {
	t.Parallel()
	db := setUp(t, ringByName)
	if got := sweep(t, db.DSN, "explain"); got != "nothing is pending on these shards\n" {
		t.Errorf("%q", got)
	}
	for i := range 5 {
		put(t, db.Pool, "busy", "q", fmt.Sprint("b", i))
	}
	put(t, db.Pool, "quiet\ttab", "q", "c")
	run(t, db.Pool, `select outbox.pause('quiet'||chr(9)||'tab', null, 'provider down')`)
	rows := strings.Split(strings.TrimSpace(sweep(t, db.DSN, "explain", "--batch", "3")), "\n")
	if len(rows) != 3 || !strings.HasPrefix(rows[0], "NAMESPACE") {
		t.Fatalf("%q", rows)
	}
	for _, want := range []string{`busy `, "served 3 of 5"} {
		if !strings.Contains(rows[1], want) {
			t.Errorf("%q lacks %q", rows[1], want)
		}
	}
	for _, want := range []string{`quiet\ttab`, `"provider down"`} {
		if !strings.Contains(rows[2], want) {
			t.Errorf("%q lacks %q", rows[2], want)
		}
	}
	type row struct {
		Namespace       string
		Due             int
		Pass1, Pass2    int
		Ceiling, Claims *int
	}
	only := fromJSON[[]row](t, sweep(t, db.DSN, "explain", "--only", "busy", "--json", "--shards", "0-15", "--node", "n1", "--max-bytes", "1000000"))
	if len(only) != 1 || only[0].Namespace != "busy" || only[0].Due != 5 || only[0].Pass1+only[0].Pass2 != 5 {
		t.Errorf("%+v", only)
	}
	if none := fromJSON[[]row](t, sweep(t, db.DSN, "explain", "--only", "nobody", "--json")); len(none) > 1 {
		t.Errorf("%+v", none)
	}
	if got := sweep(t, db.DSN, "explain", "--max-bytes", "0"); !strings.Contains(got, "the claim would be empty: max_bytes is 0") {
		t.Errorf("%q", got)
	}
	sweepFails(t, db.DSN, 2, []string{"explain", "--shards", "16"}, "shards has 16, outside 0 to 15")
	if n := one[int](t, db.Pool, `select count(*) from outbox.walk`); n != 0 {
		t.Error("explain left a cursor")
	}
}

func TestCLIQuota(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	type quota struct {
		Namespace string
		Quota     int
		Strict    bool
	}
	for _, step := range []struct {
		args []string
		want quota
	}{
		{[]string{}, quota{"acme", 256, false}},
		{[]string{"5"}, quota{"acme", 5, false}},
		{[]string{"--strict"}, quota{"acme", 5, true}},
		{[]string{"0"}, quota{"acme", 0, true}},
		{[]string{"7", "--no-strict"}, quota{"acme", 7, false}},
		{[]string{"--default"}, quota{"acme", 256, false}},
	} {
		args := append([]string{"quota", "acme", "--json"}, step.args...)
		if got := fromJSON[quota](t, sweep(t, db.DSN, args...)); got != step.want {
			t.Errorf("%q: %+v, want %+v", args, got, step.want)
		}
	}
	if got := sweep(t, db.DSN, "quota", "acme\n", "3", "--strict"); got != `acme\n: quota 3, strict; claimed 0`+"\n" {
		t.Errorf("%q", got)
	}
	// A switch can be given as a variable too, and the flag wins.
	call := sweepCall{dsn: db.DSN, env: []string{"SWEEP_QUOTA_STRICT=true"}, args: []string{"quota", "env"}}
	if got := call.do(t); !strings.Contains(got.stdout, "strict") {
		t.Errorf("%+v", got)
	}
	call.args = append(call.args, "--no-strict")
	if got := call.do(t); strings.Contains(got.stdout, "strict") {
		t.Errorf("%+v", got)
	}
}

// TestCLIUnknownNamespace: a command about a namespace that has nothing does what it was asked, and says so
// on standard error; one that has anything is not doubted.
func TestCLIUnknownNamespace(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	for _, namespace := range []string{"pending", "claimed", "failed", "delayed"} {
		put(t, db.Pool, namespace, "q", namespace)
	}
	run(t, db.Pool, `update outbox.pending set ripe = false, visible_after = 'infinity' where namespace = 'delayed'`)
	for _, row := range claim(t, db.Pool, "n1", 10) {
		switch row.Namespace {
		case "failed":
			settle(t, db.Pool, "fail", row.ID, row.Token)
		case "pending":
			settle(t, db.Pool, "release", row.ID, row.Token)
		}
	}
	run(t, db.Pool, `select outbox.set_quota('has a quota', 7), outbox.pause('is paused')`)
	const doubt = "is that its name?"
	for _, namespace := range []string{"pending", "claimed", "failed", "delayed", "has a quota", "is paused"} {
		if got := (sweepCall{dsn: db.DSN, args: []string{"quota", namespace}}).do(t); got.code != 0 || strings.Contains(got.stderr, doubt) {
			t.Errorf("%s: exit %d, %s", namespace, got.code, got.stderr)
		}
	}
	for _, line := range []string{
		"quota typo", "cancel --namespace typo --yes", "redrive --namespace typo", "redrive --namespace typo --error x", "retry --namespace typo",
		"failed --namespace typo", "purge typo --yes", "pause typo", "quota typo2 9",
	} {
		args := strings.Fields(line)
		for _, jsonLog := range []bool{false, true} {
			if jsonLog {
				args = append(args, "--log-format", "json")
			}
			got := (sweepCall{dsn: db.DSN, args: args}).do(t)
			name := "typo"
			if strings.Contains(line, "typo2") {
				name = "typo2"
			}
			if got.code != 0 || !strings.Contains(got.stderr, doubt) || !strings.Contains(got.stderr, name) {
				t.Errorf("%s: exit %d, standard error %q", args, got.code, got.stderr)
			}
			run(t, db.Pool, `select outbox.resume('typo'), outbox.clear_quota('typo2')`)
		}
	}
}

type keysResult struct {
	Cancelled, Redriven, Pruned int64
	Keys                        []struct {
		Key, Was string
		OK       bool
	}
}

func TestCLICancelRedrive(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	odd := "o'd\td\u202e"
	for _, key := range []string{"claimed", "failed", "done"} {
		put(t, db.Pool, "acme", "q", key)
	}
	for _, row := range claim(t, db.Pool, "n1", 3) {
		switch row.Key {
		case "failed":
			settle(t, db.Pool, "fail", row.ID, row.Token)
		case "done":
			settle(t, db.Pool, "complete", row.ID, row.Token)
		}
	}
	put(t, db.Pool, "acme", "q", "pending")
	id := put(t, db.Pool, "acme", "q", odd)

	got := sweepFails(t, db.DSN, 1, []string{"cancel", "pending", "claimed", odd, "done", "failed", "typo", "--json"}, "3 keys not cancelled")
	r := fromJSON[keysResult](t, got.stdout)
	var was []string
	for _, k := range r.Keys {
		was = append(was, k.Was)
	}
	if r.Cancelled != 3 || !slices.Equal(was, []string{"pending", "claimed", "pending", "done", "failed", "unknown"}) {
		t.Errorf("%+v", r)
	}
	if got := sweep(t, db.DSN, "cancel", "pending"); got != "KEY      WAS        NOW\npending  cancelled  cancelled\n" {
		t.Errorf("cancelled again: %q", got)
	}

	got = sweepFails(t, db.DSN, 1, []string{"redrive", "failed", odd, "done", "typo"}, "2 keys not brought back")
	if want := "KEY           WAS        NOW\nfailed        failed     pending\no'd\\td\\u202e  cancelled  pending\ndone          done       done\ntypo          unknown    unknown\n"; got.stdout != want {
		t.Errorf("%q, want %q", got.stdout, want)
	}
	if got := status(t, db.Pool, id); got != "pending" {
		t.Errorf("a message that was brought back is %s", got)
	}
	sweep(t, db.DSN, "cancel", odd)
	sweep(t, db.DSN, "redrive", "--id", fmt.Sprint(id))
	if got := status(t, db.Pool, id); got != "pending" {
		t.Errorf("a message that was brought back by its id is %s", got)
	}
	sweepFails(t, db.DSN, 1, []string{"redrive", "--id", fmt.Sprint(id, ",999999")}, "2 keys not brought back")
}

// A namespace is worked through in chunks, to its end or to --max.
func TestCLINamespaceInChunks(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	const n = 2500
	putMany(t, db, "acme", n)
	put(t, db.Pool, "other", "q", "theirs")
	count := func(where string) int {
		return one[int](t, db.Pool, `select count(*) from outbox.messages where `+where)
	}
	sweepFails(t, db.DSN, 2, []string{"cancel", "--namespace", "acme"}, `cancel all that is pending and claimed of namespace "acme"`, "--yes")
	if got := count("status = 'pending'"); got != n+1 {
		t.Fatalf("without --yes %d are left", got)
	}
	if got := sweep(t, db.DSN, "cancel", "--namespace", "acme", "--max", "1200", "--yes"); got != "cancelled 1200 messages\n" {
		t.Errorf("%q", got)
	}
	if got := fromJSON[keysResult](t, sweep(t, db.DSN, "cancel", "--namespace", "acme", "--yes", "--json")); got.Cancelled != n-1200 {
		t.Errorf("%+v", got)
	}
	if got := count("status = 'pending'"); got != 1 {
		t.Errorf("%d are pending, want the one of another namespace", got)
	}
	if got := sweep(t, db.DSN, "redrive", "--namespace", "acme"); got != "redriven 0 messages\n" {
		t.Errorf("cancelled ones came back by namespace: %q", got)
	}
	run(t, db.Pool, `update outbox.settled set outcome = 'failed'`)
	if got := sweep(t, db.DSN, "redrive", "--namespace", "acme", "--max", "1"); got != "redriven 1 message\n" {
		t.Errorf("%q", got)
	}
	sweepFails(t, db.DSN, 2, []string{"redrive", "--namespace", "acme"}, `redrive more than 1000 messages (namespace "acme")`, "--yes")
	if got := sweep(t, db.DSN, "redrive", "--namespace", "acme", "--yes"); got != fmt.Sprintf("redriven %d messages\n", n-1) {
		t.Errorf("%q", got)
	}
	if got := count("status = 'pending'"); got != n+1 {
		t.Errorf("%d messages are pending, want %d", got, n+1)
	}
}

func TestCLIPrune(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	const n = 2100
	putMany(t, db, "acme", n)
	sweep(t, db.DSN, "cancel", "--namespace", "acme", "-y")
	run(t, db.Pool, `update outbox.settled set settled_at = settled_at - interval '3 days', outcome = case when id % 2 = 0 then 'done' else 'failed' end`)
	for _, step := range []struct {
		args []string
		want int64
	}{
		{nil, 0},
		{[]string{"--older-than", "4d"}, 0},
		{[]string{"--older-than", "73h", "--failed"}, 0},
		{[]string{"--older-than", "2d12h", "--max", "10"}, 10},
		{[]string{"--older-than", "2d12h"}, n/2 - 10},
		{[]string{"--older-than", "71h", "--failed"}, n / 2},
		{[]string{"--older-than", "0", "--failed"}, 0},
	} {
		args := append([]string{"prune", "--json", "--yes"}, step.args...)
		if got := fromJSON[keysResult](t, sweep(t, db.DSN, args...)); got.Pruned != step.want {
			t.Errorf("%q pruned %d, want %d", args, got.Pruned, step.want)
		}
	}
	if got := sweep(t, db.DSN, "prune"); got != "pruned 0 messages\n" {
		t.Errorf("%q", got)
	}
}

// An interrupt stops a long command between two chunks, and what was done is told.
func TestCLIChunksInterrupted(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	putMany(t, db, "acme", 3000)
	// The second chunk waits for a lock that the test holds.
	conn := db.Connect(t)
	tx := begin(t, conn)
	run(t, tx, `select from outbox.pending as p where p.id = any (array(
		select q.id from outbox.pending as q order by q.task_queue, q.shard, q.visible_after, q.id offset 1500 limit 1)) for update`)
	args := []string{"cancel", "--namespace", "acme", "--yes"}
	cmd := sweepCall{dsn: db.DSN, args: args}.start(t)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, db.Pool, `select exists (select from pg_stat_activity where application_name = 'sweep cancel'
		and datname = current_database() and wait_event_type = 'Lock')`)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	commit(t, tx)
	_ = cmd.Wait()
	got := sweepOutcome{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
	got.want(t, 1, args, "2000 messages done", "Run it again for the rest")
	if got.stdout != "cancelled 2000 messages\n" {
		t.Errorf("printed %q", got.stdout)
	}
	if n := one[int](t, db.Pool, `select count(*) from outbox.pending`); n != 1000 {
		t.Errorf("%d messages are pending, want 1000", n)
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
