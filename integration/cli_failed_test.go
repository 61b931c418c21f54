package integration

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

type failedOutput struct {
	Failed []struct {
		Key       string `json:"dispatch_key"`
		Namespace string
		TaskQueue string `json:"task_queue"`
		Attempts  int
		Error     string
	}
	Groups []struct {
		Count      int
		TaskQueue  string `json:"task_queue"`
		Error      string
		Namespaces int
		Example    string
	}
	Next *string
	Cut  bool `json:"scan_ended"`
}

func (o failedOutput) keys() []string {
	var keys []string
	for _, f := range o.Failed {
		keys = append(keys, f.Key)
	}
	return keys
}

// manyDead makes n dead letters straight in the tables, the first one the oldest, an hour apart.
func manyDead(t *testing.T, db *pgtest.DB, namespace string, n int) {
	t.Helper()
	run(t, db.Pool, `
		with m as (
		  insert into outbox.message (namespace, task_queue, dispatch_key, content_type, headers, payload)
		  select $1, 'q' || g % 2, $1 || '/' || g, 'text/plain', '{}', '' from generate_series(1, $2::int) as g returning *)
		insert into outbox.settled (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by, error)
		select m.id, m.namespace, m.task_queue, outbox.shard_of(m.dispatch_key, 16), 'failed', 3,
		       now() - make_interval(hours => $2 - row_number() over (order by m.id)::int, mins => 30), 'n', 'status 50' || m.id % 2 || ' for ' || m.dispatch_key
		from m`, namespace, n)
}

// TestCLIFailed lists with each filter, page by page to the end.
func TestCLIFailed(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	if got := sweep(t, db.DSN, "failed"); got != "no dead letters\n" {
		t.Errorf("%q", got)
	}
	if got := sweep(t, db.DSN, "failed", "--json"); !strings.Contains(got, `"failed":[]`) {
		t.Errorf("%q", got)
	}
	manyDead(t, db, "acme", 6)
	manyDead(t, db, "globex", 2)
	for _, c := range []struct {
		args string
		want []string
	}{
		{"", []string{"globex/2", "acme/6", "globex/1", "acme/5", "acme/4", "acme/3", "acme/2", "acme/1"}},
		{"--namespace globex", []string{"globex/2", "globex/1"}},
		{"--route q1 --namespace acme", []string{"acme/5", "acme/3", "acme/1"}},
		{"--error ACME/4", []string{"acme/4"}},
		{"--since 2h", []string{"globex/2", "acme/6", "globex/1", "acme/5"}},
		{"--until 4h --since 5h", []string{"acme/2"}},
		{"--error nothing", nil},
	} {
		got := fromJSON[failedOutput](t, sweep(t, db.DSN, append([]string{"failed", "--json"}, strings.Fields(c.args)...)...))
		if keys := got.keys(); !sameInstants(keys, c.want) || got.Next != nil || got.Cut {
			t.Errorf("failed %s: %q, want %q", c.args, keys, c.want)
		}
	}
	var keys []string
	page := []string{}
	for range 10 {
		got := fromJSON[failedOutput](t, sweep(t, db.DSN, append([]string{"failed", "--json", "--limit", "3"}, page...)...))
		keys = append(keys, got.keys()...)
		if got.Next == nil {
			break
		}
		page = []string{"--page", *got.Next}
	}
	for _, filter := range []string{"--namespace=acme", "--route=q0", "--error=status"} {
		if len(page) > 0 {
			sweepFails(t, db.DSN, 2, append([]string{"failed", filter}, page...), "--page is of another list")
		}
	}
	if slices.Sort(keys); len(slices.Compact(keys)) != 8 {
		t.Errorf("by pages: %q", keys)
	}
	got := sweep(t, db.DSN, "failed", "--namespace", "acme", "--limit", "1")
	for _, want := range []string{"KEY     NAMESPACE  ROUTE  ATTEMPTS  FAILED", "acme/6  acme       q0     3", "status 50", "There are more: --page "} {
		if !strings.Contains(got, want) {
			t.Errorf("the table lacks %q:\n%s", want, got)
		}
	}
	wantSound(t, db.Pool)
}

// sameInstants compares keys, of which those that failed at one instant may come in either order.
func sameInstants(got, want []string) bool {
	got, want = slices.Clone(got), slices.Clone(want)
	if len(got) != len(want) {
		return false
	}
	number := func(key string) string { _, n, _ := strings.Cut(key, "/"); return n }
	for i := range want {
		if got[i] != want[i] && i+1 < len(want) && got[i] == want[i+1] && got[i+1] == want[i] && number(got[i]) != "" {
			got[i], got[i+1] = got[i+1], got[i]
		}
	}
	return slices.Equal(got, want)
}

