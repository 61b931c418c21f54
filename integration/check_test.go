package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// violation is a row of outbox.check.
type violation struct {
	Guarantee, Subject, Detail, Hint string
}

func (v violation) String() string { return v.Guarantee + " " + v.Subject + ": " + v.Detail }

// audit asks outbox.check for violations.
func audit(ctx context.Context, q querier) ([]violation, error) {
	rows, err := q.Query(ctx, "select v.guarantee, v.subject, v.detail, v.hint from outbox.check() as v")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[violation])
}

// wantSound fails where outbox.check finds something.
func wantSound(t testing.TB, q querier) {
	t.Helper()
	found, err := audit(t.Context(), q)
	if err != nil {
		t.Fatalf("check: %v", err)
	}
	for _, v := range found {
		t.Errorf("check: %v", v)
	}
}

// checkOutbox gives a database with messages in every state, by ids: 1 to 6 pending (5
// delayed, 6 retried), 7 done, 8 failed, 9 cancelled, 10 and 11 claimed by one claim, 12 by
// another, of a strict namespace that is at its quota.
func checkOutbox(t *testing.T) *pgtest.DB {
	t.Helper()
	db := pg.New(t)
	conn := db.Connect(t)
	for i := range 12 {
		namespace := "n"
		if i == 11 {
			namespace = "one"
		}
		run(t, conn, "select outbox.enqueue($1, $2, $3, $4::bytea)", namespace, fmt.Sprint("q", i%2), fmt.Sprint("k", i+1), make([]byte, 10*i))
	}
	run(t, conn, "select outbox.set_quota('one', 1, true), outbox.heartbeat('node', '{0,1}')")
	run(t, conn, "delete from outbox.former_quota")
	run(t, conn, "update outbox.pending set visible_after = clock_timestamp() + interval '1 h' where id = 5 or id between 1 and 4")
	for i, how := range []string{"complete", "fail", "retry"} {
		run(t, conn, "update outbox.pending set visible_after = clock_timestamp() + interval '1 h' where id <> $1", []int{7, 8, 6}[i])
		run(t, conn, "update outbox.pending set visible_after = clock_timestamp() where id = $1", []int{7, 8, 6}[i])
		row := claimOne(t, conn, "node")
		settle(t, conn, how, row.ID, row.Token)
	}
	run(t, conn, "select outbox.cancel('{k9}')")
	for _, ids := range [][]int64{{10, 11}, {12}} {
		run(t, conn, "update outbox.pending set visible_after = case when id = any ($1) then clock_timestamp() else clock_timestamp() + interval '1 h' end", ids)
		if rows := claim(t, conn, "node", 10); len(rows) != len(ids) {
			t.Fatalf("claimed %v, want %v", rows, ids)
		}
	}
	return db
}

// plant is a violation that is made on purpose: statements for the owner (or, where only
// it can, the superuser), and the violations that check must find then, and no others.
type plant struct {
	sql   string
	admin bool
	want  []string // beginnings of guarantee, subject and detail
}

// lame keeps an index from new rows while a statement runs: that is what a corrupt one
// looks like.
func lame(index, statement string) string {
	const set = "update pg_index set indisready = %t where indexrelid = 'outbox.%s'::regclass;"
	return fmt.Sprintf(set, false, index) + statement + ";" + fmt.Sprintf(set, true, index)
}

const (
	alsoPending = "insert into outbox.pending (id, namespace, task_queue, shard, visible_after, payload_bytes) " +
		"select m.id, m.namespace, m.task_queue, outbox.shard_of(m.dispatch_key, 16), '-infinity', octet_length(m.payload) from outbox.message as m "
	claimOnce = "select outbox.enqueue('n', 'q', 'k13', ''); select outbox.claim_fair('node', outbox.all_shards(), 10)"
	overQuota = "insert into outbox.claimed select m.id + 1000, '-infinity', %s, clock_timestamp(), clock_timestamp() + interval '1 min', " +
		"3, 1, 0, '%s', 'q', 'rogue' from generate_series(1, %d) as m(id);" +
		"insert into outbox.message overriding system value select c.id, now(), c.namespace, 'q', k.key, 't', '{}', '' from outbox.claimed as c, lateral (" +
		"select 'x' || i as key from generate_series(c.id * 1000, c.id * 1000 + 999) as i where outbox.shard_of('x' || i, 16) = 3 limit 1) as k where c.id > 1000;" +
		"select setval('outbox.message_id_seq', 5000)"
)

