package integration

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// TestShardsAreEven: 200,000 keys of each kind land in 0 to n - 1, evenly.
func TestShardsAreEven(t *testing.T) {
	t.Parallel()
	const keys = 200_000
	conn := pg.New(t).Connect(t)
	for _, kind := range []string{"'order-' || g", "'заказ-😀-' || g", "g::text"} {
		for _, shards := range []int{1, 7, 64, 1024} {
			counts := list[int](t, conn, `select count(k.shard) from generate_series(0, $1 - 1) as s
				left join (select outbox.shard_of(`+kind+`, $1) as shard from generate_series(1, $2) as g) as k on k.shard = s
				group by s order by s`, shards, keys)
			mean := float64(keys) / float64(shards)
			allowed := mean / 10
			if shards == 1024 {
				allowed = 5 * math.Sqrt(mean*(1-1/float64(shards)))
			}
			total := 0
			for shard, n := range counts {
				total += n
				if math.Abs(float64(n)-mean) > allowed {
					t.Errorf("%s on %d shards: shard %d has %d, want %.0f within %.0f", kind, shards, shard, n, mean, allowed)
				}
			}
			if total != keys || len(counts) != shards {
				t.Errorf("%s on %d shards: %d keys in %d shards", kind, shards, total, len(counts))
			}
		}
	}
}

// TestStoredShard: what enqueue and enqueue_batch store is the shard of the key.
func TestStoredShard(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	for _, shards := range []int{1, 7, 64, 1024} {
		run(t, conn, "select outbox.configure(jsonb_build_object('shard_count', $1::int))", shards)
		run(t, conn, "select outbox.enqueue('n', 'q', 'one-' || g, '') from generate_series(1, 200) as g")
		run(t, conn, `select outbox.enqueue_batch(array_fill('n'::text, array[200]), array_fill('q'::text, array[200]),
			array(select 'batch-' || g from generate_series(1, 200) as g), array_fill(''::bytea, array[200]))`)
		if !one[bool](t, conn, "select count(*) = 400 and bool_and(m.shard = outbox.shard_of(m.dispatch_key, $1)) from outbox.messages as m", shards) {
			t.Errorf("with %d shards, others were stored", shards)
		}
		run(t, conn, "delete from outbox.pending")
		run(t, conn, "delete from outbox.message")
	}
}

