package integration

import (
	"slices"
	"strings"
	"testing"
)

// waiting enqueues messages of a namespace that wait for an hour, and returns their ids.
func waiting(t *testing.T, q querier, namespace string, n int) []int64 {
	t.Helper()
	return list[int64](t, q, `select outbox.enqueue($1, 'q' || g % 2, $1 || g, '', delay => '1 h') from generate_series(1, $2) as g`, namespace, n)
}

// TestRetryNowKeys: what waits for its backoff, or was delayed, is due, and its attempts stay;
// everything else is left out, and stays as it was (INV-8).
func TestRetryNowKeys(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	for _, key := range []string{"backoff", "claimed", "done", "failed"} {
		put(t, conn, "n", "q", key)
	}
	for _, row := range claim(t, conn, "n1", 10) {
		switch row.Key {
		case "backoff":
			run(t, conn, "select outbox.retry(array[$1::bigint], array[$2::bigint], '{e}', '{1 h}')", row.ID, row.Token)
		case "done":
			settle(t, conn, "complete", row.ID, row.Token)
		case "failed":
			settle(t, conn, "fail", row.ID, row.Token)
		}
	}
	put(t, conn, "n", "q", "due")
	run(t, conn, "select outbox.enqueue('n', 'q', 'delayed', '', delay => '1 day'), outbox.enqueue('n', 'q', 'other', '', delay => '1 day')")
	const rest = "select string_agg(p::text, ' ' order by p.id) from outbox.pending as p join outbox.message as m using (id) where m.dispatch_key in ('due', 'other')"
	before := one[string](t, conn, rest)
	const call = "select k from outbox.retry_now('{backoff,claimed,done,failed,due,delayed,backoff,null,unknown}'::text[]) as k order by k"
	if got := list[string](t, conn, call); !slices.Equal(got, []string{"backoff", "delayed"}) {
		t.Errorf("made due: %q", got)
	}
	if got := list[string](t, conn, call); len(got) != 0 {
		t.Errorf("made due a second time: %q", got)
	}
	if got := one[string](t, conn, rest); got != before {
		t.Errorf("others were written: %s, before %s", got, before)
	}
	wantSound(t, conn)
	var keys []string
	for _, row := range claim(t, conn, "n1", 10) {
		keys = append(keys, row.Key)
		if want := 1 + strings.Count(row.Key, "backoff"); row.Attempt != want {
			t.Errorf("%s is claimed as attempt %d, want %d", row.Key, row.Attempt, want)
		}
	}
	if slices.Sort(keys); !slices.Equal(keys, []string{"backoff", "delayed", "due"}) {
		t.Errorf("claimed %q", keys)
	}
}

// TestRetryNowNamespace works in chunks, what is due first at the head, and leaves other
// namespaces alone. What has come due keeps its time.
func TestRetryNowNamespace(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	waiting(t, conn, "a", 20)
	waiting(t, conn, "b", 3)
	run(t, conn, "update outbox.pending set visible_after = visible_after + interval '1 h' where id % 2 = 0")
	run(t, conn, "update outbox.pending set visible_after = now() - interval '1 min' where id = 1")
	var got []int
	for _, limit := range []any{8, 8, nil, nil} {
		got = append(got, one[int](t, conn, "select outbox.retry_now('a', $1)", limit))
		if len(got) == 1 && one[int](t, conn, "select count(*) from outbox.pending where ripe and id % 2 = 0") != 0 {
			t.Error("later ones were made due before earlier ones")
		}
	}
	if !slices.Equal(got, []int{8, 8, 4, 0}) {
		t.Errorf("made due %v", got)
	}
	if got := one[string](t, conn, "select string_agg(n || ' ' || c, ', ' order by n) from (select namespace, count(*) filter (where ripe and visible_after <= clock_timestamp()) from outbox.pending group by 1) as x(n, c)"); got != "a 20, b 0" {
		t.Errorf("due: %s", got)
	}
	if !one[bool](t, conn, "select visible_after < now() - interval '30 s' from outbox.pending where id = 1") {
		t.Error("what was due already lost its place")
	}
	wantSound(t, conn)
}

// TestRetryNowRaces: a message that another session has locked is waited for; one that has
// gone back to its backoff meanwhile is met there, and nothing is in two states (INV-2).
func TestRetryNowRaces(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	mover, caller, watch := db.Connect(t), impatient(t, db.Connect(t)), db.Connect(t)
	for _, c := range []struct {
		move string
		want string // the state in the end
		due  int64
	}{
		{"select outbox.cancel('{k1}')", "cancelled", 0},
		{"select outbox.retry_now('{k1}'::text[])", "pending", 0},
		{"select from outbox.pending for update", "pending", 1},
		{"claimed, and failed again", "pending", 1},
	} {
		for _, call := range []string{"select count(*) from outbox.retry_now('{k1}'::text[])", "select outbox.retry_now('k')", "select outbox.retry_now('k', 1)"} {
			id := waiting(t, mover, "k", 1)[0]
			tx := begin(t, mover)
			if strings.HasPrefix(c.move, "claimed") {
				run(t, tx, "create temp table moved on commit drop as select * from outbox.pending")
				run(t, tx, "delete from outbox.pending")
				run(t, tx, `insert into outbox.pending (id, namespace, task_queue, shard, visible_after, ripe, attempt, payload_bytes)
					select c.id, c.namespace, c.task_queue, c.shard, now() + interval '2 h', false, 1, 0 from moved as c`)
			} else {
				run(t, tx, c.move)
			}
			done := async(t, caller, call)
			awaitBlocked(t, watch, caller.PgConn().PID())
			commit(t, tx)
			if got := <-done; got.err != nil || *got.value != c.due {
				t.Errorf("%s beside %s: %v, %v, want %d", call, c.move, got.value, got.err, c.due)
			}
			if got := status(t, watch, id); got != c.want {
				t.Errorf("%s beside %s: the message is %s, want %s", call, c.move, got, c.want)
			}
			if c.want == "pending" && !one[bool](t, watch, "select p.ripe and p.visible_after <= clock_timestamp() from outbox.pending as p") {
				t.Errorf("%s beside %s: the message still waits", call, c.move)
			}
			wantSound(t, watch)
			run(t, watch, "select outbox.cancel('{k1}')")
			run(t, watch, "select outbox.prune('0', 10)")
		}
	}
}

// TestRetryNowBesideClaim: a claim waits for no retry_now, and takes what is due besides (INV-11).
func TestRetryNowBesideClaim(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	first, second := db.Connect(t), withoutWaiting(t, db.Connect(t))
	waiting(t, first, "n", 3)
	put(t, first, "n", "q", "due")
	run(t, first, "update outbox.pending set visible_after = now() - interval '1 min' where not ripe")
	tx := begin(t, first)
	if got := one[int](t, tx, "select outbox.retry_now('n')"); got != 3 {
		t.Fatalf("made %d due", got)
	}
	if row := claimOne(t, second, "n1"); row.Key != "due" {
		t.Errorf("claimed %s", row.Key)
	}
	commit(t, tx)
	if rows := claim(t, second, "n1", 10); len(rows) != 3 {
		t.Errorf("claimed %d, want 3", len(rows))
	}
}
