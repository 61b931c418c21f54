package integration

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
)

// unripeFill writes messages of one namespace that wait for their time.
func unripeFill(t *testing.T, conn *pgx.Conn, n int) {
	t.Helper()
	run(t, conn, fmt.Sprintf(`
		with m as (
		  insert into outbox.message (namespace, task_queue, dispatch_key, content_type, headers, payload)
		  select 'unripe', 'q', gen_random_uuid()::text, 'text/plain', '{}', '' from generate_series(1, %d)
		  returning *)
		insert into outbox.pending (visible_after, ripe, id, namespace, task_queue, shard, payload_bytes)
		select now() + interval '1 h' + m.id %% 100 * interval '1 s', false, m.id, m.namespace, m.task_queue, outbox.shard_of(m.dispatch_key, 16), 0 from m`, n))
}

// TestPlanStatesUnripe: what retry_now costs follows what it is asked for (INV-14), as in
// TestPlanStates: beside many messages that wait, in a session that made its plans while few did.
func TestPlanStatesUnripe(t *testing.T) {
	t.Parallel()
	calls := map[string]stateCall{
		"retry_now, keys": {
			sql:  `select count(*) from outbox.retry_now(coalesce($1::text[], '{}'))`,
			with: `select array_agg(x.dispatch_key) from (select m.dispatch_key from outbox.message as m where m.namespace = 'unripe' order by md5(m.id::text) limit $1) as x`,
			row:  50,
		},
		"retry_now, namespace": {sql: `select outbox.retry_now('unripe', $1)`, with: `select $1::int`, row: 50},
	}
	for name, state := range states {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pg.New(t)
			conn := db.Connect(t)
			unripeFill(t, conn, 4)
			old := stateOpen(t, db, state, calls)
			unripeFill(t, conn, stateEach)
			if state[1] != nil {
				state[1](t, conn)
			}
			fresh := stateWatch(t, db)
			for name, call := range calls {
				for session, s := range map[string]stateSession{"plans from when the tables were small": old, "new plans": fresh} {
					if err := call.judge(t, s); err != nil {
						t.Errorf("INV-14: %s, %s: %v", name, session, err)
					}
				}
			}
		})
	}
}
