package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// traps gives public a copy of each function, operator, type and view of pg_catalog that a
// role may make one of, and lets every session look there first. Whatever is called by
// search_path runs into one: it raises, and leaves a mark that outlives its transaction.
const traps = `
create sequence public.sprung;
grant usage on sequence public.sprung to public;
create function public.sprung() returns boolean language plpgsql set search_path = pg_catalog as $$
begin
  perform nextval('public.sprung');
  raise exception 'a trap ran as %', current_user;
end $$;
do $do$
declare
  r record;
begin
  for r in
    select p.proname, oidvectortypes(p.proargtypes) as args, format_type(p.prorettype, null) as result, p.proretset
    from pg_proc as p
    where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind <> 'p'
      and not '{internal,cstring,"\"any\"",trigger,event_trigger,language_handler}'::regtype[]::oid[] && (p.proargtypes::oid[] || p.prorettype)
  loop
    begin
      execute format('create function public.%I(%s) returns %s %s language plpgsql as $$ begin perform public.sprung(); end $$',
        r.proname, r.args, case when r.proretset then 'setof' end, r.result);
    exception when others then -- not every one can be made in plpgsql
    end;
  end loop;
  for r in
    select o.oid, o.oprname, o.oprleft::regtype as l, o.oprright::regtype as r, o.oprresult::regtype as result, o.oprleft = 0 as prefix
    from pg_operator as o where o.oprnamespace = 'pg_catalog'::regnamespace
  loop
    begin
      if r.prefix then
        execute format('create function public.op_%s(%s) returns %s language plpgsql as $$ begin perform public.sprung(); end $$', r.oid, r.r, r.result);
        execute format('create operator public.%s (rightarg = %s, function = public.op_%s)', r.oprname, r.r, r.oid);
      else
        execute format('create function public.op_%s(%s, %s) returns %s language plpgsql as $$ begin perform public.sprung(); end $$', r.oid, r.l, r.r, r.result);
        execute format('create operator public.%s (leftarg = %s, rightarg = %s, function = public.op_%s)', r.oprname, r.l, r.r, r.oid);
      end if;
    exception when others then
    end;
  end loop;
  for r in select t.typname from pg_type as t where t.typnamespace = 'pg_catalog'::regnamespace and t.typtype = 'b' and t.typcategory <> 'A' loop
    begin
      execute format('create domain public.%I as pg_catalog.%I check (public.sprung())', r.typname, r.typname);
    exception when others then
    end;
  end loop;
  for r in select c.relname from pg_class as c where c.relnamespace = 'pg_catalog'::regnamespace and c.relkind in ('r', 'v') loop
    execute format('create view public.%I as select public.sprung()', r.relname);
    execute format('grant select on public.%I to public', r.relname);
  end loop;
end $do$;
-- What an exact match makes better than pg_catalog's own, wherever public stands.
create function public.unnest(text[]) returns setof text language plpgsql as $$ begin perform public.sprung(); end $$;
create function public.hashtextextended(text, int) returns bigint language plpgsql as $$ begin perform public.sprung(); end $$;
create function public.concat_ws(text, text, name) returns text language plpgsql as $$ begin perform public.sprung(); end $$;
`

// trapped is a database with traps, and a connection past them.
func trapped(t *testing.T) (*pgtest.DB, *pgx.Conn) {
	t.Helper()
	db := pg.New(t)
	admin := db.Admin(t, pgtest.Param("search_path", "pg_catalog"))
	run(t, admin, traps)
	run(t, admin, "alter database "+db.Name+" set search_path = public, pg_catalog")
	// It is the traps that are tested, so they must be there.
	conn := db.Connect(t)
	for _, sql := range []string{
		"select 1 = 1", "select now()", "select 'a'::text", "select 'x' like 'y'", "select lower('A')",
		"select * from pg_stat_activity", "select nullif(1, 1)", "select * from unnest('{a}'::pg_catalog.text[])", "select 1 in (1)",
	} {
		if _, err := conn.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "trap") {
			t.Errorf("%s runs into no trap: %v", sql, err)
		}
	}
	run(t, admin, "alter sequence public.sprung restart")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience())
		defer cancel()
		var sprung bool
		if err := admin.QueryRow(ctx, "select is_called from public.sprung").Scan(&sprung); err != nil || sprung {
			t.Errorf("a trap was run into: %v (%v)", sprung, err)
		}
	})
	return db, db.Connect(t, pgtest.Param("search_path", "pg_catalog"))
}

