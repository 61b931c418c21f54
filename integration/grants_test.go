package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// The public functions, by the least role that may call them, each with arguments
// that are good enough to get past the permission.
var (
	producerCalls = []string{
		"enqueue('n', 'q', 'k1', '')", "enqueue_texts('{}', '{}', '{}', '{}')", "enqueue_json('n', 'q', 'k2', '{}')", "enqueue_batch('{n}', '{q}', '{k3}', '{x}')",
	}
	workerCalls = []string{
		"claim_fair('n1', '{0}', 1)", "complete('{}', '{}')", "retry('{}', '{}')", "fail('{}', '{}')", "release('{}', '{}')",
		"extend('{}', '{}')", "payloads('{}', '{}')", "begin_delivery('{}', '{}', 1)", "rescue()", "prune()", "heartbeat('n1')", "leave('n1')", "node_processes()", "all_shards()", "settings()",
		"node_ceiling(1, 1, 1)", "claim_obstacles()", "survey_namespaces()", "survey()", "horizon()", "check()",
		"fail_destination('{}', '{}', '{}')", "observe('{}', '{}')", "hold_events()",
	}
	operatorCalls = []string{
		"explain_claim('n1', '{0}', 1)", "why('k')", "configure('{}')", "quota('n')", "set_quota('n', 1)",
		"clear_quota('n')", "pause('n')", "resume('n')", "cancel('{}')", "cancel_namespace('n')", "redrive('{}'::bigint[])",
		"redrive('n', 1)", "lock_holders('n1')", "count_expired()", "unowned_shards()",
		"retry_now('{}'::text[])", "retry_now('n', 1)", "failed()", "purge('n', 1, 9223372036854775807)",
		"hold('n', 'q')", "lift('n', 'q')", "set_shared('q', true)",
		"known_namespaces()", "hold_reasons('{n}')", "route_state('n')", "message_headers('k')",
	}
	operatorViews = []string{"messages", "namespaces", "nodes", "pauses", "holds"}
)

// TestGrants: a producer can only enqueue, a worker also claim and settle, an operator
// everything; nobody can touch a table, a sequence or a private function, and who has
// no grant can do nothing.
func TestGrants(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	for _, c := range []struct {
		grant   string
		allowed [][]string
		views   bool
	}{
		{"", nil, false},
		{"producer", [][]string{producerCalls}, false},
		{"worker", [][]string{producerCalls, workerCalls}, false},
		{"operator", [][]string{producerCalls, workerCalls, operatorCalls}, true},
	} {
		role := db.Role(t)
		if c.grant != "" {
			run(t, db.Pool, "select outbox.grant_"+c.grant+"($1)", role.Name)
		}
		conn := db.Connect(t, pgtest.As(role))
		allowed := slices.Concat(c.allowed...)
		for _, call := range slices.Concat(producerCalls, workerCalls, operatorCalls) {
			checkAllowed(t, conn, c.grant, "select outbox."+call, slices.Contains(allowed, call))
		}
		for _, view := range operatorViews {
			checkAllowed(t, conn, c.grant, "select * from outbox."+view, c.views)
		}
		for _, rel := range list[string](t, db.Pool, "select relname from pg_class where relnamespace = 'outbox'::regnamespace and relkind = 'r'") {
			for _, statement := range []string{"select from outbox.%s", "insert into outbox.%s default values", "delete from outbox.%s", "truncate outbox.%s", "lock outbox.%s"} {
				checkAllowed(t, conn, c.grant, fmt.Sprintf(statement, rel), false)
			}
		}
		checkAllowed(t, conn, c.grant, "select nextval('outbox.claim_token')", false)
		checkAllowed(t, conn, c.grant, "create table outbox.mine ()", false)
		checkAllowed(t, conn, c.grant, "select outbox.grant_operator(current_user)", false)
		checkPrivate(t, conn, c.grant, allowed)
	}
}

// checkAllowed runs a statement and rolls it back.
func checkAllowed(t *testing.T, conn *pgx.Conn, who, sql string, want bool) {
	t.Helper()
	tx := begin(t, conn)
	defer tx.Rollback(t.Context()) //nolint:errcheck // whatever it did
	_, err := tx.Exec(t.Context(), sql)
	var pgErr *pgconn.PgError
	switch {
	case want && err != nil:
		t.Errorf("%q may not %s: %v", who, sql, err)
	case !want && !(errors.As(err, &pgErr) && pgErr.Code == "42501"):
		t.Errorf("%q may %s: %v", who, sql, err)
	}
}

