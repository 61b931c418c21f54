package integration

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// TestEnqueueDuplicate proves INV-3 within one session: the first message stays as
// it is, the second is reported, and another namespace is told that the key is taken.
func TestEnqueueDuplicate(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	id := one[int64](t, conn, "select outbox.enqueue('acme', 'mail', 'k', 'first')")
	for _, call := range []string{
		"select outbox.enqueue('acme', 'mail', 'k', 'second')",
		"select outbox.enqueue('acme', 'another queue', 'k', 'second')",
		"select outbox.enqueue_json('acme', 'mail', 'k', '{}')",
		"select id from outbox.enqueue_batch('{acme}', '{mail}', '{k}', '{second}')",
	} {
		if got := one[*int64](t, conn, call); got != nil {
			t.Errorf("%s gave %d, want a duplicate", call, *got)
		}
	}
	for _, call := range []string{
		"select outbox.enqueue('evil', 'mail', 'k', 'x')",
		"select outbox.enqueue_json('ACME', 'mail', 'k', '{}')",
		"select outbox.enqueue_batch('{acme,evil}', '{mail,mail}', '{other,k}', '{x,x}')",
	} {
		_, err := conn.Exec(t.Context(), call)
		wantError(t, err, "OB003", "another namespace")
	}
	if got := list[string](t, conn, "select format('%s %s %s', id, task_queue, encode(payload, 'escape')) from outbox.messages"); !slices.Equal(got, []string{fmt.Sprint(id, " mail first")}) {
		t.Errorf("messages are %q", got)
	}
	if got := one[int](t, conn, "select count(*) from outbox.pending"); got != 1 {
		t.Errorf("%d pending rows, want 1", got)
	}
}

// TestEnqueueDuplicateWhileItExists: whatever became of the first message, its key
// is taken until the message is pruned (INV-2, INV-3).
func TestEnqueueDuplicateWhileItExists(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	const again = "select outbox.enqueue('acme', 'mail', 'k', '')"
	put(t, conn, "acme", "mail", "k")
	row := claimOne(t, conn, "n1")
	if one[*int64](t, conn, again) != nil {
		t.Error("the key of a claimed message was free")
	}
	settle(t, conn, "fail", row.ID, row.Token)
	if one[*int64](t, conn, again) != nil {
		t.Error("the key of a failed message was free")
	}
	run(t, conn, "select outbox.prune('0', 10, true)")
	if one[*int64](t, conn, again) == nil {
		t.Error("the key of a pruned message was taken")
	}
}