func plants() map[string]plant {
	all := map[string]plant{
		"a message in no state": {
			sql: "delete from outbox.pending where id = 1", want: []string{"INV-2 message 1: with key 'k1' is in no state"},
		},
		"a claim that vanished": {
			sql: "delete from outbox.claimed where id = 10", want: []string{"INV-2 message 10: with key 'k10' is in no state"},
		},
		"pending and claimed": {
			sql: alsoPending + "where m.id = 10", want: []string{"INV-2 message 10: is claimed and pending at once"},
		},
		"pending and done": {
			sql: alsoPending + "where m.id = 7", want: []string{"INV-2 message 7: is done and pending at once"},
		},
		"claimed and settled": {
			sql:  "insert into outbox.settled select c.id, now(), c.shard, c.attempt, 'done', c.namespace, c.task_queue, 'node' from outbox.claimed as c where c.id = 12",
			want: []string{"INV-2 message 12: is claimed and done at once"},
		},
		"rows without a message": {
			sql: "delete from outbox.message where id in (2, 6, 7, 10)",
			want: []string{
				"INV-2 message 2: is pending and has no row", "INV-2 message 6: is pending and has no row", "INV-2 message 7: is done and has no row",
				"INV-2 message 10: is claimed and has no row", "INV-2 message 6: has 1 recorded failures, and no row",
			},
		},
		"another shard": {
			sql:  "update outbox.pending set shard = (shard + 1) % 16 where id = 1; update outbox.settled set shard = 16 where id = 8",
			want: []string{"INV-4 message 1: is pending on shard", "INV-4 message 8: is failed on shard 16, its key hashes to"},
		},
		"another namespace": {
			sql: "update outbox.pending set namespace = 'm' where id = 1", want: []string{"INV-4 message 1: is pending in namespace 'm', its message in 'n'"},
		},
		"another task queue": {
			sql: "update outbox.claimed set task_queue = 'z' where id = 10", want: []string{"INV-7 message 10: is claimed in task queue 'z', its message in 'q1'"},
		},
		"another size": {
			sql: "update outbox.message set payload = 'other' where id = 3", want: []string{"INV-13 message 3: is pending with 20 bytes, its payload has 5"},
		},
		"attempts that cannot be": {
			sql: "update outbox.pending set attempt = -1 where id = 1; update outbox.claimed set attempt = 0 where id = 10; update outbox.settled set attempts = 0",
			want: []string{
				"INV-10 message 1: is pending after -1 attempts", "INV-10 message 10: is claimed after 0", "INV-10 message 7: is done after 0",
				"INV-10 message 8: is failed after 0",
			},
		},
		"a dispatch key twice": {
			admin: true,
			sql: lame("message_dispatch_key_key", "insert into outbox.message (namespace, task_queue, dispatch_key, content_type, headers, payload) values ('n', 'q', 'k1', 't', '{}', '')") +
				alsoPending + "where m.id = 13; select outbox.cancel('{k1}')",
			want: []string{"INV-3 dispatch key 'k1': belongs to messages 1, 13", "INV-2 index message_dispatch_key_key: finds 12 of the 13 rows"},
		},
		"a strict namespace above its quota": {
			sql:  fmt.Sprintf(overQuota, "nextval('outbox.claim_token')", "one", 1),
			want: []string{"INV-4 namespace 'one': claim"},
		},
		"a claim above the quota on its shards": {
			sql:  "select outbox.set_quota('m', 3); delete from outbox.former_quota;" + fmt.Sprintf(overQuota, "nextval('outbox.claim_token')", "m", 4),
			want: []string{"INV-4 namespace 'm': claim"},
		},
		"a default quota exceeded": {
			sql:  `select outbox.configure('{"default_quota": 1}'); delete from outbox.former_quota;` + fmt.Sprintf(overQuota, "nextval('outbox.claim_token')", "m", 2),
			want: []string{"INV-4 namespace 'm': claim", "INV-4 namespace 'n': claim"},
		},
		"above the former quota too": {
			sql:  "select outbox.set_quota('m', 5); delete from outbox.former_quota; select outbox.set_quota('m', 2);" + fmt.Sprintf(overQuota, "nextval('outbox.claim_token')", "m", 6),
			want: []string{"INV-4 namespace 'm': claim"},
		},
		"a token of the future": {
			sql: "update outbox.claimed set claim_token = 1000000000000 where id = 10", want: []string{"INV-9 message 10: has claim token 1000000000000, the last one drawn is "},
		},
		"a token of two claims": {
			sql: "update outbox.claimed set claim_token = (select claim_token from outbox.claimed where id = 12) where id = 10", want: []string{"INV-9 claim token "},
		},
		"the sequence was set back": {
			sql: "select setval('outbox.claim_token', 1, false)", want: []string{"INV-9 message 10", "INV-9 message 11", "INV-9 message 12: has claim token "},
		},
		"tokens out of order": {
			sql: "alter sequence outbox.claim_token cache 20", want: []string{"INV-9 sequence outbox.claim_token: has cache 20"},
		},
		"ids of the future": {
			sql: "select setval('outbox.message_id_seq', 3)", want: []string{"INV-2 outbox.message.id: goes up to 12, its sequence stands at 3"},
		},
		"a lease that nobody rescues": {
			sql: "update outbox.claimed set lease_until = clock_timestamp() - interval '2 h' where id = 10", want: []string{"INV-2 message 10: is claimed by node, and its lease ran out at"},
		},
		"a lease without end": {
			sql: "update outbox.claimed set lease_until = 'infinity' where id = 10", want: []string{"INV-2 message 10: is claimed by node until infinity"},
		},
		"claimed beside the probe": {
			sql: `insert into outbox.destination (namespace, task_queue, state, held_since, held_until, probe_id, probe_token, changed_at)
				select 'n', c.task_queue, 'held', c.claimed_at - interval '1 h', timestamptz 'infinity', null::bigint, null::bigint, now() from outbox.claimed as c where c.id = 10
				union all select null, 'q1', 'held', now() - interval '1 h', 'infinity', c.id, c.claim_token, now() from outbox.claimed as c where c.id = 12
				union all select 'n', 'q0', 'held', now(), 'infinity', null, null, now()`,
			want: []string{"INV-16 route 'q1' of 'n': is held, and 1 of its messages was claimed beside the probe, message 10 for one", "INV-16 route 'q1' of all: is held, and 1 of"},
		},
		"a report that nobody reads": {
			sql: `insert into outbox.report (at, kind, message_id, claim_token, namespace, task_queue) values (now() - interval '1 day', 'up', 1, 1, 'n', 'q1');
				update outbox.walk set claimed_at = now()`,
			want: []string{"INV-16 table outbox.report: has a report of "},
		},
		"a hold that gave up": {
			sql:  `insert into outbox.destination (namespace, task_queue, state, held_since, held_until, reason, changed_at) values ('gone', 'q', 'held', now() - interval '6 days', 'infinity', 'refused', now())`,
			want: []string{"advice route 'q' of 'gone': has been held since"},
		},
		"a database that went back": {
			sql: "insert into outbox.went_back values (now(), 'node', 9, 7)", want: []string{"INV-2 database: went back in time: at "},
		},
		"no settings": {
			sql: "truncate outbox.config", want: []string{"INV-4 outbox.config: has 0 rows"},
		},
		"tables that a crash empties": {
			sql:  "alter table outbox.pending set unlogged; alter table outbox.settled force row level security",
			want: []string{"INV-2 table outbox.pending: is unlogged", "INV-2 table outbox.settled: has forced row security"},
		},
		"triggers": {
			sql:  "alter table outbox.config disable trigger config_guard; drop trigger former_quota on outbox.namespace",
			want: []string{"INV-4 trigger config_guard on outbox.config: is disabled", "INV-4 trigger former_quota on outbox.namespace: is missing"},
		},
		"a node of nowhere": {
			sql: "update outbox.node set shards = '{3,16}' where node = 'node'", want: []string{"INV-5 node 'node': names shards that do not exist: 16, of 0 to 15"},
		},
		"functions": {
			sql: "grant execute on function outbox.claim_order to public; alter function outbox.claim_fair reset search_path; " +
				"create or replace function outbox.mine() returns int language sql as 'select 1'",
			want: []string{
				"rights function outbox.claim_order(integer[],integer[],integer[]", "rights function outbox.claim_fair(text,integer[],integer,bigint,boolean): runs with its owner's rights",
				"rights function outbox.mine(): can be executed by everybody",
			},
		},
		"a function of another role": {
			admin: true, sql: "alter function outbox.rescue owner to current_user", want: []string{"rights function outbox.rescue(integer): belongs to"},
		},
		"rights on tables": {
			sql: "grant select on outbox.message to public; grant select on outbox.messages to public; grant insert, update, select on outbox.pending to pg_monitor; " +
				"grant usage, update on sequence outbox.claim_token to pg_monitor; grant create on schema outbox to pg_monitor",
			want: []string{
				"rights table outbox.message: everybody may select", "rights view outbox.messages: everybody may select",
				"rights table outbox.pending: pg_monitor may insert, update", "rights table outbox.claim_token: pg_monitor may update",
				"rights schema outbox: pg_monitor may create",
			},
		},
		"a place that is not the name's": {
			sql:  "alter table outbox.pending alter column ring drop expression; update outbox.pending set ring = ring + 1 where id = 1",
			want: []string{"INV-5 message 1: stands at another place"},
		},
		"a claimed message that a node has passed over": {
			sql:  "update outbox.walk set edge = 1000000000000 where node = 'node'",
			want: []string{"INV-4 node node: does not count"},
		},
		"indexes that are gone": {
			sql:  "drop index outbox.claimed_lease; alter table outbox.message drop constraint message_dispatch_key_key",
			want: []string{"INV-14 index claimed_lease: is missing", "INV-3 index message_dispatch_key_key: is missing"},
		},
		"an index that is not valid": {
			admin: true, sql: "update pg_index set indisvalid = false where indexrelid = 'outbox.pending_ripe'::regclass",
			want: []string{"INV-14 index pending_ripe: is not valid"},
		},
	}
	// Each index, while a row is written that it does not get.
	for index, statement := range map[string]string{
		"message_pkey": "select outbox.enqueue('n', 'q', 'k13', '')", "pending_pkey": "select outbox.enqueue('n', 'q', 'k13', '')",
		"pending_ripe": "select outbox.enqueue('n', 'q', 'k13', '')", "settled_pkey": "select outbox.cancel('{k1}')",
		"settled_retention": "select outbox.cancel('{k1}')", "settled_failed": "select outbox.fail(array[12], array(select c.claim_token from outbox.claimed as c where c.id = 12))",
		"pending_unripe_due": "select outbox.enqueue('n', 'q', 'k13', '', delay => '1 h')", "pending_unripe_namespace": "select outbox.enqueue('n', 'q', 'k13', '', delay => '1 h')",
		"failure_id": "select outbox.fail(array[12], array(select c.claim_token from outbox.claimed as c where c.id = 12))", "claimed_pkey": claimOnce, "claimed_namespace": claimOnce, "claimed_lease": claimOnce, "claimed_token": claimOnce,
		"namespace_pkey": "insert into outbox.namespace (namespace, quota) values ('p', 300)",
		"pause_key":      "insert into outbox.pause (namespace, since, by) values ('p', now(), 'me')",
	} {
		all["a row that is not in "+index] = plant{
			admin: true, sql: lame(index, statement),
			want: []string{fmt.Sprintf("INV-2 index %s: finds", index)},
		}
	}
	return all
}

