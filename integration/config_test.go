package integration

import (
	"testing"
)

// TestShardCountWaitsForWriters: shard_count is fixed once a message exists, be it one
// whose transaction is still open (INV-2: a message on a shard that nobody owns is lost).
func TestShardCountWaitsForWriters(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	watch := db.Connect(t)

	writer, other := db.Connect(t), db.Connect(t)
	tx := begin(t, writer)
	run(t, tx, `select outbox.enqueue('n', 'q', 'first', '')`)
	change := async(t, other, `select outbox.configure('{"shard_count": 1}')::text`)
	awaitBlocked(t, watch, other.PgConn().PID())
	commit(t, tx)
	wantError(t, (<-change).err, "OB005", "shard_count")
}

// TestWriterWaitsForShardCount: who enqueues while shard_count changes uses the new one.
func TestWriterWaitsForShardCount(t *testing.T) {
	t.Parallel()
	for name, enqueue := range map[string]string{
		"one":   `select count(outbox.enqueue('n', 'q', i::text, '')) from generate_series(1, 20) as i`,
		"batch": `select count(b.id) from outbox.enqueue_batch(array_fill('n'::text, array[20]), array_fill('q'::text, array[20]), array(select i::text from generate_series(1, 20) as i), array_fill(''::bytea, array[20])) as b`,
	} {
		db := pg.New(t)
		watch, operator, writer := db.Connect(t), db.Connect(t), db.Connect(t)
		tx := begin(t, operator)
		run(t, tx, `select outbox.configure('{"shard_count": 2}')`)
		written := async(t, writer, enqueue)
		awaitBlocked(t, watch, writer.PgConn().PID())
		commit(t, tx)
		if err := (<-written).err; err != nil {
			t.Fatal(err)
		}
		if n := one[int](t, watch, "select max(shard) from outbox.pending"); n != 1 {
			t.Errorf("%s: shards up to %d of 2", name, n)
		}
	}
}

// TestPublicationForAllTables: a publication for all tables stops no operator.
func TestPublicationForAllTables(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	run(t, db.Admin(t), "create publication everything for all tables")
	put(t, conn, "n", "q", "k")
	for _, call := range []string{
		"pause('n')", "pause('n', note => 'again')", "resume('n')", "set_quota('n', 1)", "clear_quota('n')",
		"hold('n', 'q')", "lift('n', 'q')", "set_shared('q', false)",
		"heartbeat('n1', '{0}')", "heartbeat('n1', '{1}')", "leave('n1')", "configure('{\"lease\": \"30 s\"}')",
	} {
		run(t, conn, "select outbox."+call)
	}
	row := claimOne(t, conn, "n1")
	run(t, conn, "select outbox.fail(array[$1::bigint], array[$2::bigint])", row.ID, row.Token)
	if n := one[int](t, conn, "select outbox.prune('0', 10, true)"); n != 1 {
		t.Errorf("pruned %d messages, want 1", n)
	}
}

// TestConfigure: settings change by name; what is unknown or out of bounds changes
// nothing, and the shard count is fixed once a message exists.
func TestConfigure(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	before := one[string](t, conn, "select to_jsonb(outbox.settings())::text")
	for settings, code := range map[string]string{
		`null`: "OB001", `'[]'`: "OB001", `'1'`: "OB001",
		`'{"leese": "1 s"}'`: "OB001", `'{"singleton": true}'`: "OB001", `'{"lease": "1 s", "ctid": 1}'`: "OB001",
	} {
		_, err := conn.Exec(t.Context(), "select outbox.configure("+settings+")")
		wantError(t, err, code, "settings")
	}
	for _, settings := range []string{
		`{"shard_count": 0}`, `{"shard_count": 1025}`, `{"default_quota": -1}`, `{"lease": "0"}`, `{"retry_base": "2 h"}`,
		`{"retry_jitter": 1.1}`, `{"retry_jitter": "NaN"}`, `{"retry_multiplier": "Infinity"}`, `{"max_batch": 0}`, `{"retention": "-1 s"}`, `{"lease": null}`,
	} {
		_, err := conn.Exec(t.Context(), "select outbox.configure($1)", settings)
		wantError(t, err, "OB001", "What it takes: ") // by name, with its type and bounds
	}
	_, err := conn.Exec(t.Context(), `select outbox.configure('{"lease": "soon", "max_batch": 7}')`)
	wantError(t, err, "OB001", "interval, lease >= '00:00:01' and lease <= '1 day'; integer, max_batch >= 1 and max_batch <= 100000.")
	if after := one[string](t, conn, "select to_jsonb(outbox.settings())::text"); after != before {
		t.Errorf("settings were %s, are %s", before, after)
	}
	if got := one[string](t, conn, `select lease || ' ' || shard_count || ' ' || default_quota from outbox.configure('{"lease": "30 s", "shard_count": 7}')`); got != "00:00:30 7 256" {
		t.Errorf("configure gave %s", got)
	}
	if got := one[int](t, conn, "select cardinality(outbox.all_shards())"); got != 7 {
		t.Errorf("%d shards, want 7", got)
	}
	put(t, conn, "n", "q", "k")
	_, err = conn.Exec(t.Context(), `select outbox.configure('{"shard_count": 8}')`)
	wantError(t, err, "OB005", "shard_count is fixed at 7")
	run(t, conn, `select outbox.configure('{"shard_count": 7, "lease": "60 s"}')`)
	_, err = conn.Exec(t.Context(), "delete from outbox.config")
	wantError(t, err, "OB005")
}