// TestEnqueueBadArguments: each bad argument is an OB001 that names it, and a null
// is never a message that was silently not written (INV-2).
func TestEnqueueBadArguments(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	long := strings.Repeat("ä", 257)
	for _, c := range []struct{ argument, call string }{
		{"namespace", "enqueue(null, 'q', 'k', '')"},
		{"namespace", "enqueue('', 'q', 'k', '')"},
		{"namespace", "enqueue('" + long + "', 'q', 'k', '')"},
		{"task_queue", "enqueue('n', null, 'k', '')"},
		{"task_queue", "enqueue('n', '', 'k', '')"},
		{"task_queue", "enqueue('n', '" + long + "', 'k', '')"},
		{"dispatch_key", "enqueue('n', 'q', null, '')"},
		{"dispatch_key", "enqueue('n', 'q', '', '')"},
		{"dispatch_key", "enqueue('n', 'q', '" + long + "', '')"},
		{"payload", "enqueue('n', 'q', 'k', null)"},
		{"content_type", "enqueue('n', 'q', 'k', '', null)"},
		{"content_type", "enqueue('n', 'q', 'k', '', '')"},
		{"content_type", "enqueue('n', 'q', 'k', '', '" + long + "')"},
		{"headers", "enqueue('n', 'q', 'k', '', 'text/plain', null)"},
		{"headers", "enqueue('n', 'q', 'k', '', 'text/plain', '[]')"},
		{"payload", "enqueue_json('n', 'q', 'k', null)"},
		{"headers", "enqueue_json('n', 'q', 'k', '{}', 'null')"},
		{"namespaces", "enqueue_batch(null, '{q}', '{k}', '{x}')"},
		{"task_queues", "enqueue_batch('{n}', null, '{k}', '{x}')"},
		{"dispatch_keys", "enqueue_batch('{n}', '{q}', null, '{x}')"},
		{"payloads", "enqueue_batch('{n}', '{q}', '{k}', null)"},
		{"namespaces has 2 elements", "enqueue_batch('{n,n}', '{q}', '{k}', '{x}')"},
		{"task_queues has 0 elements", "enqueue_batch('{n}', '{}', '{k}', '{x}')"},
		{"payloads has 2 elements", "enqueue_batch('{n}', '{q}', '{k}', '{x,x}')"},
		{"content_types has 2 elements", "enqueue_batch('{n}', '{q}', '{k}', '{x}', '{a,b}')"},
		{"headers has 0 elements", "enqueue_batch('{n}', '{q}', '{k}', '{x}', null, '{}')"},
		{"delays has 2 elements", "enqueue_batch('{n}', '{q}', '{k}', '{x}', null, null, '{1s,1s}')"},
		{"namespaces[2] is null", "enqueue_batch('{n,null}', '{q,q}', '{k,l}', '{x,x}')"},
		{"task_queues[1] has 0 bytes", "enqueue_batch('{n,n}', array['','q'], '{k,l}', '{x,x}')"},
		{"dispatch_keys[2] is null", "enqueue_batch('{n,n}', '{q,q}', '{k,null}', '{x,x}')"},
		{"dispatch_keys[2] has 514 bytes", "enqueue_batch('{n,n}', '{q,q}', array['k','" + long + "'], '{x,x}')"},
		{"payloads[2] is null", "enqueue_batch('{n,n}', '{q,q}', '{k,l}', '{x,null}')"},
		{"content_types[1] has 0 bytes", "enqueue_batch('{n,n}', '{q,q}', '{k,l}', '{x,x}', array['', 'a'])"},
		{"headers[2] is JSON, but no object: number", "enqueue_batch('{n,n}', '{q,q}', '{k,l}', '{x,x}', null, array['{}', '7']::jsonb[])"},
	} {
		_, err := conn.Exec(t.Context(), "select outbox."+c.call)
		if err == nil {
			t.Errorf("%.60s raised nothing", c.call)
			continue
		}
		wantError(t, err, "OB001", c.argument)
	}
	if got := one[int](t, conn, "select count(*) from outbox.message"); got != 0 {
		t.Errorf("%d messages were written", got)
	}
}

// TestEnqueueLimits: 512 bytes of key and max_payload_bytes of payload fit, one more
// does not.
func TestEnqueueLimits(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	key := strings.Repeat("ä", 256)
	run(t, conn, "select outbox.configure('{\"max_payload_bytes\": 10}')")
	put(t, conn, key, key, key)
	run(t, conn, "select outbox.enqueue('n', 'q', 'k', repeat('x', 10)::bytea)")
	for _, call := range []string{
		"enqueue('n', 'q', 'l', repeat('x', 11)::bytea)",
		"enqueue_json('n', 'q', 'l', '\"123456789\"')",
		"enqueue_batch('{n}', '{q}', '{l}', array[repeat('x', 11)::bytea])",
	} {
		_, err := conn.Exec(t.Context(), "select outbox."+call)
		wantError(t, err, "OB004", "11 bytes", "limit is 10")
	}
	run(t, conn, "select outbox.configure('{\"max_payload_bytes\": 0}')")
	put(t, conn, "n", "q", "empty")
}

