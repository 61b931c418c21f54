package integration

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// oddSettings are what a role, or a whole database, may have for its sessions: most change
// the text in which values come and go.
var oddSettings = []string{
	"set bytea_output = 'escape'", "set datestyle = 'German'", "set intervalstyle = 'sql_standard'", "set extra_float_digits = -15",
	"set timezone = 'Asia/Kathmandu'", "set default_transaction_isolation = 'serializable'", "set quote_all_identifiers = on",
	"set xmlbinary = 'hex'", "set lc_monetary = 'C'", "set transform_null_equals = on",
	"set row_security = off", "set search_path = ''", "set default_transaction_deferrable = on", "set plan_cache_mode = 'force_custom_plan'",
	"set enable_indexscan = off", "set enable_indexonlyscan = off", "set enable_sort = off", "set enable_nestloop = off", "set enable_hashagg = off",
	"set lock_timeout = '10 min'", "set statement_timeout = '10 min'", "set idle_in_transaction_session_timeout = '10 min'",
}

// What the driver reads depends on no setting of a role, in whatever query mode: payloads,
// headers, instants and spans come back as they are.
func TestRoleSettingsAndDriver(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	role := db.Role(t, oddSettings...)
	run(t, db.Pool, "select outbox.grant_operator($1)", role.Name)
	run(t, db.Pool, `select outbox.configure('{"lease": "1 min 234.567 ms", "node_lapse": "12.345678 s"}')`)
	for _, mode := range execModes {
		config, err := pgxpool.ParseConfig(role.DSN)
		if err != nil {
			t.Fatal(err)
		}
		config.ConnConfig.DefaultQueryExecMode = mode
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		driverCalls(t, pool, db.Pool, mode.String())
		if _, err := driver.Enqueue(t.Context(), pool, driver.Message{
			Namespace: "once", TaskQueue: "q", DispatchKey: mode.String(), Payload: allBytes(), Delay: time.Microsecond,
		}); err != nil {
			t.Fatal(err)
		}
		var sink collector
		s, err := node.New(pool, node.Config{Node: "n2", Sink: &sink})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Once(t.Context(), 0); err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		if got := sink.messages(); len(got) != 1 || string(got[0].Payload) != string(allBytes()) {
			t.Errorf("%s: delivered %v", mode, got)
		}
	}
}

// A session in another encoding is refused before texts are garbled in it.
func TestEncodingIsRefused(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	role := db.Role(t, "set client_encoding = 'latin1'")
	run(t, db.Pool, "select outbox.grant_worker($1)", role.Name)
	conn := db.Connect(t, pgtest.As(role))
	m := driver.Message{Namespace: "mö", TaskQueue: "q", DispatchKey: "k"}
	if _, err := driver.Enqueue(t.Context(), conn, m); !errors.Is(err, driver.ErrEncoding) || !strings.Contains(err.Error(), "LATIN1") {
		t.Errorf("Enqueue: %v", err)
	}
	tx := begin(t, conn)
	if _, err := driver.EnqueueBatch(t.Context(), tx, []driver.Message{m}); !errors.Is(err, driver.ErrEncoding) {
		t.Errorf("EnqueueBatch: %v", err)
	}
	commit(t, tx) // the transaction is not aborted
	s, err := node.New(conn, node.Config{Node: "n1", Sink: &collector{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Once(t.Context(), 0); !errors.Is(err, driver.ErrEncoding) {
		t.Errorf("Once: %v", err)
	}
	utf8 := db.Connect(t, pgtest.As(role), pgtest.Param("client_encoding", "UTF8"))
	if e, err := driver.Enqueue(t.Context(), utf8, m); err != nil || e.Duplicate {
		t.Errorf("Enqueue: %+v, %v", e, err)
	}
}

// What a role has set for its sessions changes nothing of what sweep reads and writes, in
// whatever query mode its connection string asks for.
func TestRoleSettingsAndSweep(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	role := db.Role(t, append(oddSettings, "set client_encoding = 'latin1'", "set standard_conforming_strings = off",
		"set backslash_quote = on", "set escape_string_warning = off")...)
	run(t, db.Pool, "select outbox.grant_operator($1)", role.Name)
	const bytes = "/wAB8FxcJw==" // what no text could hold, backslashes and a quote
	for _, mode := range execModes {
		dsn := withParam(role.DSN, "default_query_exec_mode="+strings.ReplaceAll(mode.String(), " ", "_"))
		key := mode.String()
		line := `{"namespace":"mö😀","task_queue":"q\\","dispatch_key":"` + key + `'\\","payload_base64":"` + bytes + `","delay":"0s"}` + "\n"
		sweepWith(t, dsn, line, "enqueue")
		stored := one[[]byte](t, db.Pool, `select m.payload from outbox.messages as m where m.namespace = 'mö😀' and m.dispatch_key = $1`, key+`'\`)
		if got := base64.StdEncoding.EncodeToString(stored); got != bytes {
			t.Errorf("%s: stored %s", mode, got)
		}
		sweep(t, dsn, "pause", "mö😀", "--note", `\'`)
		type state struct {
			Pauses []struct {
				Since time.Time
				Note  string
			}
		}
		got, want := fromJSON[state](t, sweep(t, dsn, "status", "--json")), fromJSON[state](t, sweep(t, db.DSN, "status", "--json"))
		if len(got.Pauses) != 1 || !got.Pauses[0].Since.Equal(want.Pauses[0].Since) || got.Pauses[0].Note != `\'` {
			t.Errorf("%s: status says %+v, as another role %+v", mode, got, want)
		}
		sweep(t, dsn, "why", key+`'\`)
		sweep(t, dsn, "nodes")
		sweep(t, dsn, "check")
		sweep(t, dsn, "hold", "mö😀", "--queue", `q\`, "--for", "1h", "--reason", `\'`)
		if got, want := sweep(t, dsn, "holds", "--json"), sweep(t, db.DSN, "holds", "--json"); got != want || !strings.Contains(got, `\\'`) {
			t.Errorf("%s: holds says %s, as another role %s", mode, got, want)
		}
		sweep(t, dsn, "lift", "mö😀", "--queue", `q\`)
		sweep(t, dsn, "failed")
		sweep(t, dsn, "retry", "--namespace", "mö😀")
		sweep(t, dsn, "redrive", "--namespace", "mö😀")
		sweep(t, dsn, "explain")
		sweep(t, dsn, "resume", "mö😀")
		if got := sweep(t, dsn, "once", "--sink", "stdout"); !strings.Contains(got, `"mö😀"`) || !strings.Contains(got, bytes) {
			t.Errorf("%s: delivered %q", mode, got)
		}
	}
}