// TestCLIFailedGroup counts errors that differ in numbers alone as one; what is more than --scan is
// not looked at, and the command says so.
func TestCLIFailedGroup(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	manyDead(t, db, "acme", 5)
	manyDead(t, db, "globex", 2001)
	got := fromJSON[failedOutput](t, sweep(t, db.DSN, "failed", "--group", "--json"))
	var lines []string
	total := 0
	for _, g := range got.Groups {
		lines = append(lines, fmt.Sprint(g.TaskQueue, " ", g.Error, " ", g.Namespaces))
		total += g.Count
	}
	slices.Sort(lines)
	for i, line := range lines {
		if !strings.Contains(line, "/#") || !strings.Contains(line, "status 50") {
			t.Errorf("group %d is %q", i, line)
		}
	}
	if total != 2006 || len(lines) > 8 {
		t.Errorf("%d counted in %q", total, lines)
	}
	text := sweep(t, db.DSN, "failed", "--group", "--limit", "1", "--scan", "1000")
	for _, want := range []string{"COUNT  ROUTE  NAMESPACES  FIRST", "The largest 1 of ", "Counted are the newest 1000 dead letters; --scan 0 counts all."} {
		if !strings.Contains(text, want) {
			t.Errorf("it lacks %q:\n%s", want, text)
		}
	}
	if got := fromJSON[failedOutput](t, sweep(t, db.DSN, "failed", "--error", "acme/1", "--scan", "1000", "--json")); len(got.Failed) != 1 || !got.Cut {
		t.Errorf("%+v", got)
	}
	if got := sweep(t, db.DSN, "failed", "--error", "nothing", "--scan", "1000"); !strings.Contains(got, "Looked at 1000 dead letters; to go on: --page 2") {
		t.Errorf("%q", got)
	}
}

// TestCLIRedriveSome brings back what the flags choose and nothing else, the oldest first.
func TestCLIRedriveSome(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	manyDead(t, db, "acme", 1500)
	manyDead(t, db, "globex", 10)
	run(t, db.Pool, "update outbox.settled set error = 'Connection refused by ' || id where namespace = 'globex' and id % 2 = 0")
	pending := func() int { return one[int](t, db.Pool, "select count(*) from outbox.pending") }
	if got := sweep(t, db.DSN, "redrive", "--error", "connection refused", "--dry-run"); got != "would redrive 5 messages\n" || pending() != 0 {
		t.Errorf("%q, and %d are pending", got, pending())
	}
	if got := sweep(t, db.DSN, "redrive", "--namespace", "acme", "--dry-run", "--json"); got != `{"redriven":0,"would_redrive":1500}`+"\n" {
		t.Errorf("%q", got)
	}
	if got := sweep(t, db.DSN, "redrive", "--error", "connection refused", "--max", "2"); got != "redriven 2 messages\n" {
		t.Errorf("%q", got)
	}
	if got := one[bool](t, db.Pool, "select max(p.id) < (select min(s.id) from outbox.settled as s where s.error like 'Conn%') from outbox.pending as p"); !got {
		t.Error("not the oldest came back")
	}
	if got := sweep(t, db.DSN, "redrive", "--error", "connection refused", "--rate", "1000/s"); got != "redriven 3 messages\n" {
		t.Errorf("%q", got)
	}
	sweepFails(t, db.DSN, 2, []string{"redrive", "--error", "status"}, `redrive more than 1000 messages (an error with "status")`, "--yes")
	sweepFails(t, db.DSN, 2, []string{"redrive", "--since", "90d"}, "redrive more than 1000 messages", "--yes")
	if pending() != 5 {
		t.Errorf("%d are pending", pending())
	}
	if got := sweep(t, db.DSN, "redrive", "--error", "status", "--namespace", "acme", "--max", "1000"); got != "redriven 1000 messages\n" {
		t.Errorf("%q", got)
	}
	if got := sweep(t, db.DSN, "redrive", "--error", "status", "--yes"); got != "redriven 505 messages\n" {
		t.Errorf("%q", got)
	}
	if n := one[int](t, db.Pool, "select count(*) from outbox.settled"); n != 0 || pending() != 1510 {
		t.Errorf("%d dead letters are left, %d are pending", n, pending())
	}
	wantSound(t, db.Pool)
}

// TestCLIRedriveRate: no more come back than the rate says; an interrupt ends the wait, and what was
// done is told. What fails again meanwhile does not come round.
func TestCLIRedriveRate(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	manyDead(t, db, "acme", 10)
	args := []string{"redrive", "--error", "status", "--rate", "2/h"}
	done := interrupted(t, db, args, "select count(*) = 1 from outbox.pending")
	done.want(t, 1, args, "1 message done", "Run it again for the rest")
	if done.stdout != "redriven 1 message\n" {
		t.Errorf("printed %q", done.stdout)
	}
	run(t, db.Pool, `create function fail_again() returns trigger language plpgsql as $$ begin
		insert into outbox.settled (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by, error)
		values (new.id, new.namespace, new.task_queue, new.shard, 'failed', 1, clock_timestamp(), 'n', 'status again');
		delete from outbox.pending where id = new.id; return null; end $$`)
	run(t, db.Pool, `create trigger fail_again after insert on outbox.pending for each row execute function fail_again()`)
	if got := sweep(t, db.DSN, "redrive", "--error", "status", "--rate", "3000/s"); got != "redriven 9 messages\n" {
		t.Errorf("%q", got)
	}
}