// TestEnqueueBatch: thousands of messages, duplicates in the batch and of messages
// that are there, each answered at its place (INV-3).
func TestEnqueueBatch(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	put(t, conn, "acme", "mail", "key 17")
	const count = 5000
	var namespaces, queues, keys []string
	var payloads [][]byte
	first := map[string]int{"key 17": -1}
	var want []bool // new
	for i := range count {
		key := fmt.Sprint("key ", rand.IntN(4000))
		_, seen := first[key]
		if !seen {
			first[key] = i
		}
		want = append(want, !seen)
		namespaces, queues, keys = append(namespaces, "acme"), append(queues, "mail"), append(keys, key)
		payloads = append(payloads, fmt.Appendf(nil, "payload %d", i))
	}
	const call = "select id from outbox.enqueue_batch($1, $2, $3, $4) order by ord"
	ids := list[*int64](t, conn, call, namespaces, queues, keys, payloads)
	if len(ids) != count {
		t.Fatalf("%d answers, want %d", len(ids), count)
	}
	for i, id := range ids {
		if (id != nil) != want[i] {
			t.Fatalf("message %d (%s): new is %v, want %v", i+1, keys[i], id != nil, want[i])
		}
		if id != nil && i%97 == 0 {
			got := one[string](t, conn, "select dispatch_key || ' ' || encode(payload, 'escape') from outbox.messages where id = $1 and status = 'pending'", *id)
			if got != fmt.Sprint(keys[i], " payload ", i) {
				t.Fatalf("message %d was stored as %q", i+1, got)
			}
		}
	}
	if got := one[int](t, conn, "select count(*) from outbox.pending"); got != len(first) {
		t.Errorf("%d pending rows, want %d", got, len(first))
	}
	for i, id := range list[*int64](t, conn, call, namespaces, queues, keys, payloads) {
		if id != nil {
			t.Fatalf("message %d was new a second time", i+1)
		}
	}
	if got := list[int](t, conn, "select ord from outbox.enqueue_batch('{}', '{}', '{}', '{}')"); len(got) != 0 {
		t.Errorf("an empty batch gave %v", got)
	}
}

