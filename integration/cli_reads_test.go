package integration

import (
	"strconv"
	"strings"
	"testing"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// TestCLIReads: what commands read to look messages up follows what they are asked for,
// also where the statistics say that the tables are empty (INV-14).
func TestCLIReads(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	planSettle(t, conn)
	stateFill(t, conn, stateEach)
	stateEmpty(t, conn)
	run(t, conn, `vacuum (analyze, truncate off)`)
	stateFill(t, conn, stateEach)
	run(t, conn, `select outbox.configure('{"count_cap": 10}'), pg_stat_force_next_flush()`)
	other := db.Connect(t, pgtest.Param("enable_nestloop", "off"))
	pick := func(from string) []string {
		return list[string](t, other, `select m.dispatch_key from outbox.message as m join `+from+` as s on s.id = m.id order by md5(s.id::text) limit 10`)
	}
	failed := `(select s.id from outbox.settled as s where s.outcome = 'failed')`
	var ids []string
	for _, id := range list[int64](t, other, `select x.id from `+failed+` as x order by x.id desc limit 10`) {
		ids = append(ids, strconv.FormatInt(id, 10))
	}
	picked := [][]string{pick("outbox.pending"), pick("outbox.claimed"), pick(failed)}
	if err := other.Close(t.Context()); err != nil { // what it has read is counted now
		t.Fatal(err)
	}
	const read = `select coalesce((select sum(s.seq_tup_read) from pg_stat_user_tables as s where s.schemaname = 'outbox'), 0)::bigint
		+ (select sum(greatest(s.idx_tup_read, s.idx_tup_fetch)) from pg_stat_user_indexes as s where s.schemaname = 'outbox')::bigint`
	for _, args := range [][]string{
		append([]string{"cancel"}, picked[0]...),
		append([]string{"cancel"}, picked[1]...),
		append([]string{"redrive"}, picked[2]...),
		{"redrive", "--id", strings.Join(ids, ",")},
		{"failed", "--limit", "10", "--scan", "100"},
		{"retry", picked[2][0]},
		{"why", picked[0][0]},
		{"why", picked[1][0]},
		{"status", "--scan", "3"},
	} {
		await(t, conn, "select count(*) = 1 from pg_stat_activity as a where a.datname = current_database() and a.backend_type = 'client backend'")
		before := one[int](t, conn, read)
		sweep(t, db.DSN, args...)
		await(t, conn, "select ("+read+") > $1 and (select count(*) = 1 from pg_stat_activity as a where a.datname = current_database() and a.backend_type = 'client backend')", before)
		if rows := one[int](t, conn, read) - before; rows > 400 {
			t.Errorf("INV-14: sweep %s read %d rows", args[0], rows)
		}
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
		{"status"}, {"failed"}, {"failed", "--group"}, {"redrive", "--error", "e", "--dry-run"}, {"nodes"}, {"explain"}, {"why", "k"}, {"check"}, {"quota", "acme"},
	} {
		got := sweepCall{dsn: role.DSN, args: args}.do(t)
		got.want(t, 0, args)
	}
	if n := one[int](t, db.Pool, "select count(*) from outbox.namespace"); n != 0 {
		t.Error("showing a quota set one")
	}
	for _, args := range [][]string{
		{"pause", "acme"},
		{"resume", "acme"},
		{"quota", "acme", "7"},
		{"cancel", "k"},
		{"cancel", "--namespace", "acme", "--yes"},
		{"redrive", "k"},
		{"retry", "k"},
		{"prune"},
		{"purge", "acme", "--yes"},
	} {
		sweepFails(t, role.DSN, 1, args, "25006", "default_transaction_read_only is on", "PGOPTIONS")
	}
	if got := one[string](t, db.Pool, "select status from outbox.messages"); got != "pending" {
		t.Errorf("the message is %s", got)
	}
	sweepCall{dsn: role.DSN, args: []string{"cancel", "k"}, env: []string{"PGOPTIONS=-c default_transaction_read_only=off"}}.do(t).want(t, 0, nil)
	if got := one[string](t, db.Pool, "select status from outbox.messages"); got != "cancelled" {
		t.Errorf("the message is %s, although the setting was overruled", got)
	}
}