// Objects in public answer no call that a command of sweep makes, whichever command and
// query mode.
func TestTrapsAndSweep(t *testing.T) {
	t.Parallel()
	db, conn := trapped(t)
	day := &badDay{t: t, db: db, hooks: newHooks(t)}
	ran := map[string]bool{}
	for _, mode := range []string{"cache_describe", "exec", "simple_protocol"} {
		dsn := withParam(db.DSN, "default_query_exec_mode="+mode)
		do := func(stdin string, args ...string) string {
			t.Helper()
			ran[args[0]], ran[strings.Join(args[:min(2, len(args))], " ")] = true, true
			got := sweepCall{dsn: dsn, stdin: stdin, args: args}.do(t)
			if got.code != 0 || strings.Contains(got.stdout+got.stderr, "trap") {
				t.Errorf("%s: sweep %q: exit %d\n%s%s", mode, args, got.code, got.stdout, got.stderr)
			}
			return got.stdout
		}
		var lines strings.Builder
		for i := range 7 {
			fmt.Fprintf(&lines, `{"namespace": "n%d", "task_queue": "q", "dispatch_key": "%s%d", "payload": {"n": %d}}`+"\n", i%3, mode, i, i)
		}
		do(lines.String(), "enqueue")
		do(lines.String(), "enqueue", "--strict")
		do("", "quota", "n1", "9", "--strict")
		do("", "quota", "n1", "--default")
		do("", "pause", "n1", "--note", "why")
		do("", "status")
		do("", "explain")
		do("", "explain", "--shards", "0-3", "--only", "n1", "--max-bytes", "10")
		do("", "why", mode+"1")
		do("", "resume", "n1")
		do("", "hold", "n1", "--queue", "q", "--for", "1h", "--reason", "why")
		do("", "holds", "n1")
		do("", "lift", "n1", "--queue", "q")
		do("", "hold", "n1", "--queue", "q", "--until", time.Now().Add(time.Hour).Format(time.RFC3339))
		do("", "lift", "n1", "--queue", "q")
		do("", "shared", "q", "yes")
		do("", "shared", "q", "auto")
		run(t, conn, "update outbox.destination set lifted_at = lifted_at - interval '1 minute'")
		pages := serveUI(t, dsn, "--actions")
		ran["ui"] = true
		for _, path := range []string{"/", "/tenant?name=n1", "/failed", "/nodes", "/message?key=" + mode + "1"} {
			if text := pages.page(t, path); strings.Contains(text, "trap") {
				t.Errorf("%s: %s shows %s", mode, path, text)
			}
		}
		_ = pages.cmd.Process.Kill()
		<-pages.done
		do("", "cancel", mode+"1", mode+"2")
		do("", "cancel", "--namespace", "n2", "--yes")
		do("", "failed")
		do("", "failed", "--group", "--namespace", "n1")
		do("", "retry", mode+"4")
		do("", "retry", "--namespace", "n1")
		do("", "redrive", mode+"1")
		do("", "redrive", "--namespace", "n2", "--error", "e", "--rate", "50/s")
		do("", "redrive", "--namespace", "n2")
		do("", "redrive", "--id", fmt.Sprint(one[int64](t, conn, "select id from outbox.message where dispatch_key = $1", mode+"2")))
		if got := do("", "once", "--sink", "stdout"); !strings.Contains(got, mode+"1") {
			t.Errorf("%s: once delivered %q", mode, got)
		}
		node := day.node("n1", dsn)
		ran["run"] = true
		do(strings.ReplaceAll(lines.String(), mode, "run "+mode), "enqueue")
		await(t, conn, "select count(*) = 7 from outbox.settled as s join outbox.message as m using (id) where m.dispatch_key like $1 and s.outcome = 'done'", "run "+mode+"%")
		do("", "nodes")
		do("", "explain", "--node", "n1", "--shards", "auto")
		node.stop(t)
		if log := node.log.String(); strings.Contains(log, "trap") {
			t.Errorf("%s: run logs %s", mode, log)
		}
		do("", "check")
		do("", "purge", "n0", "--yes")
		do("", "prune", "--older-than", "0s", "--failed", "--yes")
		do("", "completion", "bash")
		do("", "man")
		do("", "version")
		do("", "help")
		do("", "migrate", "version")
		do("", "migrate", "sql")
		do("", "migrate", "down", "--to", "0", "--yes")
		do("", "migrate", "up")
	}
	help := sweep(t, "", "--help")
	_, commands, _ := strings.Cut(help, "Commands:\n")
	for line := range strings.Lines(commands) {
		name, _, _ := strings.Cut(strings.TrimPrefix(line, "  "), "  ")
		if strings.HasPrefix(line, "  ") && !strings.HasPrefix(line, "   ") && !ran[name] {
			t.Errorf("%q did not run", name)
		}
	}
}