// TestCheckFindsWhatIsPlanted: each kind of violation is found, and nothing else beside it.
func TestCheckFindsWhatIsPlanted(t *testing.T) {
	t.Parallel()
	db := checkOutbox(t)
	owner, admin := db.Connect(t), db.Admin(t)
	wantSound(t, owner)
	drawn := one[int64](t, owner, "select last_value from outbox.claim_token")
	for name, p := range plants() {
		t.Run(name, func(t *testing.T) {
			conn := owner
			if p.admin {
				conn = admin
			}
			tx := begin(t, conn)
			if err := tx.Conn().PgConn().Exec(t.Context(), p.sql).Close(); err != nil {
				t.Fatalf("plant: %v", err)
			}
			found, err := audit(t.Context(), tx)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range found {
				i := 0
				for i < len(p.want) && !strings.HasPrefix(v.String(), p.want[i]) {
					i++
				}
				if i == len(p.want) {
					t.Errorf("it finds %q", v)
					continue
				}
				p.want = append(p.want[:i:i], p.want[i+1:]...)
				if v.Hint == "" {
					t.Errorf("%q says not what to do", v)
				}
			}
			for _, w := range p.want {
				t.Errorf("it does not find %q", w)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			run(t, owner, "select setval('outbox.claim_token', $1), setval('outbox.message_id_seq', 12)", drawn) // no rollback takes them back
		})
	}
	wantSound(t, owner)
}