// nastyNames are namespaces that have broken something somewhere.
func nastyNames() []string {
	return []string{
		`'`, `"`, `\`, `\'`, `'; drop table outbox.message; --`, `%`, `%s%n%1$s`, `$1`, `$$`, `a;b`, "tab\there", "line\nfeed\r", " ",
		"שלום עולם", "\u202eevil", "👩‍👩‍👧", "e\u0301te\u0301", "été", "NULL", "{}", `{"a,b",c}`, `E'\\x41'`, "\x01\x7f", "ns/with/slashes",
		strings.Repeat("ä", 256), strings.Repeat("'", 512), "\ufeffbom", string(rune(0x10FFFF)),
	}
}

// TestNastyNames takes each through every path, with standard_conforming_strings on
// and off.
func TestNastyNames(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	for _, conforming := range []string{"on", "off"} {
		conn := db.Connect(t, pgtest.Param("standard_conforming_strings", conforming), pgtest.Param("escape_string_warning", "off"))
		for _, name := range nastyNames() {
			everyPath(t, db.Pool, conn, name, name)
		}
	}
}

// TestUnicodeForms: both forms of one word are two namespaces, and two keys.
func TestUnicodeForms(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	composed, decomposed := "caf\u00e9", "cafe\u0301"
	put(t, conn, composed, "q", composed)
	put(t, conn, decomposed, "q", decomposed)
	run(t, conn, "select outbox.set_quota($1, 0)", composed)
	rows := claim(t, conn, "n1", 10)
	if len(rows) != 1 || rows[0].Namespace != decomposed || rows[0].Key != decomposed {
		t.Errorf("claimed %+v, want the decomposed form alone", rows)
	}
	if got := list[string](t, conn, "select namespace from outbox.namespaces order by 1"); !slices.Equal(got, []string{decomposed, composed}) {
		t.Errorf("namespaces are %q", got)
	}
}

// TestSessionSettings: how a session wants its dates, intervals, bytes and arrays
// written changes nothing of what the functions do.
func TestSessionSettings(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	for i, settings := range []map[string]string{
		{"DateStyle": "SQL, DMY", "IntervalStyle": "sql_standard", "bytea_output": "escape", "TimeZone": "America/New_York"},
		{"DateStyle": "German", "IntervalStyle": "iso_8601", "extra_float_digits": "-15", "TimeZone": "Asia/Kathmandu"},
		{"DateStyle": "Postgres, MDY", "IntervalStyle": "postgres_verbose", "array_nulls": "off", "transform_null_equals": "on"},
		{"quote_all_identifiers": "on", "enable_indexscan": "off", "enable_sort": "off"},
		{"idle_in_transaction_session_timeout": "5s", "search_path": "", "default_transaction_deferrable": "on"},
		{"idle_in_transaction_session_timeout": "1d", "plan_cache_mode": "force_custom_plan", "row_security": "off"},
	} {
		var opts []pgtest.ConnOption
		for name, value := range settings {
			opts = append(opts, pgtest.Param(name, value))
		}
		everyPath(t, db.Pool, db.Connect(t, opts...), fmt.Sprint("settings ", i), "q")
	}
}

// TestDefaultIsolation: with a stricter default isolation a bare claim is refused with
// a hint, for it could not count (INV-1, INV-4); in a transaction that says read
// committed it works, and every other function works anyway.
func TestDefaultIsolation(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	for _, level := range []string{"repeatable read", "serializable"} {
		role := db.Role(t, "set default_transaction_isolation = '"+level+"'")
		run(t, db.Pool, "select outbox.grant_operator($1)", role.Name)
		conn := db.Connect(t, pgtest.As(role))
		if got := one[string](t, conn, "show transaction_isolation"); got != level {
			t.Fatalf("the role's isolation is %s", got)
		}
		put(t, conn, level, "q", "kept "+level)
		_, err := conn.Exec(t.Context(), "select outbox.claim_fair('n1', outbox.all_shards(), 10)")
		wantError(t, err, "OB002", "isolation is "+level, "begin isolation level read committed")
		run(t, conn, "select outbox.cancel_namespace($1)", level)
		run(t, conn, "select outbox.prune('0')")
		everyPath(t, db.Pool, conn, "path "+level, "q")
	}
}

// TestPayloads come out as they went in.
func TestPayloads(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	want := map[string][]byte{
		"empty": {}, "null": []byte("null"), "zeros": make([]byte, 3), "large": bytes.Repeat([]byte("0123456789abcdef"), 1<<16),
		"not UTF-8": {0xff, 0xfe, '\\', '\'', 0}, "signed": []byte(`{ "b" : 1, "a":2 , "a": 3 }`),
	}
	for key, payload := range want {
		run(t, conn, "select outbox.enqueue('n', 'q', $1, $2::bytea)", key, payload)
	}
	run(t, conn, "select outbox.enqueue_json('n', 'q', 'json null', 'null')")
	want["json null"] = []byte("null")
	rows := claim(t, conn, "n1", 10)
	if len(rows) != len(want) {
		t.Errorf("claimed %d, want %d", len(rows), len(want))
	}
	for _, row := range rows {
		if !bytes.Equal(row.Payload, want[row.Key]) {
			t.Errorf("payload %q came out as %.40q", row.Key, row.Payload)
		}
	}
}

// TestTimeZones: sessions whose clocks change within the hour, in either direction,
// agree with each other on delays, leases and what is due (INV-15).
func TestTimeZones(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	admin := db.Connect(t)
	// A zone that is at UTC now and goes an hour on (or back) half an hour from now.
	now := one[time.Time](t, admin, "select clock_timestamp()").UTC()
	change := now.Add(30 * time.Minute)
	rule := func(at time.Time) string {
		day := at.YearDay()
		if at.Year()%4 == 0 && day > 59 {
			day-- // J counts no leap day
		}
		return fmt.Sprintf("J%d/%s", day, at.Format("15:04:05"))
	}
	back := change.AddDate(0, 0, 100)
	zones := []string{
		"UTC", "America/New_York", "Asia/Kathmandu", "Pacific/Apia", "Australia/Lord_Howe",
		fmt.Sprintf("AAA0BBB,%s,%s", rule(change), rule(back)),
		fmt.Sprintf("AAA1BBB0,%s,%s", rule(back), rule(change)),
	}
	for i, zone := range zones {
		conn := db.Connect(t, pgtest.Param("TimeZone", zone))
		writer := fmt.Sprint("zone ", i)
		run(t, conn, "select outbox.enqueue($1, 'later', $1 || ' later', '', delay => '2 h'), outbox.enqueue($1, 'now', $1 || ' now', '')", writer)
		for _, reader := range zones {
			other := db.Connect(t, pgtest.Param("TimeZone", reader))
			if !one[bool](t, other, `select extract(epoch from visible_after - created_at) = 7200 and abs(extract(epoch from created_at) - extract(epoch from clock_timestamp())) < 60
				from outbox.messages where dispatch_key = $1 || ' later'`, writer) {
				t.Errorf("what was enqueued in %s is due at another time in %s", zone, reader)
			}
		}
		row := claimOne(t, conn, writer)
		if lease := row.LeaseUntil.Sub(now); row.Queue != "now" || lease < 59*time.Second || lease > 2*time.Minute {
			t.Errorf("in %s: claimed %s with a lease of %v", zone, row.Queue, lease)
		}
		other := db.Connect(t, pgtest.Param("TimeZone", zones[(i+1)%len(zones)]))
		if got := list[int64](t, other, "select id from outbox.rescue()"); len(got) != 0 {
			t.Errorf("a lease of %s had expired in another zone", zone)
		}
		settle(t, other, "complete", row.ID, row.Token)
	}
}

// everyPath takes a namespace and a task queue through every public function.
func everyPath(t *testing.T, owner querier, conn *pgx.Conn, namespace, queue string) {
	t.Helper()
	head := fmt.Sprintf("%.120s", namespace) // characters
	key := func(n int) string { return fmt.Sprint(n, head) }
	check := func(what string, ok bool) {
		t.Helper()
		if !ok {
			t.Errorf("namespace %.40q: %s", namespace, what)
		}
	}
	claimed := func() []claimRow {
		t.Helper()
		tx := begin(t, conn)
		rows := claim(t, tx, namespace, 10)
		commit(t, tx)
		return rows
	}
	reason := func() string {
		t.Helper()
		return one[string](t, conn, "select reason from outbox.explain_claim('n1', outbox.all_shards(), 10, \"only\" => $1) where namespace = $1", namespace)
	}
	run(t, conn, "select outbox.enqueue($1, $2, $3, 'x')", namespace, queue, key(1))
	check("no duplicate", one[*int64](t, conn, "select outbox.enqueue($1, $2, $3, 'x')", namespace, queue, key(1)) == nil)
	run(t, conn, "select outbox.enqueue_batch(array[$1, $1], array[$2, $2], array[$3, $4], '{x,x}')", namespace, queue, key(2), key(3))
	run(t, conn, "select outbox.enqueue_json($1, $2, $3, to_jsonb($1::text), jsonb_build_object($1::text, $2::text))", namespace, queue, key(4))
	check("explain", reason() == "served 4 of 4")
	why := one[string](t, conn, "select reason from outbox.why($1)", key(1))
	check("why is "+why, strings.HasPrefix(why, "due: "))

	run(t, conn, "select outbox.set_quota($1, 3, true)", namespace)
	for _, pause := range []string{"$1", "$1, $2::text", "null, $2::text"} {
		args := []any{namespace, queue}
		sql := func(call, rest string) string {
			return "select outbox." + call + "(" + pause + rest + ") where $1::text is not null and $2::text is not null"
		}
		check("pause", one[bool](t, conn, sql("pause", ", note => $1"), args...))
		check("paused is "+reason(), strings.Contains(reason(), "paused by ") && strings.Contains(reason(), `, "`+namespace))
		check("claimed what is paused", len(claimed()) == 0)
		check("resume", one[bool](t, conn, sql("resume", ""), args...))
	}
	rows := claimed()
	if len(rows) != 3 {
		t.Errorf("namespace %.40q: claimed %d, want 3", namespace, len(rows))
		return
	}
	for _, row := range rows {
		check("came out as another", row.Namespace == namespace && row.Queue == queue && strings.HasSuffix(row.Key, head))
	}
	check("ceiling: "+reason(), reason() == "at its ceiling, 3 of 3")
	check("clear_quota", one[bool](t, conn, "select outbox.clear_quota($1)", namespace))
	for how, row := range map[string]claimRow{"retry": rows[0], "fail": rows[1]} {
		got := list[int64](t, conn, "select outbox."+how+"(array[$1::bigint], array[$2::bigint], array[$3])", row.ID, row.Token, namespace)
		check(how, len(got) == 1 && one[string](t, conn, "select error from outbox.messages where id = $1", row.ID) == namespace)
		check("why failed", strings.Contains(one[string](t, conn, "select failures[1] from outbox.why($1)", row.Key), namespace))
	}
	check("extend", settle(t, conn, "extend", rows[2].ID, rows[2].Token))
	check("complete", settle(t, conn, "complete", rows[2].ID, rows[2].Token))
	check("namespaces", one[string](t, conn, "select concat(pending, claimed, failed) from outbox.namespaces where namespace = $1", namespace) == "201")
	check("messages", one[int](t, conn, "select count(*) from outbox.messages where namespace = $1 and task_queue = $2", namespace, queue) == 4)
	dead := list[string](t, conn, "select dispatch_key from outbox.failed($1, $2, $1)", namespace, queue)
	check("failed", slices.Equal(dead, []string{rows[1].Key}) || slices.Equal(dead, []string{rows[0].Key}))
	check("retry_now", one[int](t, conn, "select count(*) from outbox.retry_now(array[$1]) as k where k = $1", rows[0].Key) == 1)
	check("retry_now of the namespace", one[int](t, conn, "select outbox.retry_now($1::text)", namespace) == 0)
	check("redrive", one[int](t, conn, "select outbox.redrive($1::text)", namespace) == 1)
	check("cancel", one[string](t, conn, "select was from outbox.cancel(array[$1]) where dispatch_key = $1", rows[0].Key) == "pending")
	check("cancel_namespace", one[int](t, conn, "select outbox.cancel_namespace($1)", namespace) == 2)
	run(t, conn, "select outbox.enqueue($1, $2, $3, 'x')", namespace, queue, key(5))
	everyHold(t, owner, conn, namespace, queue, key(5))
	check("cancel", one[string](t, conn, "select was from outbox.cancel(array[$1]) where dispatch_key = $1", key(5)) == "pending")
	run(t, conn, "select outbox.heartbeat($1, outbox.all_shards(), $1)", namespace)
	check("nodes", one[bool](t, conn, "select live and paused = $1 from outbox.nodes where node = $1", namespace))
	check("leave", one[bool](t, conn, "select outbox.leave($1)", namespace))
	check("purge", one[int](t, conn, "select purged from outbox.purge($1)", namespace) == 5)
	check("prune", one[int](t, conn, "select outbox.prune('0', failed => true)") == 0)
}