// withParam adds a parameter to a connection string of either form.
func withParam(dsn, param string) string {
	if strings.Contains(dsn, "://") {
		if strings.Contains(dsn, "?") {
			return dsn + "&" + param
		}
		return dsn + "?" + param
	}
	return dsn + " " + param
}

// No call of the package driver runs into what stands in public, and none changes a
// setting of the session that it is made in.
func TestTrapsAndDriver(t *testing.T) {
	t.Parallel()
	db, conn := trapped(t)
	for _, mode := range execModes {
		config, err := pgxpool.ParseConfig(db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		config.ConnConfig.DefaultQueryExecMode = mode
		config.MaxConns = 4
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		driverCalls(t, pool, conn, mode.String())

		sqlDB := stdlib.OpenDB(*config.ConnConfig)
		defer sqlDB.Close()
		for i := range 2 { // the second time they are duplicates
			m := driver.Message{Namespace: "sql", TaskQueue: "q", DispatchKey: mode.String() + "sql", Payload: allBytes()}
			e, err := driver.EnqueueSQL(t.Context(), sqlDB, m)
			if err != nil || e.Duplicate != (i == 1) {
				t.Errorf("%s: EnqueueSQL: %+v, %v", mode, e, err)
			}
			m.DispatchKey += "batch"
			if _, err := driver.EnqueueBatchSQL(t.Context(), sqlDB, []driver.Message{m}); err != nil {
				t.Errorf("%s: EnqueueBatchSQL: %v", mode, err)
			}
		}
		var sink collector
		s, err := node.New(pool, node.Config{Node: "n2", Sink: &sink, Batch: 7})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Once(t.Context(), 0); err != nil || len(sink.keys()) == 0 {
			t.Errorf("%s: Once: %v, %d deliveries", mode, err, len(sink.keys()))
		}
	}
}

// driverCalls makes every call of the package that reaches the database, in sessions
// with odd settings too, and looks at all that comes back.
func driverCalls(t *testing.T, db *pgxpool.Pool, past querier, prefix string) {
	t.Helper()
	ctx := t.Context()
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %s: %v", prefix, what, err)
		}
	}
	want := map[string][]byte{"empty": {}, "text": []byte(`a\b'"`), "hex": []byte(`\x4142`), "all": allBytes()}
	for key, payload := range want {
		m := driver.Message{Namespace: "ns", TaskQueue: "q", DispatchKey: prefix + key, Payload: payload, Headers: map[string]string{"k": key}}
		var err error
		if key == "hex" {
			_, err = driver.Enqueue(ctx, db, m)
		} else {
			_, err = driver.EnqueueBatch(ctx, db, []driver.Message{m})
		}
		must("enqueue", err)
	}
	beat, err := driver.Heartbeat(ctx, db, driver.HeartbeatRequest{Node: prefix, Process: "p", Paused: "for a test", InFlightBytes: 3})
	must("Heartbeat", err)
	if len(beat.Shards) == 0 || beat.AgainIn < time.Second || beat.AgainIn > time.Minute {
		t.Errorf("%s: Heartbeat says %+v", prefix, beat)
	}
	shards := one[[]int32](t, past, "select outbox.all_shards()")
	claim := func(without bool) (refs []driver.Ref) {
		t.Helper()
		claimed, err := driver.Claim(ctx, db, driver.ClaimRequest{Node: "n1", Shards: shards, Batch: 100, MaxBytes: 1 << 20, WithoutPayloads: without})
		must("Claim", err)
		messages := claimed.Deliveries
		if len(messages) != len(want) {
			t.Fatalf("%s: claimed %d messages, want %d", prefix, len(messages), len(want))
		}
		pointers := make([]*driver.Delivery, len(messages))
		for i := range messages {
			pointers[i] = &messages[i]
		}
		if without {
			lost, err := driver.Payloads(ctx, db, pointers)
			must("Payloads", err)
			if len(lost) > 0 {
				t.Errorf("%s: lost %v", prefix, lost)
			}
		}
		for _, m := range messages {
			key := strings.TrimPrefix(m.DispatchKey, prefix)
			if string(m.Payload) != string(want[key]) || m.Headers["k"] != key {
				t.Errorf("%s: %s came back as %q with headers %q", prefix, key, m.Payload, m.Headers)
			}
			until := one[time.Time](t, past, "select lease_until from outbox.claimed where id = $1", m.ID)
			if !m.LeaseUntil.Equal(until) {
				t.Errorf("%s: lease until %v, not %v", prefix, m.LeaseUntil, until)
			}
			wantInstants(t, past, m)
			refs = append(refs, m.Ref())
		}
		return refs
	}
	settled := func(what string, lost []driver.Ref, err error) {
		t.Helper()
		must(what, err)
		if len(lost) > 0 {
			t.Errorf("%s: %s says that %v were lost", prefix, what, lost)
		}
	}
	settings, err := driver.Settings(ctx, db)
	must("Settings", err)
	if lease := one[time.Duration](t, past, "select (outbox.settings()).lease"); settings.ShardCount != len(shards) || settings.Lease != lease ||
		settings.Retry.Base != time.Second || settings.Retry.Multiplier != 2 || settings.Retry.Jitter != 0.2 || settings.Retention != 7*24*time.Hour {
		t.Errorf("%s: Settings says %+v", prefix, settings)
	}
	processes, err := driver.NodeProcesses(ctx, db)
	must("NodeProcesses", err)
	if processes[prefix] != "p" {
		t.Errorf("%s: NodeProcesses says %q", prefix, processes)
	}
	survey, err := driver.Survey(ctx, db)
	must("Survey", err)
	if survey.Due != int64(len(want)) || survey.ShardCount != len(shards) || survey.Expired == nil {
		t.Errorf("%s: Survey says %+v", prefix, survey)
	}
	page, err := driver.SurveyNamespaces(ctx, db, driver.SurveyPage{Size: 10, MaxTime: time.Hour})
	must("SurveyNamespaces", err)
	named, err := driver.SurveyNamed(ctx, db, []string{"nobody", "ns"})
	must("SurveyNamed", err)
	oldest := one[time.Time](t, past, "select min(p.visible_after) from outbox.pending as p")
	if len(page) != 1 || len(named) != 2 || named[0].Due != 0 || page[0].Namespace != "ns" || page[0].Due != int64(len(want)) ||
		!page[0].OldestDue.Equal(oldest) || page[0].Waited() <= 0 || page[0].Waited() > patience() || named[0].Waited() != 0 {
		t.Errorf("%s: the namespaces are surveyed as %+v and %+v", prefix, page, named)
	}
	rest, err := driver.SurveyNamespaces(ctx, db, driver.SurveyPage{After: "ns", Size: 10})
	must("SurveyNamespaces", err)
	if len(rest) != 0 {
		t.Errorf("%s: behind the last namespace there is %+v", prefix, rest)
	}
	_, err = driver.ReadHorizon(ctx, db)
	must("ReadHorizon", err)
	_, err = driver.Check(ctx, db, 1000)
	must("Check", err)
	refs := claim(false)
	lost, err := driver.Extend(ctx, db, refs, time.Minute)
	settled("Extend", lost, err)
	noted, err := driver.BeginDelivery(ctx, db, refs[:1], 1)
	must("BeginDelivery", err)
	if len(noted) > 1 {
		t.Errorf("%s: BeginDelivery noted %v", prefix, noted)
	}
	lost, err = driver.Release(ctx, db, refs)
	settled("Release", lost, err)
	refs = claim(true)
	var none time.Duration
	lost, err = driver.Retry(ctx, db, []driver.Failure{{Ref: refs[0], Reason: "because", Delay: &none}, {Ref: refs[1], Reason: "because"}})
	settled("Retry", lost, err)
	lost, err = driver.Fail(ctx, db, []driver.Failure{{Ref: refs[2], Reason: "because"}})
	settled("Fail", lost, err)
	lost, err = driver.Complete(ctx, db, refs[3:])
	settled("Complete", lost, err)
	_, _, err = driver.Rescue(ctx, db, 10)
	must("Rescue", err)
	_, err = driver.Prune(ctx, db, 10)
	must("Prune", err)
	must("Leave", driver.Leave(ctx, db, prefix, "p"))
	redriven, err := driver.Redrive(ctx, db, []int64{refs[2].ID, refs[3].ID})
	must("Redrive", err)
	if len(redriven) != 1 || redriven[0] != refs[2].ID {
		t.Errorf("%s: Redrive says %v, want the failed one, %d", prefix, redriven, refs[2].ID)
	}
	cancelled, err := driver.Cancel(ctx, db, slices.Concat(one[[]string](t, past,
		"select array(select m.dispatch_key::text from outbox.message as m where m.namespace = 'ns')"), []string{"no such key"}))
	must("Cancel", err)
	if len(cancelled) != 3 || cancelled[0].Was != "pending" || !strings.HasPrefix(cancelled[0].DispatchKey, prefix) {
		t.Errorf("%s: Cancel says %v, want the three that were pending", prefix, cancelled)
	}
	driverDestinations(t, db, past, prefix)
}