// interrupted runs a command until the query says true, interrupts it, and returns its outcome.
func interrupted(t *testing.T, db *pgtest.DB, args []string, until string) sweepOutcome {
	t.Helper()
	var stdout, stderr strings.Builder
	cmd := sweepCall{dsn: db.DSN, args: args}.start(t)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, db.Pool, until)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	return sweepOutcome{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// TestCLIRetry makes due what waits, by key and by namespace in chunks.
func TestCLIRetry(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	waiting(t, db.Pool, "acme", 3)
	put(t, db.Pool, "acme", "q", "due")
	put(t, db.Pool, "acme", "q", "cancelled")
	run(t, db.Pool, "select outbox.cancel('{cancelled}')")
	got := sweepFails(t, db.DSN, 1, []string{"retry", "acme1", "due", "cancelled", "typo"}, "2 keys not made due")
	if want := "KEY        WAS        NOW\nacme1      waiting    due\ndue        pending    due\ncancelled  cancelled  cancelled\ntypo       unknown    unknown\n"; got.stdout != want {
		t.Errorf("%q, want %q", got.stdout, want)
	}
	if got := sweep(t, db.DSN, "retry", "acme2", "--json"); got != `{"due":1,"keys":[{"key":"acme2","was":"waiting","ok":true}]}`+"\n" {
		t.Errorf("%q", got)
	}
	waiting(t, db.Pool, "many", 2500)
	if got := sweep(t, db.DSN, "retry", "--namespace", "many", "--max", "1200"); got != "made due 1200 messages\n" {
		t.Errorf("%q", got)
	}
	if got := sweep(t, db.DSN, "retry", "--namespace", "many", "--json"); got != `{"due":1300}`+"\n" {
		t.Errorf("%q", got)
	}
	if n := one[int](t, db.Pool, "select count(*) from outbox.pending where not ripe"); n != 1 {
		t.Errorf("%d still wait, want one", n)
	}
	wantSound(t, db.Pool)
}

// TestCLIPurge asks with counts, deletes all there is of the namespace, and says where messages
// were enqueued meanwhile.
func TestCLIPurge(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	putMany(t, db, "acme", 2500)
	put(t, db.Pool, "other", "q", "theirs")
	run(t, db.Pool, "select outbox.pause('acme')")
	manyDead(t, db, "acme", 3)
	sweepFails(t, db.DSN, 2, []string{"purge", "acme"}, `delete all there is of namespace "acme": 1000+ pending, 0 claimed, 3 failed messages`, "1 pause", "--yes")
	if n := one[int](t, db.Pool, "select count(*) from outbox.message"); n != 2504 {
		t.Fatalf("without --yes %d are left", n)
	}
	if got := sweep(t, db.DSN, "purge", "acme", "--yes"); got != "purged 2503 messages\n" {
		t.Errorf("%q", got)
	}
	if got := purgeLeft(t, db.Pool, "acme"); got != "" {
		t.Errorf("something is left in %s", got)
	}
	if got := sweep(t, db.DSN, "purge", "acme", "--yes", "--json"); got != `{"purged":0,"enqueued":false}`+"\n" {
		t.Errorf("%q", got)
	}
	wantSound(t, db.Pool)
	// A producer whose transaction ends after the purge has come past its id.
	producer := db.Connect(t)
	tx := begin(t, producer)
	put(t, tx, "acme", "q", "late")
	putMany(t, db, "acme", 10)
	lock := begin(t, db.Connect(t))
	run(t, lock, "select from outbox.pending where namespace = 'acme' for update")
	args := []string{"purge", "acme", "--yes"}
	cmd := sweepCall{dsn: db.DSN, args: args}.start(t)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, db.Pool, `select exists (select from pg_stat_activity where application_name = 'sweep purge' and datname = current_database() and wait_event_type = 'Lock')`)
	for _, open := range []pgx.Tx{tx, lock} {
		commit(t, open)
	}
	_ = cmd.Wait()
	got := sweepOutcome{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
	got.want(t, 1, args, `messages of namespace "acme" were enqueued meanwhile`, "Stop its producers")
	if got.stdout != "purged 10 messages\n" {
		t.Errorf("printed %q", got.stdout)
	}
}