// checkPrivate asks the catalog which functions a session may execute.
func checkPrivate(t *testing.T, conn *pgx.Conn, who string, allowed []string) {
	t.Helper()
	got := list[string](t, conn, `select distinct p.proname::text from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace
		where n.nspname = 'outbox' and p.proname <> 'ring' and has_function_privilege(p.oid, 'execute') order by 1`) // a view calls ring with its reader's rights
	names := map[string]bool{}
	for _, call := range allowed {
		name, _, _ := strings.Cut(call, "(")
		names[name] = true
	}
	for _, name := range got {
		if !names[name] {
			t.Errorf("%q may execute %s", who, name)
		}
		delete(names, name)
	}
	for name := range names {
		t.Errorf("%q may not execute %s", who, name)
	}
}

// TestGrantNames: roles whose names need quotes get their rights, and nothing else
// happens.
func TestGrantNames(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	role, admin := db.Role(t), db.Admin(t)
	cleaner, err := pgx.Connect(t.Context(), db.AdminDSN)
	if err != nil {
		t.Fatal(err)
	}
	name := role.Name + ` "x"; drop table outbox.message; --`
	run(t, admin, "create role "+pgx.Identifier{name}.Sanitize())
	t.Cleanup(func() {
		quoted := pgx.Identifier{name}.Sanitize()
		if _, err := cleaner.Exec(context.Background(), "drop owned by "+quoted+"; drop role "+quoted); err != nil {
			t.Error(err)
		}
		cleaner.Close(context.Background())
	})
	for _, grant := range []string{"producer", "worker", "operator"} {
		run(t, db.Pool, "select outbox.grant_"+grant+"($1)", name)
	}
	if !one[bool](t, db.Pool, "select has_function_privilege($1, 'outbox.why(text)', 'execute')", name) {
		t.Error("it has no rights")
	}
	_, err = db.Pool.Exec(t.Context(), "select outbox.grant_producer('no such role')")
	wantError(t, err, "42704")
}

// TestSearchPathAttack: what a caller puts in the way, in its own schema and in its
// temporary one, under any search_path, is not what a function of the owner runs.
func TestSearchPathAttack(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	role, admin := db.Role(t), db.Admin(t)
	run(t, db.Pool, "select outbox.grant_operator($1)", role.Name)
	run(t, admin, "create schema evil authorization "+role.Name)
	conn := db.Connect(t, pgtest.As(role))
	for _, sql := range []string{
		"create table evil.stolen (by name, what text)",
		"grant usage on schema evil to public; grant all on evil.stolen to public",
		"create function evil.steal(what text) returns void language plpgsql as 'begin insert into evil.stolen values (current_user, what); end'",
	} {
		run(t, conn, sql)
	}
	for name, args := range map[string]string{
		"clock_timestamp": "", "octet_length": "text", "octet_length ": "bytea", "hashtextextended": "text, bigint", "cardinality": "anyarray",
		"jsonb_typeof": "jsonb", "pg_try_advisory_xact_lock": "int, int", "nextval": "regclass", "format": "text, variadic text[]",
		"left": "text, int", "random": "", "current_setting": "text", "set_config": "text, text, boolean", "unnest": "bigint[]",
		"greatest": "interval, interval", "power": "float8, float8", "make_interval": "float8", "array_fill": "text, int[]",
	} {
		run(t, conn, fmt.Sprintf("create function evil.%q(%s) returns text language sql as $$ select evil.steal('%s'); select null::text $$", strings.TrimSpace(name), args, name))
	}
	for _, args := range []string{"timestamptz, interval", "bigint, bigint", "int, int", "text, text", "interval, interval"} {
		left, right, _ := strings.Cut(args, ", ")
		body := fmt.Sprintf("create function evil.op(%s) returns boolean language sql as $$ select evil.steal('operator %s'); select true $$", args, args)
		run(t, conn, body)
		for _, op := range []string{"=", "<=", "<", ">", "+", "-", "<>"} {
			run(t, conn, fmt.Sprintf("create operator evil.%s (function = evil.op, leftarg = %s, rightarg = %s)", op, left, right))
		}
	}
	for _, table := range []string{"pending", "claimed", "message", "config", "namespace", "pause", "settled", "failure", "walk", "route", "node", "shard"} {
		run(t, conn, "create table evil."+table+" ()")
		run(t, conn, "create temp table "+table+" ()")
	}
	run(t, conn, "create type evil.interval as (x int); create domain evil.jsonb as text")

	for _, path := range []string{"evil, pg_catalog, outbox", "evil, outbox, pg_temp, pg_catalog", "pg_temp, evil, pg_catalog"} {
		run(t, conn, "set search_path = "+path)
		for _, call := range slices.Concat(producerCalls, workerCalls, operatorCalls) {
			if _, err := conn.Exec(t.Context(), "select outbox."+call); err != nil {
				t.Errorf("with search_path = %s, %s: %v", path, call, err)
			}
		}
		for _, view := range operatorViews {
			if _, err := conn.Exec(t.Context(), "table outbox."+view); err != nil {
				t.Errorf("with search_path = %s, %s: %v", path, view, err)
			}
		}
		run(t, db.Pool, "delete from outbox.message")
		run(t, db.Pool, "delete from outbox.pending")
		run(t, db.Pool, "delete from outbox.claimed")
	}
	if got := list[string](t, admin, "select by || ' ran ' || what from evil.stolen where by <> $1", role.Name); len(got) != 0 {
		t.Errorf("somebody other than the caller, such as the owner, ran the trap: %q", got)
	}
}