// TestEnqueueBatchOfNewKeys: keys in no order, all of them new, come back by their places, each with its own delay.
func TestEnqueueBatchOfNewKeys(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	ids := list[int64](t, conn, "select id from outbox.enqueue_batch('{n,n,n}', '{q,q,q}', '{c,a,b}', '{x,x,x}', delays => '{1h,null,2h}') order by ord")
	got := list[string](t, conn, `select format('%s %s', m.dispatch_key, case when not p.ripe then round(extract(epoch from p.visible_after - m.created_at) / 3600) end)
		from unnest($1::bigint[]) with ordinality as u(id, ord) join outbox.message as m on m.id = u.id join outbox.pending as p on p.id = u.id order by u.ord`, ids)
	if want := []string{"c 1", "a ", "b 2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestEnqueueBatchOneDuplicate: all keys differ, and one is there already, the first, one in the middle or the last: it
// is a duplicate, the others are written once, each with its own delay (INV-3).
func TestEnqueueBatchOneDuplicate(t *testing.T) {
	t.Parallel()
	for _, taken := range []string{"a", "b", "c"} {
		conn := pg.New(t).Connect(t)
		put(t, conn, "n", "q", taken)
		ids := list[*int64](t, conn, "select id from outbox.enqueue_batch('{n,n,n}', '{q,q,q}', '{c,a,b}', '{x,x,x}', delays => '{3h,1h,2h}') order by ord")
		for i, key := range []string{"c", "a", "b"} {
			if (ids[i] == nil) != (key == taken) {
				t.Errorf("%s is taken: the id of %s is null: %t", taken, key, ids[i] == nil)
			}
		}
		got := list[string](t, conn, `select m.dispatch_key || case when p.ripe then '' else ' ' || round(extract(epoch from p.visible_after - m.created_at) / 3600) end
			from outbox.message as m full join outbox.pending as p on p.id = m.id order by 1`)
		var want []string
		for _, key := range []string{"a 1", "b 2", "c 3"} {
			if key[:1] == taken {
				key = taken
			}
			want = append(want, key)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s is taken: got %q, want %q", taken, got, want)
		}
	}
}

// TestEnqueueBatchIDTaken: a try that ran into an id, as after a sequence was set back, answers nothing: the ids are
// those of the second try.
func TestEnqueueBatchIDTaken(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	run(t, conn, "insert into outbox.pending (id, namespace, task_queue, shard, visible_after, payload_bytes) values (2, 'n', 'q', 0, now(), 1)")
	ids := list[int64](t, conn, "select id from outbox.enqueue_batch('{n,n}', '{q,q}', '{a,b}', '{x,x}') order by ord")
	got := list[int64](t, conn, "select m.id from outbox.message as m join outbox.pending as p on p.id = m.id order by m.dispatch_key")
	if len(ids) != 2 || !slices.Equal(ids, got) {
		t.Errorf("the answer is %d, and %d were written", ids, got)
	}
}

// TestEnqueueBatchForeignKey: a key of another namespace raises with its positions,
// also where both stand in one batch, and nothing is written (INV-3).
func TestEnqueueBatchForeignKey(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	put(t, conn, "acme", "mail", "taken")
	_, err := conn.Exec(t.Context(), "select outbox.enqueue_batch('{acme,evil,acme,evil,evil}', '{q,q,q,q,q}', '{a,taken,b,a,c}', '{x,x,x,x,x}')")
	wantError(t, err, "OB003", "positions 2, 4 belong")
	if got := one[int](t, conn, "select count(*) from outbox.message"); got != 1 {
		t.Errorf("%d messages, want 1", got)
	}
}

// TestEnqueueBatchDefaults: null arrays and null elements mean the defaults.
func TestEnqueueBatchDefaults(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	run(t, conn, "select outbox.enqueue_batch('{n,n}', '{q,q}', '{a,b}', '{x,x}', '{text/plain,null}', array['{\"h\": 1}', null]::jsonb[], '{1h,null}')")
	got := list[string](t, conn, `select format('%s %s %s %s', m.dispatch_key, m.content_type, m.headers, p.visible_after > clock_timestamp() + interval '50 min')
		from outbox.message as m join outbox.pending as p on p.id = m.id order by 1`)
	if want := []string{`a text/plain {"h": 1} t`, `b application/json {} f`}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestEnqueueBatchOddArrays: arrays that do not begin at 1, or have several dimensions, are taken element by element.
func TestEnqueueBatchOddArrays(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	ids := list[int64](t, conn, `select id from outbox.enqueue_batch('[0:2]={n1,n2,n3}', '{{q1},{q2},{q3}}', '[7:9]={c,a,b}', array['[-1:1]={x,y,z}'::bytea[]],
		'[2:4]={t/c,null,t/b}', null, '{1h,null,2h}') order by ord`)
	got := list[string](t, conn, `select format('%s %s %s %s %s %s', m.namespace, m.task_queue, m.dispatch_key, convert_from(m.payload, 'UTF8'), m.content_type, not p.ripe)
		from unnest($1::bigint[]) with ordinality as u(id, ord) join outbox.message as m on m.id = u.id join outbox.pending as p on p.id = u.id order by u.ord`, ids)
	if want := []string{"n1 q1 c x t/c t", "n2 q2 a y application/json f", "n3 q3 b z t/b t"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestEnqueueDelay: a delay counts from the call, not from the transaction's start
// (INV-15); without one a message is due at once; no delay overflows.
func TestEnqueueDelay(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	tx := begin(t, conn)
	run(t, tx, "select") // the transaction has begun
	await(t, tx, "select clock_timestamp() > transaction_timestamp() + interval '20 ms'")
	run(t, tx, "create temp table called as select clock_timestamp() as at")
	run(t, tx, "select outbox.enqueue('n', 'q', 'one', '', delay => '10 s')")
	run(t, tx, "select outbox.enqueue_batch('{n}', '{q}', '{batch}', '{x}', delays => '{10 s}')")
	run(t, tx, "select outbox.enqueue_json('n', 'q', 'json', '1', delay => '10 s')")
	if !one[bool](t, tx, "select bool_and(p.visible_after between c.at + interval '10 s' and clock_timestamp() + interval '10 s') from outbox.pending as p, called as c") {
		t.Error("a delay does not count from the call")
	}
	commit(t, tx)

	for i, delay := range []string{
		"null", "'0'", "'-1 s'", "'-178000000 years'", "'178000000 years'", "'2147483647 days'", "'1000 years 2147483647 days'",
	} {
		key := fmt.Sprint("delay ", i)
		run(t, conn, "select outbox.enqueue('n', 'q', $1, '', delay => "+delay+")", key)
		due := one[bool](t, conn, "select visible_after <= clock_timestamp() from outbox.messages where dispatch_key = $1", key)
		if want := i < 4; due != want {
			t.Errorf("with a delay of %s it is due: %v", delay, due)
		}
	}
}

// TestEnqueueRollback: a message lives and dies with its writer's transaction (INV-2).
func TestEnqueueRollback(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	tx := begin(t, conn)
	put(t, tx, "n", "q", "k")
	run(t, tx, "select outbox.enqueue_batch('{n}', '{q}', '{l}', '{x}')")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := one[int](t, conn, "select (select count(*) from outbox.message) + (select count(*) from outbox.pending)"); got != 0 {
		t.Errorf("%d rows stayed behind", got)
	}
	put(t, conn, "n", "q", "k")
}

// TestEnqueueIsolation: enqueue works in every isolation level that the writer's own
// transaction may have.
func TestEnqueueIsolation(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		tx := beginAt(t, conn, level)
		key := string(level)
		put(t, tx, "n", "q", key)
		if one[*int64](t, tx, "select outbox.enqueue('n', 'q', $1, '')", key) != nil {
			t.Errorf("%s: the second was no duplicate", level)
		}
		if one[*int64](t, tx, "select id from outbox.enqueue_batch('{n}', '{q}', array[$1], '{x}')", key) != nil {
			t.Errorf("%s: the batch was no duplicate", level)
		}
		commit(t, tx)
	}
	if got := one[int](t, conn, "select count(*) from outbox.pending"); got != 3 {
		t.Errorf("%d pending, want 3", got)
	}
}

// TestEnqueueFromTrigger: an application's trigger enqueues with the rights of a role
// that can do nothing else here, in the transaction of the row.
func TestEnqueueFromTrigger(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	app, admin := db.Role(t), db.Admin(t)
	run(t, db.Pool, "select outbox.grant_producer($1)", app.Name)
	run(t, admin, "create schema shop authorization "+app.Name)
	conn := db.Connect(t, pgtest.As(app))
	run(t, conn, "create table shop.orders (id int primary key, total int)")
	run(t, conn, `create function shop.order_placed() returns trigger language plpgsql as $$
		begin
		  perform outbox.enqueue_json('shop', 'orders', 'order-' || new.id, to_jsonb(new));
		  return new;
		end $$`)
	run(t, conn, "create trigger order_placed after insert or update on shop.orders for each row execute function shop.order_placed()")
	run(t, conn, "insert into shop.orders select g, g * 10 from generate_series(1, 3) as g")
	run(t, conn, "update shop.orders set total = 0")
	got := list[string](t, db.Pool, "select convert_from(payload, 'UTF8') from outbox.messages order by id")
	if want := []string{`{"id": 1, "total": 10}`, `{"id": 2, "total": 20}`, `{"id": 3, "total": 30}`}; !slices.Equal(got, want) {
		t.Errorf("payloads are %q, want %q", got, want)
	}
}