// driverDestinations makes the calls about destinations.
func driverDestinations(t *testing.T, db *pgxpool.Pool, past querier, prefix string) {
	t.Helper()
	ctx := t.Context()
	namespace, hour := prefix+`dest\'"`, time.Hour
	var messages []driver.Message
	for _, taskQueue := range []string{"busy", "gone", "NULL"} {
		messages = append(messages, driver.Message{Namespace: namespace, TaskQueue: taskQueue, DispatchKey: prefix + " to " + taskQueue})
	}
	if _, err := driver.EnqueueBatch(ctx, db, messages); err != nil {
		t.Fatalf("%s: EnqueueBatch: %v", prefix, err)
	}
	claimed, err := driver.Claim(ctx, db, driver.ClaimRequest{Node: "n1", Shards: one[[]int32](t, past, "select outbox.all_shards()"), Batch: 100})
	if err != nil || len(claimed.Deliveries) != len(messages) {
		t.Fatalf("%s: Claim: %d messages, %v", prefix, len(claimed.Deliveries), err)
	}
	failures := make([]driver.DestinationFailure, len(messages))
	for i, m := range claimed.Deliveries {
		failures[i] = driver.DestinationFailure{Ref: m.Ref(), Kind: driver.Unreachable, Reason: "because"}
		switch m.TaskQueue {
		case "busy":
			failures[i].Kind, failures[i].Hold = driver.Busy, &hour
		case "gone":
			failures[i].Kind = driver.Gone
		}
	}
	if lost, _, err := driver.FailDestination(ctx, db, failures); err != nil || len(lost) > 0 {
		t.Errorf("%s: FailDestination: %v were lost, %v", prefix, lost, err)
	}
	before := one[time.Time](t, past, "select clock_timestamp()")
	health, err := driver.Observe(ctx, db, []driver.Destination{
		{Namespace: namespace, TaskQueue: "busy"}, {Namespace: namespace, TaskQueue: "gone"}, {Namespace: namespace, TaskQueue: "NULL"}, {TaskQueue: "busy"},
	})
	if err != nil || len(health) != 4 {
		t.Fatalf("%s: Observe: %+v, %v", prefix, health, err)
	}
	if h := health[0]; h.Health != driver.Held || h.Reason != "because" || h.Until.Before(before.Add(hour)) || h.Until.After(before.Add(hour+patience())) {
		t.Errorf("%s: the busy one is %+v", prefix, h)
	}
	if h := health[1]; h.Health != driver.Held || h.Until.Year() != 9999 {
		t.Errorf("%s: the one that is gone is %+v", prefix, h)
	}
	if health[2].Health != driver.Failing || health[3].Health != driver.Well {
		t.Errorf("%s: the others are %+v", prefix, health[2:])
	}
	events, err := driver.HoldEvents(ctx, db, 100)
	if err != nil || len(events) != 3 {
		t.Fatalf("%s: HoldEvents: %+v, %v", prefix, events, err)
	}
	since := one[time.Time](t, past, "select d.held_since from outbox.destination as d where d.namespace = $1 and d.task_queue = 'busy'", namespace)
	for _, e := range events {
		if e.Namespace != namespace || e.TaskQueue == "busy" && (e.Event != "held" || !e.Since.Equal(since)) || e.At.Before(since.Add(-hour)) || e.By != "n1" || e.Reason != "because" {
			t.Errorf("%s: an event is %+v", prefix, e)
		}
	}
	keys := one[[]string](t, past, "select array_agg(m.dispatch_key::text) from outbox.message as m where m.namespace = $1", namespace)
	if cancelled, err := driver.Cancel(ctx, db, keys); err != nil || len(cancelled) != len(messages) {
		t.Errorf("%s: Cancel: %v, %v", prefix, cancelled, err)
	}
}