// TestFunctionCatalog: every function says what it is for; one that runs with the
// owner's rights pins its search_path; one that does not either pins it too, or has
// a body that was bound when it was created; and each is closed to the public.
func TestFunctionCatalog(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	got := list[string](t, conn, `
		select p.oid::regprocedure || ': ' || concat_ws(', ',
			case when obj_description(p.oid, 'pg_proc') is null then 'no comment' end,
			case when not 'search_path=pg_catalog, pg_temp' = any (coalesce(p.proconfig, '{}')) and (p.prosecdef or p.prosqlbody is null)
			     then 'no pinned search_path' end,
			case when exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a where a.grantee = 0)
			       and p.proname <> 'ring' -- a view calls it with its reader's rights
			     then 'open to the public' end,
			case when p.proowner <> n.nspowner then 'not of the schema''s owner' end)
		from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace
		where n.nspname = 'outbox' order by 1`)
	if len(got) < 40 {
		t.Errorf("only %d functions", len(got))
	}
	for _, line := range got {
		if !strings.HasSuffix(line, ": ") {
			t.Error(line)
		}
	}
	for _, rel := range list[string](t, conn, `select c.oid::regclass::text from pg_class as c
		where c.relnamespace = 'outbox'::regnamespace and exists (select from aclexplode(c.relacl) as a where a.grantee = 0)`) {
		t.Errorf("%s is open to the public", rel)
	}
}

// TestPlpgsqlCheck lints the functions where the extension is at hand.
func TestPlpgsqlCheck(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	admin := db.Admin(t)
	if !one[bool](t, admin, "select exists (select from pg_available_extensions where name = 'plpgsql_check')") {
		t.Log("the server has no plpgsql_check: the functions were not linted")
		return
	}
	run(t, admin, "create schema lint; create extension plpgsql_check schema lint")
	for _, line := range list[string](t, admin, `
		select format('%s line %s: %s (%s)', p.oid::regprocedure, c.lineno, c.message, c.level)
		from pg_proc as p
		cross join lateral lint.plpgsql_check_function_tb(p.oid, relid => coalesce((select t.tgrelid from pg_trigger as t where t.tgfoid = p.oid), 0),
			security_warnings => true, performance_warnings => false, extra_warnings => false) as c
		where c.message not in ('target type is different type than source type', 'name of parameter "only" is reserved keyword')
		  and p.pronamespace = 'outbox'::regnamespace and p.prolang = (select l.oid from pg_language as l where l.lanname = 'plpgsql')`) {
		t.Error(line)
	}
}

// Rights over all messages are nobody's who is not named.
func TestGrantsToPublic(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn, nobody := db.Connect(t), db.Connect(t, pgtest.As(db.Role(t)))
	for _, role := range []string{"'public'", "null"} {
		for _, grant := range []string{"grant_worker", "grant_operator"} {
			_, err := conn.Exec(t.Context(), "select outbox."+grant+"("+role+")")
			wantError(t, err, "OB001", grant, "role", "every role", "Name")
		}
	}
	_, err := nobody.Exec(t.Context(), "select outbox.enqueue('n', 'q', 'k', ''::bytea)")
	wantError(t, err, "42501")
	run(t, conn, "select outbox.grant_producer('public')") // whom a database is open to may be meant to enqueue
	run(t, nobody, "select outbox.enqueue('n', 'q', 'k', ''::bytea)")
	_, err = nobody.Exec(t.Context(), "select outbox.claim_fair('n1', '{0}', 1)")
	wantError(t, err, "42501")
}
