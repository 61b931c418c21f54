set local search_path = pg_catalog, pg_temp;
delete from outbox.migration where version = 16;

-- The functions of before know no end: what is over must not hold again. What is not over yet stays paused until
-- somebody resumes it, or until the next migration back, if it is over by then.
delete from outbox.pause where until <= clock_timestamp();

-- The view outbox.pauses loses a column, which a replaced view cannot.
-- recreate: views.sql

-- >>> snapshot

-- Rights on what is dropped or gets an overload below, as they are now.
do $rights$
begin
  perform pg_catalog.set_config('outbox.rights', coalesce((
  select pg_catalog.jsonb_agg(r)::text
  from (
    select 'function' as kind, p.proname as name, pg_catalog.oidvectortypes(p.proargtypes) as args, null as col,
           a.grantee, a.privilege_type as privilege, a.is_grantable as grantable
    from pg_catalog.pg_proc as p
    left join lateral pg_catalog.aclexplode(p.proacl) as a on a.grantee not in (0, p.proowner)
    where p.pronamespace = 'outbox'::pg_catalog.regnamespace and p.proname in ('check', 'claim_fair', 'claim_read', 'claim_walk', 'complete', 'due_routes', 'explain_claim', 'fail', 'failed_attempts', 'hold_reason', 'namespace_paused', 'pause', 'paused_routes', 'prune', 'purge', 'quota', 'retry', 'route_paused', 'why', null)
    union all
    select 'view', c.relname, '', x.col, a.grantee, a.privilege_type, a.is_grantable
    from pg_catalog.pg_class as c
    cross join lateral (
      select null as col, c.relacl as acl
      union all
      select t.attname, t.attacl from pg_catalog.pg_attribute as t where t.attrelid = c.oid and t.attacl is not null
    ) as x
    cross join lateral pg_catalog.aclexplode(x.acl) as a
    where c.relnamespace = 'outbox'::pg_catalog.regnamespace and c.relname in ('messages', 'namespaces', 'nodes', 'pauses', null) and a.grantee <> c.relowner
  ) as r), '[]'), true);
end $rights$;

-- dropped: sql/functions/views.sql
drop view outbox.holds;
drop view outbox.pauses;
drop view outbox.nodes;
drop view outbox.namespaces;
drop view outbox.messages;

-- dropped: sql/functions/why.sql
drop function outbox.why(dispatch_key text);

-- dropped: sql/functions/survey_namespaces.sql
drop function outbox.survey_namespaces(after text, size int, names text[], max_time interval);

-- dropped: sql/functions/survey.sql
drop function outbox.survey();

-- dropped: sql/functions/set_shared.sql
drop function outbox.set_shared(task_queue text, shared boolean);

-- dropped: sql/functions/route_state.sql
drop function outbox.route_state(namespace text, max int);

-- dropped: sql/functions/retry.sql
drop function outbox.retry(ids bigint[], tokens bigint[], errors text[], delays interval[]);

-- dropped: sql/functions/quota.sql
drop function outbox.quota(namespace text);

-- dropped: sql/functions/purge.sql
drop function outbox.purge(namespace text, max int, after bigint);

-- dropped: sql/functions/prune.sql
drop function outbox.prune(older_than interval, max int, failed boolean);

-- dropped: sql/functions/pause.sql
drop function outbox.pause(namespace text, task_queue text, note text, until timestamptz, everything boolean);

-- dropped: sql/functions/observe.sql
drop function outbox.observe(namespaces text[], task_queues text[]);

-- dropped: sql/functions/message_headers.sql
drop function outbox.message_headers(dispatch_key text);

-- dropped: sql/functions/lift.sql
drop function outbox.lift(namespace text, task_queue text);

-- dropped: sql/functions/known_namespaces.sql
drop function outbox.known_namespaces(after text, max int);

-- dropped: sql/functions/horizon.sql
drop function outbox.horizon();

-- dropped: sql/functions/hold_reasons.sql
drop function outbox.hold_reasons(namespaces text[]);

-- dropped: sql/functions/hold_events.sql
drop function outbox.hold_events(max int);

-- dropped: sql/functions/hold.sql
drop function outbox.hold(namespace text, task_queue text, duration interval, reason text);

-- dropped: sql/functions/fail_destination.sql
drop function outbox.fail_destination(ids bigint[], tokens bigint[], kinds text[], errors text[], holds interval[], shared boolean[]);

-- dropped: sql/functions/fail.sql
drop function outbox.fail(ids bigint[], tokens bigint[], errors text[]);

-- dropped: sql/functions/failed_attempts.sql
drop function outbox.failed_attempts(ids bigint[], tokens bigint[], errors text[], delays interval[], final boolean);

-- dropped: sql/functions/explain_claim.sql
drop function outbox.explain_claim(node text, shards int[], batch int, max_bytes bigint, "only" text);

-- dropped: sql/functions/hold_reason.sql
drop function outbox.hold_reason(namespace text, verdict text, claimed int, ceiling int, quota int, next_held int[], now timestamptz);

-- dropped: sql/functions/paused_routes.sql
drop function outbox.paused_routes(namespace text, next_held int[], now timestamptz);

-- dropped: sql/functions/holds_of.sql
drop function outbox.holds_of(namespace text, task_queue text, now timestamptz);

-- dropped: sql/functions/hold_text.sql
drop function outbox.hold_text(destination outbox.destination, now timestamptz);

-- dropped: sql/functions/complete.sql
drop function outbox.complete(ids bigint[], tokens bigint[]);

-- dropped: sql/functions/report_up.sql
drop function outbox.report_up(ids bigint[], now timestamptz);

-- dropped: sql/functions/claim_fair.sql
drop function outbox.claim_fair(node text, shards int[], batch int, max_bytes bigint, payloads boolean);

-- dropped: sql/functions/gates.sql
drop function outbox.gates(probes boolean);

-- dropped: sql/functions/fold_reports.sql
drop function outbox.fold_reports(now timestamptz, late boolean);

-- dropped: sql/functions/save_destination.sql
drop function outbox.save_destination(destination outbox.destination, now timestamptz);

-- dropped: sql/functions/fold_report.sql
drop function outbox.fold_report(inout destination outbox.destination, report outbox.report, fresh boolean, now timestamptz, config outbox.config);

-- dropped: sql/functions/hold_step.sql
drop function outbox.hold_step(destination outbox.destination, now timestamptz, cap interval);

-- dropped: sql/functions/claim_read.sql
drop function outbox.claim_read(node text, visits outbox.visit[], active int, width int, held int[], next_held int[], batch int, now timestamptz, for_claim boolean, gates int, gated int[], gated_routes text[], caps int[], config outbox.config, out candidates outbox.candidate[], out wanted int[], out rotating text[], out queues text[], out wading int, out pages bigint);

-- dropped: sql/functions/claim_walk.sql
drop function outbox.claim_walk(node text, next_held int[], held int, batch int, cursor text, round bigint, now timestamptz, oldest_token bigint, "only" text, for_claim boolean, gates int, config outbox.config, inout detours outbox.detour[], out visits outbox.visit[], out active int, out ended text, out width int, out several boolean, out gated int[], out gated_routes text[], out caps int[]);

-- dropped: sql/functions/namespace_paused.sql
drop function outbox.namespace_paused(namespace text, now timestamptz);

-- dropped: sql/functions/due_routes.sql
drop function outbox.due_routes(namespace text, start text, next_held int[], now timestamptz, max_routes int, budget int, gates int);

-- dropped: sql/functions/route_gate.sql
drop function outbox.route_gate(namespace text, task_queue text, now timestamptz, gates int);

-- dropped: sql/functions/gate.sql
drop function outbox.gate(destination outbox.destination, now timestamptz, probes boolean);

-- dropped: sql/functions/route_paused.sql
drop function outbox.route_paused(namespace text, task_queue text, now timestamptz);

-- dropped: sql/functions/check.sql
drop function outbox.check(newest bigint, max int);

-- dropped: sql/functions/change_destination.sql
drop function outbox.change_destination(func text, namespace text, task_queue text);

-- dropped: sql/functions/fold_lock.sql
drop function outbox.fold_lock();

-- dropped: sql/functions/audit_destinations.sql
drop function outbox.audit_destinations();

-- dropped: sql/functions/add_hold_event.sql
drop function outbox.add_hold_event(event text, destination outbox.destination, now timestamptz, by text);

-- >>> sql/functions/stray_keys.sql
-- requires: prepared_locks.sql
create or replace function outbox.stray_keys(keys int[])
returns int[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Which of these locks of claims are held by somebody who is not claiming: any role can take an
-- advisory lock. Claims, heartbeats and cancels read outbox.config before they lock anything, so
-- their transactions have a lock on that table. Strangers have none, unless they want to pose as
-- a claim. A transaction that was prepared with a claim in it is a stranger from
-- config.claim_idle_timeout on: nobody may ever end it.
--
-- One look at pg_locks is not of one moment: it may find the advisory lock of a claim and not
-- its lock on the table, as a claim begins or ends. Hence three looks, 10 ms apart: a stranger
-- has the lock in all of them, in the same transaction or in none.
declare
  v_locks  text[];  -- key and holder
  v_claims text[];  -- holders that claim
begin
  for look in 1 .. 3 loop
    with l as materialized (
      select l.* from pg_locks as l
      where l.granted and l.database = (select d.oid from pg_database as d where d.datname = current_database())
    )
    select array(select l.objid::bigint::bit(32)::int || ' ' || l.virtualtransaction from l
                 where l.locktype = 'advisory' and l.classid = 'outbox.pending'::regclass and l.objsubid = 2
                   and l.objid::bigint::bit(32)::int = any (stray_keys.keys)
                   and (look = 1 or l.objid::bigint::bit(32)::int || ' ' || l.virtualtransaction = any (v_locks))),
           array(select l.virtualtransaction from l
                 where l.locktype = 'relation' and l.relation = 'outbox.config'::regclass
                   and (l.pid is not null
                        or exists (select from outbox.prepared_locks() as p
                                   where p.virtualtransaction = l.virtualtransaction
                                     and p.prepared > clock_timestamp() - (select c.claim_idle_timeout from outbox.config as c))))
    into v_locks, v_claims;
    v_locks := array(select u.lock from unnest(v_locks) as u(lock) where split_part(u.lock, ' ', 2) <> all (v_claims));
    exit when v_locks = '{}';
    if look < 3 then
      perform pg_sleep(0.01);
    end if;
  end loop;
  return array(select distinct split_part(u.lock, ' ', 1)::int from unnest(v_locks) as u(lock) order by 1);
end $$;
comment on function outbox.stray_keys is 'Which locks of claims are held by somebody who is not claiming';
revoke all on function outbox.stray_keys from public;
-- <<< sql/functions/stray_keys.sql

-- >>> sql/functions/lock_class.sql
create or replace function outbox.lock_class()
returns int
language sql stable parallel safe
-- The class of this outbox's advisory locks: the oid of outbox.pending (an oid is
-- unsigned, hence the wrap), so that an application's own locks cannot collide.
-- Keys 0 to 1023 are shards, negative ones are nodes (see node_lock), 1024 is cancel_lock, 1025 share_lock,
-- 1026 pass_token.
begin atomic
  select (case when x.oid > 2147483647 then x.oid - 4294967296 else x.oid end)::int
  from (select 'outbox.pending'::regclass::oid::bigint) as x(oid);
end;
comment on function outbox.lock_class is 'The class (first key) of the outbox''s advisory locks';
revoke all on function outbox.lock_class from public;
-- <<< sql/functions/lock_class.sql

-- >>> sql/functions/check.sql
-- requires: bad_argument.sql audit_messages.sql audit_claims.sql audit_indexes.sql audit_schema.sql audit_bindings.sql audit_names.sql audit_locks.sql
create or replace function outbox.check(newest bigint default null, max int default 100)
returns table (guarantee text, subject text, detail text, hint text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
-- An audit: every guarantee that SQL can check, a row for each violation, none when all
-- is well. Of each kind at most max rows come one by one, the rest as a number. A row whose
-- guarantee is 'advice' is no violation: everything holds, and could be safer.
--
-- Stable on purpose: all of it sees one snapshot, that of the calling statement, so it
-- finds nothing that traffic has half done. It writes nothing, takes no lock, and runs
-- on a standby. It reads every table and index from end to end, payloads aside, and holds
-- vacuum back meanwhile: where that is too much, newest leaves out all but the messages
-- with the last so many ids, and the indexes of large tables.
begin
  if "check".newest < 1 then
    perform outbox.bad_argument('check', 'newest', format('is %s', "check".newest),
      'Give how many of the newest messages to check, or null for all.');
  elsif coalesce("check".max, 0) < 1 then
    perform outbox.bad_argument('check', 'max', 'is null or below 1', 'Give the most rows of each kind.');
  end if;
  return query
  with found as (
    select f.* from outbox.audit_schema() as f
    union all
    select f.* from outbox.audit_bindings() as f
    union all
    select f.* from outbox.audit_names() as f
    union all
    select f.* from outbox.audit_locks() as f
    union all
    select f.* from outbox.audit_indexes("check".newest is null) as f
    union all
    select f.* from outbox.audit_messages(coalesce(
      (select max(m.id) from outbox.message as m) - "check".newest + 1, -9223372036854775808)) as f
    union all
    select f.* from outbox.audit_claims() as f
  ), ranked as (
    select f.*, row_number() over w as n, count(*) over (partition by f.guarantee, f.hint) as total
    from found as f
    window w as (partition by f.guarantee, f.hint order by length(f.subject), f.subject collate "C")
  )
  select r.guarantee,
         case when r.n <= "check".max then r.subject else '...' end,
         case when r.n <= "check".max then r.detail else format('%s more like this', r.total - "check".max) end,
         r.hint
  from ranked as r
  where r.n <= "check".max + 1::bigint
  order by length(r.guarantee), r.guarantee collate "C", r.hint, r.n;
end $$;
comment on function outbox.check is 'An audit: one row for each violation of a guarantee, none when all is well';
revoke all on function outbox.check from public;
-- <<< sql/functions/check.sql

-- >>> sql/functions/route_paused.sql
create or replace function outbox.route_paused(namespace text, task_queue text)
returns table (paused boolean)
language sql stable
-- Whether a route is paused, for this namespace or for all; a pause of the whole namespace is
-- another matter: see namespace_paused(). (A table of one row, since a query inlines those.)
begin atomic
  select exists (select from outbox.pause as p
                 where p.namespace = route_paused.namespace and p.task_queue = route_paused.task_queue)
      or exists (select from outbox.pause as p
                 where p.namespace is null and p.task_queue = route_paused.task_queue);
end;
comment on function outbox.route_paused is 'Whether a route is paused, for a namespace or for all';
revoke all on function outbox.route_paused from public;
-- <<< sql/functions/route_paused.sql

-- >>> sql/functions/due_routes.sql
-- requires: route_paused.sql
create or replace function outbox.due_routes(
  namespace text, start text, next_held int[], now timestamptz, max_routes int, budget int)
returns table (n int, task_queue text, due boolean, vain int)
language sql stable
-- The routes of a namespace that a claim may serve: they have due messages on held shards, and
-- are not paused. In the order of the ring, from behind the route "start" (see route_start; null:
-- from the beginning) on, once around. One row a route; then, if LIMIT has not ended the search, one
-- last row that is not due: its task_queue is null if the search went all around, else the last
-- route that was looked at. Before a new route the search is cut if it has looked at max_routes of
-- them, or if as many descents as budget says were vain. Lazy: LIMIT says how many are needed.
--
-- A loose index scan of pending_ripe, one descent for each row of the recursion. From a lane
-- without due messages it goes to the next held shard of the route; from a route that is due or
-- paused, to the next route (no shard has the number 2147483647). A descent that finds no
-- due route is vain.
begin atomic
  with recursive look(n, routes, route_ring, task_queue, shard, wrapped, due, vain, ended, start_ring, start_queue) as (
    select 0, 0, coalesce(outbox.ring(due_routes.start), -2147483648), coalesce(due_routes.start, '') collate "C", 2147483647,
           due_routes.start is null, false, 0, false, coalesce(outbox.ring(due_routes.start), 2147483647),
           due_routes.start collate "C"
    union all
    select l.n + 1, l.routes + z.is_next::int, x.route_ring,
           case when z.around then null when z.ended then l.task_queue else x.task_queue end,
           case when v.due or z.paused then 2147483647 else coalesce(due_routes.next_held[x.shard + 2], 2147483647) end,
           x.wrapped, v.due, l.vain + (not v.due)::int, z.ended, l.start_ring, l.start_queue
    from look as l
    left join lateral (
      (select p.route_ring, p.task_queue, p.shard, p.visible_after as head, l.wrapped
       from outbox.pending as p
       where p.ripe and p.ring = outbox.ring(due_routes.namespace) and p.namespace = due_routes.namespace
         and (p.route_ring, p.task_queue, p.shard) >= (l.route_ring, l.task_queue, l.shard)
       order by p.route_ring, p.task_queue, p.shard, p.visible_after limit 1)
      union all
      (select p.route_ring, p.task_queue, p.shard, p.visible_after, true
       from outbox.pending as p
       where not l.wrapped and p.ripe and p.ring = outbox.ring(due_routes.namespace) and p.namespace = due_routes.namespace
       order by p.route_ring, p.task_queue, p.shard, p.visible_after limit 1)
      limit 1
    ) as x on true
    cross join lateral (
      select y.*, y.around or y.is_next and (l.routes >= due_routes.max_routes or l.vain >= due_routes.budget) as ended,
             y.is_next and (select r.paused from outbox.route_paused(due_routes.namespace, x.task_queue) as r) as paused
      from (select x.task_queue is null
                   or (x.wrapped and (x.route_ring, x.task_queue) > (l.start_ring, l.start_queue)) is true as around,
                   l.n = 0 or x.task_queue is distinct from l.task_queue as is_next
            offset 0) as y
      offset 0
    ) as z
    cross join lateral (
      select (not z.ended and not z.paused and due_routes.next_held[x.shard + 1] = x.shard and x.head <= due_routes.now) is true as due
      offset 0
    ) as v
    where not l.ended
  )
  select l.n, l.task_queue, l.due, l.vain from look as l where l.due or l.ended;
end;
comment on function outbox.due_routes is 'Routes of a namespace that a claim may serve, in turn';
revoke all on function outbox.due_routes from public;
-- <<< sql/functions/due_routes.sql

-- >>> sql/functions/namespace_paused.sql
create or replace function outbox.namespace_paused(namespace text)
returns table (paused boolean)
language sql stable
-- Whether a namespace is paused as a whole, by itself or with all. (A table of one row, since a
-- query inlines those.)
begin atomic
  select exists (select from outbox.pause as p
                 where p.namespace = namespace_paused.namespace and p.task_queue is null)
      or exists (select from outbox.pause as p
                 where p.namespace is null and p.task_queue is null);
end;
comment on function outbox.namespace_paused is 'Whether a namespace is paused as a whole';
revoke all on function outbox.namespace_paused from public;
-- <<< sql/functions/namespace_paused.sql

-- >>> sql/functions/claim_walk.sql
-- requires: walk_detour.sql walk_namespaces.sql due_routes.sql route_start.sql namespace_paused.sql route_paused.sql node_ceiling.sql ceil_div.sql
create or replace function outbox.claim_walk(
  node text, next_held int[], held int, batch int, cursor text, round bigint, now timestamptz,
  oldest_token bigint, "only" text, for_claim boolean, config outbox.config, inout detours outbox.detour[],
  out visits outbox.visit[], out active int, out ended text, out width int, out several boolean)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- The first part of a claim: whom to serve. Visits namespaces with ripe messages in the order of
-- the ring, from behind the cursor on, until one of these ends the walk:
--
--   full    as many namespaces are eligible as the batch is large: more are never needed
--   cut     config.max_visits are visited, or the search for due routes has made too many vain
--           descents, the larger of 1,000 and 2 * max_visits, or has taken too long
--   around  it came once around: all that are eligible are among the visits
--   detour  the same, but for what lies on the stretches that it has passed over
--
--   parameter       what it is
--   node            whose route cursors count
--   batch, config   of the claim, and the settings
--   next_held, held the shards that the claim holds, as next_held() gives them, and how many
--   cursor, round   where the last walk ended, and how often it had come around by then
--   now             the claim's instant
--   oldest_token    on held shards, nothing is claimed with an older claim token: where a long
--                   transaction keeps dead rows, those of older claims are not waded through
--   only            visits this namespace alone
--   for_claim       false for explain_claim and why: it locks nothing, and counts what is claimed of
--                   each namespace, also of one that can get nothing anyway
--   detours         stretches of the ring to pass over; out: those that this walk found (see walk_detour)
--
-- Each visit: namespace; round, that of the cursor, and one more behind the end of the ring; quota;
-- claimed and ceiling, on held shards, or on all for a strict namespace whose quota leaves it less
-- than its ceiling does; sole, if it has ripe messages in one route only; and the verdict:
--
--   eligible  has due messages on held shards, is not paused, and is below its ceiling. Then routes
--             are its due routes, in the order of the ring: all, but at most width of them
--   paused    by its name, or with all
--   ceiling   as many are claimed as its ceiling allows, or more
--   idle      nothing due on held shards, on a route that is not paused. Where the search for
--             one was cut, looked_to is the last route that it looked at
--   locked    strict, and another claim is counting its quota
--
-- active counts the eligible ones; several says that one of the visited is not sole.
--
-- It goes in strides, so that one statement visits many namespaces: the first is of batch
-- namespaces, each later one at least as long as all before it together. It runs under
-- the settings of its caller, which pin the plans.
declare
  v_any_pause boolean := exists (select from outbox.pause);
  -- Half of what the statement may take is left to the rest of the claim.
  v_deadline  timestamptz := least(claim_walk.now + interval '2 s',
                                   statement_timestamp() + nullif(current_setting('statement_timeout')::interval, '0') / 2);
  v_vain      int := greatest(1000, 2 * (claim_walk.config).max_visits); -- descents that may still be in vain
  v_spent     int;            -- used up in this stride
  v_wrapped   boolean := false;
  v_size      int;
  v_stride    outbox.visit[];
  v_count     int;
  v_search    int[];          -- of the stride, those without a verdict yet: their routes must be looked at
  v_searched  int;            -- how many of them were
  v_stricts   int[];          -- of the stride, the strict ones
  v_slow      int[];          -- of the stride, those that took very many pages,
  v_pages     bigint[];       --   how many to come to each, and how many within it
  v_within    bigint[];
  v_detoured  boolean[];      --   and whether a detour led to it
  v_from      text;           -- the namespace that the stride starts behind
  v_took      boolean := false; -- a detour was taken
  v_found     outbox.detour[];
  v_row       record;
  v_all       int;            -- claimed on all shards
  v_last      int;            -- of the stride, the last one visited
begin
  visits := '{}';
  active := 0;
  several := false;
  ended := 'around';
  if claim_walk.for_claim and exists (select from outbox.pause as p where p.namespace is null and p.task_queue is null) then
    detours := null;
    return; -- all is paused
  end if;
  loop
    v_size := least(greatest(claim_walk.batch - active, cardinality(visits)),
                    (claim_walk.config).max_visits - cardinality(visits));
    v_from := coalesce((visits[cardinality(visits)]).namespace, claim_walk.cursor);
    select array_agg(row(x.namespace, claim_walk.round + x.wrapped::int, x.verdict, x.quota, x.claimed, x.ceiling, x.sole,
                         case when x.verdict = 'eligible' then array[x.task_queue] end, null)::outbox.visit),
           array_agg(x.n) filter (where x.verdict is null), array_agg(x.n) filter (where x.is_strict),
           array_agg(x.n) filter (where x.is_slow), array_agg(x.pages) filter (where x.is_slow),
           array_agg(x.pages_within) filter (where x.is_slow), array_agg(x.detoured) filter (where x.is_slow),
           bool_or(x.wrapped), coalesce(bool_or(not x.sole), false) or several, coalesce(bool_or(x.detoured), false) or v_took
    into v_stride, v_search, v_stricts, v_slow, v_pages, v_within, v_detoured, v_wrapped, several, v_took
    from (
      select w.*, q.*, c.claimed, w.pages >= 1000 or w.pages_within >= 1000 as is_slow,
             case when s.paused then 'paused'
                  when q.ceiling = 0 or c.claimed >= q.ceiling then 'ceiling'
                  when w.sole and v_any_pause
                    and (select r.paused from outbox.route_paused(w.namespace, w.task_queue) as r) then 'idle'
                  when w.sole and w.head <= claim_walk.now and claim_walk.next_held[w.shard + 1] = w.shard then 'eligible'
             end as verdict
      from (
        select 1 as n, claim_walk."only" as namespace, false as wrapped, null as task_queue, null as shard, null as head, false as sole,
               0 as pages, 0 as pages_within, false as detoured
        where claim_walk."only" is not null
        union all
        select * from outbox.walk_namespaces(v_from, v_wrapped, claim_walk.cursor, v_size, claim_walk.detours)
        where claim_walk."only" is null
      ) as w
      cross join lateral (
        select v_any_pause and (select z.paused from outbox.namespace_paused(w.namespace) as z) as paused offset 0
      ) as s
      left join lateral (
        select n.quota, n.strict from outbox.namespace as n where n.namespace = w.namespace
      ) as o on true
      cross join lateral (
        select coalesce(o.quota, (claim_walk.config).default_quota) as quota, coalesce(o.strict, false) as is_strict,
               outbox.node_ceiling(coalesce(o.quota, (claim_walk.config).default_quota), claim_walk.held,
                                   (claim_walk.config).shard_count) as ceiling
      ) as q
      cross join lateral (
        select case when not (claim_walk.for_claim and (s.paused or q.ceiling = 0)) then (
          select (count(*) filter (where claim_walk.next_held[c.shard + 1] = c.shard))::int
          from outbox.claimed as c -- compared as pairs, which fit claimed_namespace alone
          where (c.namespace, c.claim_token) >= (w.namespace, claim_walk.oldest_token)
            and (c.namespace, c.claim_token) <= (w.namespace, 9223372036854775807)) end as claimed
        offset 0
      ) as c
      order by w.n
    ) as x;
    v_count := coalesce(cardinality(v_stride), 0);
    exit when v_count = 0;

    -- Detours for the next claims: around what lies before a namespace, or, where that is its own doing,
    -- around itself. Where a detour did not help, it is the namespace before the detour.
    if claim_walk.for_claim and v_slow is not null then
      for i in 1 .. cardinality(v_slow) loop
        if v_within[i] >= 1000 then
          v_found := v_found || outbox.walk_detour(case when v_slow[i] > 1 then v_stride[v_slow[i] - 1].namespace else v_from end,
                                                   v_stride[v_slow[i]].namespace, v_within[i], true);
        elsif not v_detoured[i] then
          v_found := v_found || outbox.walk_detour(case when v_slow[i] > 1 then v_stride[v_slow[i] - 1].namespace else v_from end,
                                                   v_stride[v_slow[i]].namespace, v_pages[i], false);
        elsif v_slow[i] > 1 then
          v_found := v_found || outbox.walk_detour(case when v_slow[i] > 2 then v_stride[v_slow[i] - 2].namespace else v_from end,
                                                   v_stride[v_slow[i] - 1].namespace, v_pages[i], true);
        end if;
      end loop;
    end if;

    -- The due routes of the others, a first guess of how many: claim_read looks for more where the slice is longer.
    width := coalesce(width, least(outbox.ceil_div(claim_walk.batch, v_count), (claim_walk.config).max_routes));
    v_searched := 0;
    v_spent := 0;
    if v_search is not null then -- to start the statement costs more than a little
      for v_row in
        with recursive search(k, routes, looked_to, vain, pages) as (
          select 0, null::text[], null::text collate "C", 0, 0::bigint
          union all
          select s.k + 1, r.routes, r.looked_to, s.vain + r.vain,
                 pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) - u.pages - r.vain
          from search as s
          cross join lateral (
            select v.namespace, case when not v.sole then (
                     select t.task_queue from outbox.route_start(v.namespace, claim_walk.node, claim_walk.next_held) as t) end as start,
                   pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) as pages
            from (select (v_stride[v_search[s.k + 1]]).namespace, (v_stride[v_search[s.k + 1]]).sole) as v
            offset 0
          ) as u
          cross join lateral (
            select array_agg(d.task_queue order by d.n) filter (where d.due) as routes,
                   max(d.task_queue) filter (where not d.due) as looked_to, max(d.vain) as vain
            from (select d.*
                  from outbox.due_routes(u.namespace, u.start, claim_walk.next_held, claim_walk.now,
                                         (claim_walk.config).max_routes, v_vain - s.vain) as d
                  limit claim_walk.width) as d
          ) as r
          where s.k < cardinality(v_search) and s.vain < v_vain and (s.k = 0 or clock_timestamp() < v_deadline)
        )
        select s.k, v_search[s.k] as n, s.routes, s.looked_to, s.vain, s.pages from search as s where s.k > 0
      loop
        v_searched := v_row.k;
        v_spent := v_row.vain;
        v_stride[v_row.n].verdict := case when v_row.routes is null then 'idle' else 'eligible' end;
        v_stride[v_row.n].routes := v_row.routes;
        v_stride[v_row.n].looked_to := v_row.looked_to;
        if claim_walk.for_claim and v_row.pages >= 1000 then
          v_found := v_found || outbox.walk_detour(case when v_row.n > 1 then v_stride[v_row.n - 1].namespace else v_from end,
                                                   v_stride[v_row.n].namespace, v_row.pages, true);
        end if;
      end loop;
      v_vain := v_vain - v_spent;
    end if;

    -- Strict ones, and where the walk ends.
    v_last := 0;
    loop
      ended := case when active = claim_walk.batch then 'full'
                    when v_last + 1 = v_search[v_searched + 1] or cardinality(visits) + v_last = (claim_walk.config).max_visits then 'cut'
                    else 'around' end;
      exit when ended <> 'around' or v_last = v_count;
      v_last := v_last + 1;
      if v_last = any (v_stricts) and (v_stride[v_last].verdict = 'eligible' or not claim_walk.for_claim) then
        if claim_walk.for_claim then
          -- Whoever holds this row is the only one to claim from the namespace, until it
          -- commits. Only a statement that starts after that sees all that is claimed.
          perform from outbox.namespace as n where n.namespace = v_stride[v_last].namespace for no key update skip locked;
          if not found then
            v_stride[v_last].verdict := 'locked';
          end if;
        end if;
        v_all := (select count(*) from outbox.claimed as c where c.namespace = v_stride[v_last].namespace);
        if v_stride[v_last].quota - v_all <= v_stride[v_last].ceiling - v_stride[v_last].claimed then
          v_stride[v_last].claimed := v_all;
          v_stride[v_last].ceiling := v_stride[v_last].quota;
          if v_stride[v_last].verdict = 'eligible' and v_all >= v_stride[v_last].quota then
            v_stride[v_last].verdict := 'ceiling';
          end if;
        end if;
      end if;
      active := active + (v_stride[v_last].verdict = 'eligible')::int;
    end loop;
    visits := visits || v_stride[:v_last];
    exit when ended <> 'around' or v_count < v_size or claim_walk."only" is not null;
  end loop;
  if ended = 'around' and v_took then
    ended := 'detour';
  end if;
  detours := v_found;
end $$;
comment on function outbox.claim_walk is 'Whom a claim serves: the namespaces it visits, and a verdict on each';
revoke all on function outbox.claim_walk from public;
-- <<< sql/functions/claim_walk.sql

-- >>> sql/functions/claim_read.sql
-- requires: due_routes.sql route_start.sql claim_lanes.sql ceil_div.sql
create or replace function outbox.claim_read(
  node text, visits outbox.visit[], active int, width int, held int[], next_held int[], batch int, now timestamptz,
  for_claim boolean, config outbox.config,
  out candidates outbox.candidate[], out wanted int[], out rotating text[], out queues text[],
  out wading int, out pages bigint)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- The second part of a claim: how many messages from each eligible namespace, and which. That is
-- max-min fairness by progressive filling: everybody gets the same, until somebody has no more or
-- is at its ceiling; what they leave is shared out equally among the others, and so on.
-- The first filling is the slice, ceil(batch / active). Within a namespace its routes
-- share what it gets in the same way. Each filling reads again, with larger parts: only so
-- many messages are read as may be taken.
--
--   parameter            what it is
--   node                 whose route cursors count
--   visits .. width      what claim_walk() returned
--   held, next_held      the shards that the claim holds, and as next_held() gives them
--   now                  the claim's instant: what is due later is not read
--   for_claim            locks what it reads, and leaves out what others have locked; false for
--                        explain_claim, which locks nothing
--
-- candidates are what was read: the visit and the route, as indexes; nth of its route, the
-- oldest first, lane by lane; id, place, when it came due, shard, attempts so far, how often it was
-- suspect, and its bytes. wanted is by visit: so many of its candidates it may get. queues and
-- rotating are by route: its name, and its namespace, unless that is sole. wading is the visit
-- whose reading took very many pages of outbox.pending for few messages, if one did, and pages how
-- many: see walk_detour().
--
-- The lanes of a route start at a shard drawn by hash from the namespace and the round, so that no
-- rhythm of the claims can pass one over. Where others have locked all that is due on the routes
-- at hand, more routes are looked at. It runs under the settings of its caller.
declare
  v_count  int := cardinality(claim_read.visits);
  v_most   int := (claim_read.config).max_routes;
  -- by visit:
  v_rooms  int[];          -- rows that its ceiling allows
  v_look   int[] := '{}';  -- routes to look for,
  v_wide   int[];          --   and those looked for: if it has fewer, it has no more
  v_known  int[];          -- routes at hand
  v_nth    int[];          -- a counter of them
  v_got    int[];          -- rows read
  v_open   int[];          -- routes that may have more rows
  -- by route:
  v_of     int[];          -- its visit
  v_names  text[];         -- its namespace
  v_firsts int[];          -- the shard of the lane that it starts at
  v_parts  int[];          -- rows asked for
  v_have   int[];          -- rows read: if fewer, it has no more
  v_search int[];          -- visits of which more routes are needed
  v_rows   int[];          -- the route of each row
  v_again  boolean;
  v_sum    int := 0;       -- rows read in all
  v_before bigint;
  v_left   int;
  v_hungry int;
  i        int;
begin
  select array_agg(case when v.verdict = 'eligible' then v.ceiling - v.claimed else 0 end),
         array_agg(case when v.sole then v_most else claim_read.width end)
  into v_rooms, v_wide
  from unnest(claim_read.visits) as v;
  select array_agg(v.n), array_agg(v.namespace), array_agg(r.task_queue), array_agg(case when not v.sole then v.namespace end),
         array_agg(claim_read.held[1 + (hashtextextended(v.namespace collate "C", v.round) & 9223372036854775807)
                                       % cardinality(claim_read.held)])
  into v_of, v_names, queues, rotating, v_firsts
  from unnest(claim_read.visits) with ordinality
       as v(namespace, round, verdict, quota, claimed, ceiling, sole, routes, looked_to, n)
  cross join lateral unnest(v.routes) as r(task_queue)
  where v.verdict = 'eligible';
  pages := pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass);
  v_parts := array_fill(null::int, array[cardinality(v_of)]);
  v_have := v_parts;
  v_got := array_fill(0, array[v_count]);
  v_open := v_got;
  for n in 1 .. v_count loop
    wanted[n] := least(v_rooms[n], outbox.ceil_div(claim_read.batch, claim_read.active)); -- the slice
    v_look[n] := least(wanted[n], v_most);
  end loop;

  loop
    -- Routes, where more are needed than are at hand.
    v_known := array_fill(0, array[v_count]);
    foreach i in array v_of loop
      v_known[i] := v_known[i] + 1;
    end loop;
    v_search := array(select u.n from unnest(v_known, v_wide, v_look) with ordinality as u(known, wide, look, n)
                      where u.known = u.wide and u.wide < u.look);
    if v_search <> '{}' then
      select array_agg(x.i order by x.i, x.n), array_agg(x.name order by x.i, x.n), array_agg(x.queue order by x.i, x.n),
             array_agg(x.rotating order by x.i, x.n), array_agg(x.first order by x.i, x.n), array_agg(x.part order by x.i, x.n),
             array_agg(x.have order by x.i, x.n)
      into v_of, v_names, queues, rotating, v_firsts, v_parts, v_have
      from (
        select u.* from unnest(v_of, v_names, queues, rotating, v_firsts, v_parts, v_have) with ordinality
                        as u(i, name, queue, rotating, first, part, have, n)
        where u.i <> all (v_search)
        union all
        select o.i, o.name, r.task_queue, o.name, o.first, null, null, r.n
        from (select distinct on (u.i) u.* from unnest(v_of, v_names, v_firsts) as u(i, name, first)
              where u.i = any (v_search) order by u.i) as o
        cross join lateral (
          select d.task_queue, d.n
          from outbox.route_start(o.name, claim_read.node, claim_read.next_held) as s
          cross join lateral outbox.due_routes(o.name, s.task_queue, claim_read.next_held, claim_read.now, v_most, 1000) as d
          where d.due limit v_look[o.i]
        ) as r
      ) as x;
      foreach i in array v_search loop
        v_wide[i] := v_look[i];
      end loop;
      continue when v_of is not null;
      candidates := null; -- their routes are gone: others have taken, cancelled or paused them
      exit;
    end if;

    -- The part of each route: what its namespace wants, or still wants, in equal parts.
    v_nth := array_fill(0, array[v_count]);
    for r in 1 .. cardinality(v_of) loop
      i := v_of[r];
      v_nth[i] := v_nth[i] + 1;
      if v_parts[r] is null then
        v_parts[r] := case when v_nth[i] <= wanted[i] then outbox.ceil_div(wanted[i], least(v_known[i], wanted[i])) else 0 end;
      elsif v_have[r] = v_parts[r] and v_got[i] < wanted[i] then
        v_parts[r] := v_parts[r] + outbox.ceil_div(wanted[i] - v_got[i], v_open[i]);
      end if;
    end loop;

    if claim_read.for_claim then
      select array_agg(row(u.visit, u.route, m.nth, m.id, m.tid, m.due_at, m.shard, m.attempt, m.suspect, m.payload_bytes)::outbox.candidate),
             array_agg(u.route)
      into candidates, v_rows
      from unnest(v_of, v_names, queues, v_firsts, v_parts) with ordinality as u(visit, namespace, task_queue, first, part, route)
      cross join lateral (
        select row_number() over () as nth, x.*
        from (
          select p.*
          from outbox.claim_lanes(u.namespace, u.task_queue, u.first, claim_read.next_held, claim_read.now) as l
          cross join lateral (
            select p.id, p.ctid as tid, p.visible_after as due_at, p.shard, p.attempt, p.suspect, p.payload_bytes
            from outbox.pending as p
            where p.ripe and p.ring = outbox.ring(u.namespace) and p.namespace = u.namespace
              and p.route_ring = outbox.ring(u.task_queue) and p.task_queue = u.task_queue
              and p.shard = l.shard and p.visible_after <= claim_read.now
            order by p.visible_after, p.id limit u.part
            for update skip locked
          ) as p
          limit u.part
        ) as x
      ) as m
      where u.part > 0;
    else -- the same without the lock
      select array_agg(row(u.visit, u.route, m.nth, m.id, m.tid, m.due_at, m.shard, m.attempt, m.suspect, m.payload_bytes)::outbox.candidate),
             array_agg(u.route)
      into candidates, v_rows
      from unnest(v_of, v_names, queues, v_firsts, v_parts) with ordinality as u(visit, namespace, task_queue, first, part, route)
      cross join lateral (
        select row_number() over () as nth, x.*
        from (
          select p.*
          from outbox.claim_lanes(u.namespace, u.task_queue, u.first, claim_read.next_held, claim_read.now) as l
          cross join lateral (
            select p.id, p.ctid as tid, p.visible_after as due_at, p.shard, p.attempt, p.suspect, p.payload_bytes
            from outbox.pending as p
            where p.ripe and p.ring = outbox.ring(u.namespace) and p.namespace = u.namespace
              and p.route_ring = outbox.ring(u.task_queue) and p.task_queue = u.task_queue
              and p.shard = l.shard and p.visible_after <= claim_read.now
            order by p.visible_after, p.id limit u.part
          ) as p
          limit u.part
        ) as x
      ) as m
      where u.part > 0;
    end if;

    v_sum := v_sum + coalesce(cardinality(v_rows), 0);
    v_have := array_fill(0, array[cardinality(v_of)]);
    foreach i in array coalesce(v_rows, '{}') loop
      v_have[i] := v_have[i] + 1;
    end loop;
    v_got := array_fill(0, array[v_count]);
    v_open := v_got;
    for r in 1 .. cardinality(v_of) loop
      v_got[v_of[r]] := v_got[v_of[r]] + v_have[r];
      v_open[v_of[r]] := v_open[v_of[r]] + (v_have[r] = v_parts[r])::int;
    end loop;

    -- Within a namespace, routes that have more fill up what others lack. Where others have
    -- locked all that its routes have due, look at more of them.
    v_again := false;
    v_left := claim_read.batch;
    v_hungry := 0;
    for n in 1 .. v_count loop
      if v_got[n] < wanted[n] and (v_open[n] > 0 or v_known[n] = v_wide[n] and v_wide[n] < v_most) then
        v_again := true;
        if v_open[n] = 0 then
          v_look[n] := v_most;
        end if;
      end if;
      v_left := v_left - least(v_got[n], wanted[n]);
      v_hungry := v_hungry + (v_got[n] >= wanted[n] and wanted[n] < v_rooms[n])::int;
    end loop;
    continue when v_again;

    -- The next filling.
    exit when v_left <= 0 or v_hungry = 0;
    for n in 1 .. v_count loop
      if v_got[n] >= wanted[n] then
        wanted[n] := least(wanted[n] + outbox.ceil_div(v_left, v_hungry), v_rooms[n]);
        v_look[n] := least(greatest(v_look[n], wanted[n]), v_most);
      end if;
    end loop;
  end loop;

  -- Some pages a message and a lane are as it should be. Where it was very many more, look whose.
  pages := pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) - pages;
  if claim_read.for_claim and pages > 1000 + 4 * v_sum + 20 * cardinality(v_of) then
    for r in 1 .. cardinality(v_of) loop
      v_before := pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass);
      perform from outbox.walk_lanes(v_names[r], queues[r], 0, claim_read.next_held) as l
      cross join lateral (
        select from outbox.pending as p
        where p.ripe and p.ring = outbox.ring(v_names[r]) and p.namespace = v_names[r]
          and p.route_ring = outbox.ring(queues[r]) and p.task_queue = queues[r]
          and p.shard = l.shard and p.visible_after <= claim_read.now
        order by p.visible_after, p.id limit v_parts[r]
      ) as p limit v_parts[r];
      pages := pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) - v_before;
      if pages > 1000 + 4 * v_have[r] then
        wading := v_of[r];
        exit;
      end if;
    end loop;
  end if;
end $$;
comment on function outbox.claim_read is 'How many messages a claim takes from each namespace, and which it may take';
revoke all on function outbox.claim_read from public;
-- <<< sql/functions/claim_read.sql

-- >>> sql/functions/claim_fair.sql
-- requires: check_claim.sql next_held.sql walk_start.sql ripen.sql claim_walk.sql claim_read.sql claim_order.sql walk_detour.sql bound_transaction.sql ceil_div.sql lock_class.sql node_lock.sql span.sql
create or replace function outbox.claim_fair(node text, shards int[], batch int, max_bytes bigint default null,
                                             payloads boolean default true)
returns table (id bigint, claim_token bigint, namespace text, task_queue text, dispatch_key text, shard int,
               attempt int, content_type text, headers jsonb, payload bytea, lease_until timestamptz, pass int,
               payload_bytes int, suspect int,
               created_at timestamptz, due_at timestamptz, claimed_at timestamptz)
language plpgsql security definer rows 100
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_material = off
set enable_memoize = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
-- Claims up to batch due messages on these shards for this node, fairly: every active namespace
-- gets its slice of the batch, capped by its headroom; what is left is shared out in rounds.
-- With max_bytes the claim ends with the message that reaches it, and a payload of that many
-- bytes comes last, unless it would be the first. Messages come back in the order of service. A
-- claim never waits for another one. Until its transaction ends, the session may not be idle for
-- longer than config.claim_idle_timeout, and current_setting('outbox.claim_outcome') says how the
-- claim ended:
--
--   served        it brought messages, and was not cut
--   cut           with messages or without, it stopped before it had looked at every namespace
--                 (see claim_walk), or more has come due than it could make ripe (see ripen): claim
--                 again at once, the next walk goes on there
--   cut_past_end  the same, and the walk came past the end of the ring
--   all_round     it brought no messages: nothing is due that it may claim, or max_bytes is below 1
--   shut_out      it brought no messages, and another claim has some of the shards, or the node's name
--
-- Without payloads, payload and headers are null: whoever claims reads them with payloads(),
-- as they fit into its memory, once the claim is committed. Then the messages have not begun
-- yet, and those that are suspect (see rescue) must be reported to begin_delivery() before they
-- are read. With payloads, all that a claim returns has begun together.
--
-- The order of the steps is what makes the quota hold. A claim first locks its shards;
-- only statements that start after that, and so see every claim that held one of them
-- before, count what is claimed. Hence read committed: an older snapshot would miss it.
declare
  v_config  outbox.config;
  v_shards  int[];
  v_class   int;
  v_held    int[];
  v_next    int[];
  v_now     timestamptz;
  v_until   timestamptz; -- the end of the lease
  v_start   record;      -- where the walk goes on
  v_ripe    record;
  v_walk    record;      -- whom to serve,
  v_read    record;      --   what may be taken from them,
  v_order   record;      --   and what is, in the order of service
  v_last    int;         -- the last visit that the next walk need not repeat
  v_moved   int;
  v_token   bigint;
begin
  -- 1. Arguments, and the transaction that this claim is part of.
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    raise exception 'outbox.claim_fair: the transaction''s isolation is %', current_setting('transaction_isolation')
      using errcode = 'OB002', hint = 'Call it in a transaction that begins with: begin isolation level read committed.';
  end if;
  select c.* into strict v_config from outbox.config as c;
  v_shards := outbox.check_claim('claim_fair', claim_fair.node, claim_fair.shards, claim_fair.batch, v_config);
  if claim_fair.payloads is null then
    perform outbox.bad_argument('claim_fair', 'payloads', 'is null', 'Give true to get payloads, false to read them later.');
  end if;
  if claim_fair.max_bytes <= 0 or cardinality(v_shards) = 0 then
    perform set_config('outbox.claim_outcome', 'all_round', true);
    return;
  end if;
  perform set_config('outbox.claim_outcome', 'shut_out', true); -- unless it gets further
  perform outbox.bound_transaction(v_config.claim_idle_timeout); -- left open, it would hold its shards

  -- 2. The node's lock, then those of the shards; all are released when the transaction ends.
  v_class := outbox.lock_class();
  if not pg_try_advisory_xact_lock(v_class, outbox.node_lock(claim_fair.node)) then
    return;
  end if;
  select array_agg(s.shard order by s.shard) into v_held
  from unnest(v_shards) as s(shard) where pg_try_advisory_xact_lock(v_class, s.shard);
  if v_held is null then
    return;
  end if;
  v_next := outbox.next_held(v_held, v_config.shard_count);
  v_now := clock_timestamp();
  v_until := v_now + outbox.span(v_config.lease);

  -- 3. What has come due becomes ripe.
  select w.* into strict v_start from outbox.walk_start(claim_fair.node, v_shards) as w;
  if v_start.edge_shards is null or not v_held <@ v_start.edge_shards then
    -- of some of them it does not know the edges: start from nothing
    v_start.edge_shards := v_held;
    v_start.edge := 0;
    v_start.unripe_all_at := '-infinity'::timestamptz;
  elsif v_held = v_shards then
    v_start.edge_shards := v_held; -- some of them: what it knows of more shards holds for these
  end if;
  select r.* into v_ripe
  from outbox.ripen(v_held, v_next, v_now, v_start.unripe_from, v_start.unripe_from_id, v_start.unripe_all_at,
                    v_start.unripe_namespace, v_start.unripe_rest) as r;

  -- 4. Whom to serve, with how many messages, in which order.
  select w.* into v_walk
  from outbox.claim_walk(claim_fair.node, v_next, cardinality(v_held), claim_fair.batch, v_start.namespace, v_start.round,
                         v_now, v_start.edge, null, true, v_config, v_start.detours) as w;
  select r.* into v_read
  from outbox.claim_read(claim_fair.node, v_walk.visits, v_walk.active, v_walk.width, v_held, v_next, claim_fair.batch,
                         v_now, true, v_config) as r
  where v_walk.active > 0;
  select o.* into v_order
  from outbox.claim_order(v_read.candidates, v_read.wanted, outbox.ceil_div(claim_fair.batch, greatest(v_walk.active, 1)),
                          claim_fair.batch,
                          claim_fair.max_bytes, case when v_walk.ended = 'around' then v_walk.visits[1].round end) as o
  where v_read.candidates is not null;

  if v_read.wading is not null then
    v_walk.detours := v_walk.detours || outbox.walk_detour(
      case when v_read.wading = 1 then v_start.namespace else v_walk.visits[v_read.wading - 1].namespace end,
      v_walk.visits[v_read.wading].namespace, v_read.pages, true);
  end if;

  if v_order.picked is null and v_walk.ended = 'around' and not v_ripe.again and v_ripe.unripe_all_at < v_now then
    -- Before it says that nothing is due: what was committed late.
    select r.* into v_ripe
    from outbox.ripen(v_held, v_next, v_now, '-infinity', 0, '-infinity', v_ripe.unripe_namespace, v_ripe.unripe_rest) as r;
    v_ripe.again := v_ripe.again or v_ripe.ripened > 0;
  end if;

  v_last := coalesce(v_order.left_out - 1, cardinality(v_walk.visits));
  perform set_config('outbox.claim_outcome', case
    when v_walk.ended = 'cut' then case when v_walk.visits[v_last].round > v_start.round then 'cut_past_end' else 'cut' end
    when v_walk.ended = 'detour' or v_ripe.again then 'cut'
    when v_order.picked is not null then 'served'
    when v_held <> v_shards then 'shut_out'
    else 'all_round' end, true);

  -- 5. Where the next claim goes on: behind the last namespace that the walk came to,
  -- or, where max_bytes left some out, with the first of those. Nothing is saved if the walk went
  -- all around, served nobody, and found nothing to do next time.
  if v_order.picked is not null or v_walk.ended <> 'around' or v_ripe.again or v_walk.detours is not null then
    v_token := nextval('outbox.claim_token') + floor(random() * 4194304)::bigint; -- see the sequence's migration
    if v_token <= (select max(w.edge) from outbox.walk as w) then
      -- The sequence was set back: below an edge, what is claimed would not be counted.
      perform setval('outbox.claim_token', (select max(w.edge) from outbox.walk as w) + 1000 * 4194304::bigint); -- see pass_token
      v_token := nextval('outbox.claim_token') + floor(random() * 4194304)::bigint;
    end if;
    if v_start.edge_shards = v_held then -- else it has looked at some of them only
      -- Nobody else claims on these shards before this claim ends, and then with a later
      -- token than this one's. So the oldest one there now stays the oldest.
      v_start.unripe_from := v_ripe.unripe_from;
      v_start.unripe_from_id := v_ripe.unripe_from_id;
      v_start.unripe_all_at := v_ripe.unripe_all_at;
      v_start.edge := coalesce((select c.claim_token from outbox.claimed as c
                                where c.claim_token >= v_start.edge and v_next[c.shard + 1] = c.shard
                                order by c.claim_token limit 1), v_token);
    end if;
    insert into outbox.walk as w (node, namespace, round, claimed_at, claimed, batch, edge, edge_shards,
                                  unripe_from, unripe_from_id, unripe_all_at, unripe_namespace, unripe_rest, detours)
    values (claim_fair.node, case when v_last > 0 then v_walk.visits[v_last].namespace else v_start.namespace end,
            case when v_last > 0 then v_walk.visits[v_last].round else v_start.round end, v_now,
            coalesce(cardinality(v_order.picked), 0), claim_fair.batch, v_start.edge, v_start.edge_shards,
            v_start.unripe_from, v_start.unripe_from_id, v_start.unripe_all_at, v_ripe.unripe_namespace, v_ripe.unripe_rest,
            -- new detours, and the former ones, for one claim less
            (select array_agg(row(d.after, d.upto, d.claims)::outbox.detour)
             from (select n.* from unnest(v_walk.detours) as n
                   union all
                   select f.after, f.upto, f.claims - 1 from unnest(v_start.detours) as f where f.claims > 1
                   limit 8) as d))
    on conflict on constraint walk_pkey do update
      set namespace = excluded.namespace, round = excluded.round, claimed_at = excluded.claimed_at,
          claimed = excluded.claimed, batch = excluded.batch, edge = excluded.edge, edge_shards = excluded.edge_shards,
          unripe_from = excluded.unripe_from, unripe_from_id = excluded.unripe_from_id,
          unripe_all_at = excluded.unripe_all_at, unripe_namespace = excluded.unripe_namespace, unripe_rest = excluded.unripe_rest, detours = excluded.detours;
  end if;
  if v_walk.several then
    -- For each namespace the route that was served last, or the one where a search in vain was cut.
    -- Without joins: of arrays they would be quadratic.
    insert into outbox.route as t (namespace, node, task_queue, served_at, shard)
    select distinct on (x.namespace) x.namespace, claim_fair.node, x.task_queue, v_now, v_held[1]
    from (
      select max(r.namespace) as namespace, max(r.task_queue) as task_queue, max(r.n) as n
      from (
        select u.route, u.namespace, u.task_queue, null::bigint as n
        from unnest(v_read.rotating, v_read.queues) with ordinality as u(namespace, task_queue, route)
        union all
        select p.route, null, null, p.n
        from unnest(v_order.picked) with ordinality
             as p(visit, route, nth, id, tid, due_at, shard, attempt, suspect, payload_bytes, n)
      ) as r
      group by r.route
      union all
      select v.namespace, v.looked_to, 0 from unnest(v_walk.visits) as v where v.verdict = 'idle' and v.looked_to is not null
    ) as x
    where x.n is not null and x.namespace is not null
    order by x.namespace, x.n desc
    on conflict on constraint route_pkey do update
      set task_queue = excluded.task_queue, served_at = excluded.served_at, shard = excluded.shard
      where t.task_queue <> excluded.task_queue;
  end if;
  if v_order.picked is null then
    return;
  end if;

  -- 6. Move the rows, and return them with what outbox.message has of them.
  with p as (
    delete from outbox.pending as d
    where d.ctid = any (array(select u.tid from unnest(v_order.picked) as u)) returning d.*
  )
  insert into outbox.claimed as c (id, namespace, task_queue, shard, visible_after, attempt, payload_bytes,
                                   claim_token, claimed_by, claimed_at, lease_until, suspect, begun)
  select p.id, p.namespace, p.task_queue, p.shard, p.visible_after,
         least(p.attempt, 2147483646) + 1, -- it must not overflow
         p.payload_bytes, v_token, claim_fair.node, v_now, v_until, p.suspect,
         case when claim_fair.payloads then least(cardinality(v_order.picked), 32767) else 0 end
  from p;
  get diagnostics v_moved = row_count;
  if v_moved <> cardinality(v_order.picked) then
    raise exception 'outbox.claim_fair: locked % rows and found % of them again', cardinality(v_order.picked), v_moved
      using errcode = 'internal_error';
  end if;
  return query
  select m.id, v_token, m.namespace, m.task_queue, m.dispatch_key, u.shard, least(u.attempt, 2147483646) + 1,
         m.content_type, case when claim_fair.payloads then m.headers end, case when claim_fair.payloads then m.payload end,
         v_until, u.pass, u.payload_bytes, u.suspect, m.created_at, u.due_at, v_now
  from unnest(v_order.picked, v_order.passes) with ordinality
       as u(visit, route, nth, id, tid, due_at, shard, attempt, suspect, payload_bytes, pass, n)
  cross join lateral ( -- a look-up each: a join could read every message there is
    select m.* from outbox.message as m where m.id = u.id offset 0
  ) as m
  order by u.n;
end $$;
comment on function outbox.claim_fair is 'Claims due messages, fairly over namespaces';
revoke all on function outbox.claim_fair from public;
-- <<< sql/functions/claim_fair.sql

-- >>> sql/functions/complete.sql
-- requires: check_settle.sql lock_claimed.sql
create or replace function outbox.complete(ids bigint[], tokens bigint[])
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
-- Settles delivered messages as done, in the caller's transaction: a consumer that does
-- its work in the same one has exactly-once effects. Returns the ids settled; the rest
-- were lost: claimed anew, cancelled, or settled already.
declare
  v_ids bigint[];
  v_now timestamptz;
begin
  perform outbox.check_settle('complete', complete.ids, complete.tokens);
  v_ids := outbox.lock_claimed(complete.ids, complete.tokens);
  v_now := clock_timestamp();
  return query
  with c as (
    delete from outbox.claimed as d where d.id = any (v_ids)
    returning d.id, d.namespace, d.task_queue, d.shard, d.attempt, d.claimed_by
  )
  insert into outbox.settled as s (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
  select c.id, c.namespace, c.task_queue, c.shard, 'done', c.attempt, v_now, c.claimed_by
  from c
  returning s.id;
end $$;
comment on function outbox.complete is 'Settles delivered messages as done; the ids settled, the rest were lost';
revoke all on function outbox.complete from public;
-- <<< sql/functions/complete.sql

-- >>> sql/functions/config_guard.sql
-- requires: span.sql
create or replace function outbox.config_guard()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Keeps shard_count as it is once a message exists: stored shards would no longer
-- match, and a key's shard must not change while it is in flight. Notes a default quota
-- that is lowered, as keep_former_quota() does. And holds spans to their bounds: the
-- constraints compare intervals, to which a month has 30 days and a year 360, so that
-- '-10 years 3607 days' is between them and still lasts for less than no time.
--
-- An insert beside the row replaces it: that is what a data-only restore does, which would
-- otherwise bring messages on shards that the count here does not have.
declare
  v_bad    text;
  v_former outbox.config := old;
begin
  if tg_op = 'DELETE' then
    if pg_trigger_depth() > 1 then -- by the insert below
      return old;
    end if;
    raise exception 'outbox.config must keep its one row'
      using errcode = 'OB005', hint = 'Update it instead.';
  end if;
  select string_agg(format('%s is %s', s.name, s.value), ', ') into v_bad
  from (values ('lease', new.lease, interval '1 s', interval '1 day'),
               ('retry_base', new.retry_base, '1 ms', '1 day'),
               ('retry_cap', new.retry_cap, outbox.span(new.retry_base), '371 days'),
               ('claim_idle_timeout', new.claim_idle_timeout, '100 ms', '1 h'),
               ('node_lapse', new.node_lapse, '1 s', '1 day'),
               ('retention', new.retention, '0', '38000 days')) as s(name, value, low, high)
  where outbox.span(s.value) not between s.low and s.high or extract(epoch from s.value) < 0;
  if v_bad is not null then
    raise exception '%', v_bad
      using errcode = 'check_violation', hint = 'Write a span in days or less: a month or year has no length of its own.';
  end if;
  if tg_op = 'INSERT' then
    select c.* into v_former from outbox.config as c;
  end if;
  if new.shard_count <> v_former.shard_count then
    -- Whoever is about to write the first message waits, and then reads the new count.
    lock table outbox.message in share row exclusive mode;
    if exists (select from outbox.message) then
      raise exception 'shard_count is fixed at % once a message exists', v_former.shard_count
        using errcode = 'OB005', hint = 'Drain and prune the outbox first.';
    end if;
    perform setval('outbox.shard_count_set', new.shard_count); -- for same_shard_count()
  end if;
  if new.default_quota < v_former.default_quota then
    insert into outbox.former_quota (until, quota, by) values (clock_timestamp(), v_former.default_quota, session_user);
  end if;
  if tg_op = 'INSERT' then
    delete from outbox.config as c;
  end if;
  return new;
end $$;
comment on function outbox.config_guard is 'Trigger: fixes shard_count once a message exists, notes a default quota that is lowered';
revoke all on function outbox.config_guard from public;
create or replace trigger config_guard before insert or update or delete on outbox.config
  for each row execute function outbox.config_guard();
-- <<< sql/functions/config_guard.sql

-- >>> sql/functions/configure.sql
-- requires: bad_argument.sql settings.sql
create or replace function outbox.configure(settings jsonb)
returns outbox.config
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Changes the settings named by the keys of a JSON object, as in
-- configure('{"lease": "30 s", "default_quota": 100}'), and returns all of them. Claims
-- use them from the next one on. shard_count is fixed once a message exists.
declare
  v_unknown text;
begin
  if jsonb_typeof(configure.settings) is distinct from 'object' then
    perform outbox.bad_argument('configure', 'settings', 'is not a JSON object', 'Give an object of settings and their values.');
  end if;
  select string_agg(k.name, ', ') into v_unknown
  from jsonb_object_keys(configure.settings) as k(name)
  where k.name = 'singleton'
     or not exists (select from pg_attribute as a
                    where a.attrelid = 'outbox.config'::regclass and a.attname = k.name and a.attnum > 0 and not a.attisdropped);
  if v_unknown is not null then
    perform outbox.bad_argument('configure', 'settings', format('has no setting %s', v_unknown),
      'select * from outbox.settings() lists them.');
  end if;
  update outbox.config as c
  set (shard_count, default_quota, lease, max_attempts, retry_base, retry_multiplier, retry_cap, retry_jitter,
       max_payload_bytes, max_header_bytes, max_batch, max_visits, max_routes, count_cap, claim_idle_timeout, node_lapse, retention)
    = (select n.shard_count, n.default_quota, n.lease, n.max_attempts, n.retry_base, n.retry_multiplier, n.retry_cap,
              n.retry_jitter, n.max_payload_bytes, n.max_header_bytes, n.max_batch, n.max_visits, n.max_routes, n.count_cap,
              n.claim_idle_timeout, n.node_lapse, n.retention
       from jsonb_populate_record(c, configure.settings) as n);
  return outbox.settings();
exception
  when data_exception or integrity_constraint_violation then
    perform outbox.bad_argument('configure', 'settings', format('has a value that does not fit: %s', sqlerrm),
      'outbox.settings() shows the values in force, the README what each takes.');
    return null;
end $$;
comment on function outbox.configure is 'Changes settings by a JSON object; all of them';
revoke all on function outbox.configure from public;
-- <<< sql/functions/configure.sql

-- >>> sql/functions/enqueue.sql
-- requires: looks_like_hex.sql bad_argument.sql check_key.sql shard_of.sql span.sql
create or replace function outbox.enqueue(
  namespace text, task_queue text, dispatch_key text, payload bytea,
  content_type text default 'application/json', headers jsonb default '{}', delay interval default null)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off -- a session may keep the plan that it made when the table was small
set jit = off
as $$
-- Writes one message in the caller's transaction; it is due when that commits, or
-- delay after this call where one is given (after the call, not after the
-- transaction's start). Returns its id, or null where this namespace has a message
-- with this key already (INV-3). Not strict: a null argument is an error, never
-- a message that was not written.
declare
  v_now    timestamptz := clock_timestamp();
  v_config outbox.config;
  v_due    timestamptz;
  v_owner  text;
  v_id     bigint;
begin
  perform outbox.check_key('enqueue', 'namespace', enqueue.namespace);
  perform outbox.check_key('enqueue', 'task_queue', enqueue.task_queue);
  perform outbox.check_key('enqueue', 'dispatch_key', enqueue.dispatch_key);
  if enqueue.payload is null then
    perform outbox.bad_argument('enqueue', 'payload', 'is null', 'Give bytes; an empty payload is ''''::bytea.');
  end if;
  if coalesce(octet_length(enqueue.content_type), 0) not between 1 and 256 then
    perform outbox.bad_argument('enqueue', 'content_type', 'is null, empty or too long', 'Give 1 to 256 bytes of text.');
  end if;
  if jsonb_typeof(enqueue.headers) is distinct from 'object' then
    perform outbox.bad_argument('enqueue', 'headers', 'is not a JSON object', 'Give an object; for none, ''{}''.');
  end if;
  select c.* into strict v_config from outbox.config as c;
  if octet_length(enqueue.payload) > v_config.max_payload_bytes then
    raise exception 'outbox.enqueue: payload has % bytes, the limit is %',
        octet_length(enqueue.payload), v_config.max_payload_bytes
      using errcode = 'OB004', hint = 'Store it elsewhere and enqueue a reference, or raise outbox.config.max_payload_bytes.';
  end if;
  if octet_length(enqueue.headers::text) > v_config.max_header_bytes then
    raise exception 'outbox.enqueue: headers have % bytes, the limit is %',
        octet_length(enqueue.headers::text), v_config.max_header_bytes
      using errcode = 'OB004', hint = 'Put what is large into the payload, or raise outbox.config.max_header_bytes.';
  end if;
  -- A delay reckoned from a clock that has run on since may be negative: due now, as without one.
  v_due := v_now + coalesce(outbox.span(enqueue.delay), '0');
  loop
    with m as (
      insert into outbox.message as n (namespace, task_queue, dispatch_key, content_type, headers, payload, created_at)
      values (enqueue.namespace, enqueue.task_queue, enqueue.dispatch_key, enqueue.content_type,
              enqueue.headers, enqueue.payload, v_now)
      on conflict on constraint message_dispatch_key_key do nothing
      returning n.id
    )
    insert into outbox.pending as p (id, namespace, task_queue, shard, visible_after, ripe, payload_bytes)
    select m.id, enqueue.namespace, enqueue.task_queue,
           outbox.shard_of(enqueue.dispatch_key, (select c.shard_count from outbox.config as c)), v_due,
           v_due <= v_now,
           octet_length(enqueue.payload)
    from m
    returning p.id into v_id;
    if found then
      perform outbox.same_shard_count(v_config.shard_count);
      return v_id;
    end if;
    -- A new statement, so that it sees what the insert ran into. It may be pruned by
    -- now: then there is no such message any more, and the key is free.
    select m.namespace into v_owner from outbox.message as m where m.dispatch_key = enqueue.dispatch_key;
    if found then
      if v_owner <> enqueue.namespace then
        raise exception 'outbox.enqueue: dispatch_key % belongs to another namespace', quote_literal(enqueue.dispatch_key)
          using errcode = 'OB003', hint = 'Dispatch keys are unique over all namespaces: begin each with the namespace, as in acme/order/17, and take none as it is from a tenant.';
      end if;
      return null;
    end if;
  end loop;
end $$;
comment on function outbox.enqueue(text, text, text, bytea, text, jsonb, interval) is
  'Writes a message in this transaction; its id, or null for a duplicate';
revoke all on function outbox.enqueue(text, text, text, bytea, text, jsonb, interval) from public;

create or replace function outbox.enqueue(
  namespace text, task_queue text, dispatch_key text, payload text,
  content_type text default 'application/json', headers jsonb default '{}', delay interval default null)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- enqueue() for a payload at hand as text, which becomes its bytes in UTF-8, as they are. A
-- literal in quotes and a parameter without a type come here: read as bytea, their
-- backslashes would be escapes. What looks like bytea in its hex form is refused, since bytes were
-- meant, more likely: those want ::bytea.
begin
  if outbox.looks_like_hex(enqueue.payload) then
    perform outbox.bad_argument('enqueue', 'payload', 'is text that looks like bytes in hex',
      'For the bytes, write ::bytea behind it; for this very text, give convert_to(payload, ''UTF8'').');
  end if;
  return outbox.enqueue(enqueue.namespace, enqueue.task_queue, enqueue.dispatch_key, convert_to(enqueue.payload, 'UTF8'),
                        enqueue.content_type, enqueue.headers, enqueue.delay);
end $$;
comment on function outbox.enqueue(text, text, text, text, text, jsonb, interval) is
  'enqueue() with a text payload: its bytes in UTF-8';
revoke all on function outbox.enqueue(text, text, text, text, text, jsonb, interval) from public;
-- <<< sql/functions/enqueue.sql

-- >>> sql/functions/enqueue_batch.sql
-- requires: looks_like_hex.sql bad_argument.sql shard_of.sql span.sql
create or replace function outbox.enqueue_batch(
  namespaces text[], task_queues text[], dispatch_keys text[], payloads bytea[],
  content_types text[] default null, headers jsonb[] default null, delays interval[] default null)
returns table (ord int, id bigint)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_nestloop = off -- joins are among unnested arrays: nested loops would be quadratic
set enable_seqscan = off
set jit = off
as $$
-- enqueue() for many messages: one row back for each, by its place in the arrays, 1
-- the first; id is null for a duplicate, of a message that exists or of one before it
-- in the same batch. A bad element or a key of another namespace raises, with its
-- positions, and writes nothing. Rows are written in the order of their keys, so
-- that two batches with the same keys wait for each other instead of deadlocking.
declare
  v_now    timestamptz := clock_timestamp();
  v_config outbox.config;
  v_count  int := cardinality(enqueue_batch.dispatch_keys);
  v_bad    record;
  v_keys   text[];  -- what was written
  v_ids    bigint[];
  v_owners text[];
begin
  if enqueue_batch.namespaces is null or enqueue_batch.task_queues is null
     or enqueue_batch.dispatch_keys is null or enqueue_batch.payloads is null then
    perform outbox.bad_argument('enqueue_batch', 'namespaces, task_queues, dispatch_keys or payloads',
      'is null', 'Give four arrays of one length.');
  end if;
  select x.name, x.len into v_bad
  from (values ('namespaces', cardinality(enqueue_batch.namespaces)),
               ('task_queues', cardinality(enqueue_batch.task_queues)),
               ('payloads', cardinality(enqueue_batch.payloads)),
               ('content_types', cardinality(enqueue_batch.content_types)),
               ('headers', cardinality(enqueue_batch.headers)),
               ('delays', cardinality(enqueue_batch.delays))) as x(name, len)
  where x.len <> v_count limit 1;
  if found then
    perform outbox.bad_argument('enqueue_batch', v_bad.name,
      format('has %s elements, dispatch_keys has %s', v_bad.len, v_count), 'Give arrays of one length.');
  end if;
  select c.* into strict v_config from outbox.config as c;

  select x.* into v_bad
  from (
    select u.*, octet_length(u.payload) as bytes, octet_length(u.header::text) as header_bytes,
           case when coalesce(octet_length(u.namespace), 0) not between 1 and 512 then 'namespaces'
                when coalesce(octet_length(u.task_queue), 0) not between 1 and 512 then 'task_queues'
                when coalesce(octet_length(u.dispatch_key), 0) not between 1 and 512 then 'dispatch_keys'
                when u.payload is null then 'payloads'
                when octet_length(u.payload) > v_config.max_payload_bytes then 'large'
                when octet_length(u.content_type) not between 1 and 256 then 'content_types'
                when jsonb_typeof(u.header) <> 'object' then 'headers'
                when octet_length(u.header::text) > v_config.max_header_bytes then 'large headers'
           end as argument
    from unnest(enqueue_batch.namespaces, enqueue_batch.task_queues, enqueue_batch.dispatch_keys,
                enqueue_batch.payloads, enqueue_batch.content_types, enqueue_batch.headers) with ordinality
         as u(namespace, task_queue, dispatch_key, payload, content_type, header, ord)
  ) as x
  where x.argument is not null
  order by x.ord limit 1;
  if v_bad.argument = 'large' then
    raise exception 'outbox.enqueue_batch: payloads[%] has % bytes, the limit is %',
        v_bad.ord, v_bad.bytes, v_config.max_payload_bytes
      using errcode = 'OB004', hint = 'Store it elsewhere and enqueue a reference, or raise outbox.config.max_payload_bytes.';
  elsif v_bad.argument = 'large headers' then
    raise exception 'outbox.enqueue_batch: headers[%] have % bytes, the limit is %',
        v_bad.ord, v_bad.header_bytes, v_config.max_header_bytes
      using errcode = 'OB004', hint = 'Put what is large into the payload, or raise outbox.config.max_header_bytes.';
  elsif found then
    perform outbox.bad_argument('enqueue_batch', format('%s[%s]', v_bad.argument, v_bad.ord),
      coalesce(case v_bad.argument
        when 'namespaces' then 'has ' || octet_length(v_bad.namespace) || ' bytes'
        when 'task_queues' then 'has ' || octet_length(v_bad.task_queue) || ' bytes'
        when 'dispatch_keys' then 'has ' || octet_length(v_bad.dispatch_key) || ' bytes'
        when 'content_types' then 'has ' || octet_length(v_bad.content_type) || ' bytes'
        when 'headers' then 'is JSON, but no object: ' || jsonb_typeof(v_bad.header) end, 'is null'),
      case v_bad.argument
        when 'payloads' then 'Give bytes; an empty payload is ''''::bytea.'
        when 'headers' then 'Give an object; for none, ''{}'' or null.'
        when 'content_types' then 'Give 1 to 256 bytes of text, or null for application/json.'
        else 'Give 1 to 512 bytes of text.' end);
  end if;

  loop
    -- A key that the insert ran into may be free by the time that is looked at: its message
    -- was pruned. To write that key now, behind greater ones, could deadlock with a batch that
    -- holds it and waits for one of those. So they are all given back, and written again in
    -- their order.
    begin
      with u as materialized (
        select distinct on (u.dispatch_key collate "C") u.*
        from unnest(enqueue_batch.namespaces, enqueue_batch.task_queues, enqueue_batch.dispatch_keys,
                    enqueue_batch.payloads, enqueue_batch.content_types, enqueue_batch.headers,
                    enqueue_batch.delays) with ordinality
             as u(namespace, task_queue, dispatch_key, payload, content_type, header, delay, ord)
        order by u.dispatch_key collate "C", u.ord
      ), m as (
        insert into outbox.message as n (namespace, task_queue, dispatch_key, content_type, headers, payload, created_at)
        select u.namespace, u.task_queue, u.dispatch_key, coalesce(u.content_type, 'application/json'),
               coalesce(u.header, '{}'), u.payload, v_now
        from u
        on conflict on constraint message_dispatch_key_key do nothing
        returning n.id, n.namespace, n.task_queue, n.dispatch_key, octet_length(n.payload) as bytes
      ), p as (
        insert into outbox.pending as q (id, namespace, task_queue, shard, visible_after, ripe, payload_bytes)
        select m.id, m.namespace, m.task_queue, outbox.shard_of(m.dispatch_key, (select c.shard_count from outbox.config as c)),
               v_now + coalesce(outbox.span(u.delay), '0'), v_now + coalesce(outbox.span(u.delay), '0') <= v_now, m.bytes
        from m join u on u.dispatch_key = m.dispatch_key
      )
      select array_agg(m.dispatch_key), array_agg(m.id), array_agg(m.namespace)
      into v_keys, v_ids, v_owners
      from m;

      -- What the insert ran into, in a new statement, as in enqueue; not what it wrote, which
      -- an older snapshot may see beside the pruned one of the same key. The look-up is a
      -- scalar one, by the key's index: a join could read every message there is.
      select array_agg(x.ord order by x.ord) filter (where x.owner <> x.namespace) as foreigners,
             bool_or(x.owner is null) as pruned
      into v_bad
      from (select u.ord, u.namespace, u.dispatch_key,
                   coalesce(w.owner, (select m.namespace from outbox.message as m
                                      where w.owner is null and m.dispatch_key = u.dispatch_key)) as owner
            from unnest(enqueue_batch.namespaces, enqueue_batch.dispatch_keys) with ordinality
                 as u(namespace, dispatch_key, ord)
            left join unnest(v_keys, v_owners) as w(dispatch_key, owner) on w.dispatch_key = u.dispatch_key) as x;
      if v_bad.foreigners is not null then
        raise exception 'outbox.enqueue_batch: dispatch_keys at positions % belong to another namespace',
            array_to_string(v_bad.foreigners[1:20], ', ')
            || case when cardinality(v_bad.foreigners) > 20 then ', ...' else '' end
          using errcode = 'OB003', hint = 'Dispatch keys are unique over all namespaces: begin each with the namespace, as in acme/order/17, and take none as it is from a tenant.';
      elsif v_bad.pruned then
        raise exception using errcode = 'OB099', message = 'a key was pruned meanwhile';
      end if;
      exit;
    exception when sqlstate 'OB099' then -- what was written is gone; nobody else raises this
    end;
  end loop;

  perform outbox.same_shard_count(v_config.shard_count);

  return query
  select u.ord::int, case when u.nth = 1 then d.id end
  from (select k.ord, k.dispatch_key, row_number() over (partition by k.dispatch_key order by k.ord) as nth
        from unnest(enqueue_batch.dispatch_keys) with ordinality as k(dispatch_key, ord)) as u
  left join unnest(v_keys, v_ids) as d(dispatch_key, id) on d.dispatch_key = u.dispatch_key
  order by u.ord;
end $$;
comment on function outbox.enqueue_batch is 'Writes many messages in this transaction; the id of each, or null for a duplicate';
revoke all on function outbox.enqueue_batch from public;

create or replace function outbox.enqueue_texts(
  namespaces text[], task_queues text[], dispatch_keys text[], payloads text[],
  content_types text[] default null, headers jsonb[] default null, delays interval[] default null)
returns table (ord int, id bigint)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- enqueue_batch() for payloads at hand as text, as enqueue() takes one. It has a name of its own:
-- as an overload, no call with untyped arrays could be told from one with bytes.
declare
  v_hex int := (select u.ord from unnest(enqueue_texts.payloads) with ordinality as u(payload, ord)
                where outbox.looks_like_hex(u.payload) limit 1);
begin
  if v_hex is not null then
    perform outbox.bad_argument('enqueue_texts', format('payloads[%s]', v_hex), 'is text that looks like bytes in hex',
      'Give bytes to enqueue_batch(), as bytea[].');
  end if;
  return query
  select b.ord, b.id
  from outbox.enqueue_batch(enqueue_texts.namespaces, enqueue_texts.task_queues, enqueue_texts.dispatch_keys,
         case when enqueue_texts.payloads is not null
              then array(select convert_to(u.payload, 'UTF8') from unnest(enqueue_texts.payloads) with ordinality as u(payload, ord)
                         order by u.ord) end,
         enqueue_texts.content_types, enqueue_texts.headers, enqueue_texts.delays) as b;
end $$;
comment on function outbox.enqueue_texts is 'enqueue_batch() with text payloads: their bytes in UTF-8';
revoke all on function outbox.enqueue_texts from public;
-- <<< sql/functions/enqueue_batch.sql

-- >>> sql/functions/pause_text.sql
-- requires: time_text.sql
create or replace function outbox.pause_text(pause outbox.pause, now timestamptz)
returns text
language sql stable
-- Who paused what, since when and why: paused by ops since 12:10:00, "provider down".
begin atomic
  select case when (pause_text.pause).namespace is not null and (pause_text.pause).task_queue is not null
              then format('route %s is paused', quote_literal((pause_text.pause).task_queue))
              when (pause_text.pause).task_queue is not null
              then format('route %s of all is paused', quote_literal((pause_text.pause).task_queue))
              when (pause_text.pause).namespace is not null then 'paused'
              else 'everything is paused' end
         || format(' by %s since %s', (pause_text.pause).by, outbox.time_text((pause_text.pause).since, pause_text.now))
         || coalesce(', "' || (pause_text.pause).note || '"', '');
end;
comment on function outbox.pause_text is 'A pause as text';
revoke all on function outbox.pause_text from public;
-- <<< sql/functions/pause_text.sql

-- >>> sql/functions/paused_routes.sql
-- requires: pause_text.sql walk_routes.sql walk_lanes.sql
create or replace function outbox.paused_routes(namespace text, next_held int[], now timestamptz)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- The pauses of a namespace's routes that have due messages on held shards, as text; null
-- if there are none.
begin
  return (
    select string_agg(distinct x.reason, '; ')
    from outbox.walk_routes(paused_routes.namespace) as r
    cross join lateral (
      select outbox.pause_text(p, paused_routes.now) as reason from outbox.pause as p
      where p.task_queue = r.task_queue and (p.namespace = paused_routes.namespace or p.namespace is null)
      order by p.namespace nulls last limit 1
    ) as x
    where exists (select from outbox.walk_lanes(paused_routes.namespace, r.task_queue, 0, paused_routes.next_held) as l
                  where l.head <= paused_routes.now)
  );
end $$;
comment on function outbox.paused_routes is 'The pauses of a namespace''s routes with due messages, as text';
revoke all on function outbox.paused_routes from public;
-- <<< sql/functions/paused_routes.sql

-- >>> sql/functions/hold_reason.sql
-- requires: time_text.sql pause_text.sql paused_routes.sql walk_routes.sql walk_lanes.sql
create or replace function outbox.hold_reason(
  namespace text, verdict text, claimed int, ceiling int, quota int, next_held int[], now timestamptz)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- Why a claim takes nothing from a namespace, given claim_walk's verdict on it; null
-- where it is eligible.
declare
  v_next   timestamptz;
  v_unripe timestamptz;
begin
  if hold_reason.verdict = 'paused' then
    return (select outbox.pause_text(p, hold_reason.now) from outbox.pause as p
            where p.task_queue is null and (p.namespace = hold_reason.namespace or p.namespace is null)
            order by p.namespace nulls last limit 1);
  elsif hold_reason.verdict = 'ceiling' then
    return case when hold_reason.quota = 0 then 'its quota is 0, which holds everything'
                when hold_reason.ceiling < hold_reason.quota
                then format('at its ceiling, %s of %s (its quota of %s, on these shards)', hold_reason.claimed,
                            hold_reason.ceiling, hold_reason.quota)
                else format('at its ceiling, %s of %s', hold_reason.claimed, hold_reason.ceiling) end;
  elsif hold_reason.verdict = 'idle' then
    select min(l.head) into v_next
    from outbox.walk_routes(hold_reason.namespace) as r
    cross join lateral outbox.walk_lanes(hold_reason.namespace, r.task_queue, 0, hold_reason.next_held) as l
    where not exists (select from outbox.pause as p
                      where p.task_queue = r.task_queue and (p.namespace = hold_reason.namespace or p.namespace is null));
    select min(u.visible_after) into v_unripe
    from (select p.shard, p.visible_after from outbox.pending as p -- within a bound: other shards may have very many
          where not p.ripe and p.ring = outbox.ring(hold_reason.namespace) and p.namespace = hold_reason.namespace
          order by p.visible_after, p.id limit 1000) as u
    where hold_reason.next_held[u.shard + 1] = u.shard;
    return case when v_next <= hold_reason.now
                then 'due only on routes that this sweep does not come to (config.max_routes)'
                else coalesce(outbox.paused_routes(hold_reason.namespace, hold_reason.next_held, hold_reason.now),
                              case when v_unripe <= hold_reason.now
                                   then 'came due at ' || outbox.time_text(v_unripe, hold_reason.now) || ': the next claim makes it ripe, and serves it then' end,
                              'nothing due until ' || outbox.time_text(least(v_next, v_unripe), hold_reason.now),
                              'nothing pending on these shards') end;
  end if;
  return null;
end $$;
comment on function outbox.hold_reason is 'Why a claim takes nothing from a namespace';
revoke all on function outbox.hold_reason from public;
-- <<< sql/functions/hold_reason.sql

-- >>> sql/functions/explain_claim.sql
-- requires: check_claim.sql next_held.sql walk_start.sql claim_walk.sql claim_read.sql claim_order.sql ceil_div.sql unripe_due.sql unripe_namespaces.sql hold_reason.sql paused_routes.sql count_due.sql claim_locks.sql node_lock.sql shards_text.sql
create or replace function outbox.explain_claim(
  node text, shards int[], batch int, max_bytes bigint default null, "only" text default null)
returns table (namespace text, due bigint, claimed int, quota int, ceiling int, headroom int, slice int,
               pass1 int, pass2 int, reason text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_material = off
set enable_memoize = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
-- What claim_fair with these arguments would do now, and why: a row for each namespace
-- that it would visit, in the order of the walk, and for some of those that it would not come to,
-- since all their messages wait for their time. It runs the same plan (claim_walk, claim_read,
-- claim_order), writes nothing and takes no lock. So what others have locked at this instant,
-- which claim_fair leaves out, counts here; and what has come due and is not ripe yet, which
-- claim_fair makes ripe first, counts as due, and is not in the passes. "only" answers for one
-- namespace, wherever the walk stands. due counts no further than config.count_cap. What
-- stands in the way of the claim itself comes first, in rows without a namespace.
declare
  v_config outbox.config;
  v_shards int[];
  v_held   int[];
  v_next   int[];
  v_now    timestamptz := clock_timestamp();
  v_to     text;
  v_turn   bigint;
  v_row    record;
  v_unripe bigint;
  v_others text[];
begin
  select c.* into strict v_config from outbox.config as c;
  v_shards := outbox.check_claim('explain_claim', explain_claim.node, explain_claim.shards, explain_claim.batch, v_config);
  v_held := v_shards;
  for v_row in
    select l.session || case when l.stray then format(', which is not claiming (to end it: %s)', l.remedy) else '' end as session,
           bool_or(l.key < 0) as is_node, bool_or(l.stray) as stray, array_agg(l.key order by l.key) filter (where l.key = any (v_shards)) as shards
    from outbox.claim_locks() as l
    where l.key between 0 and 1023 or l.key = outbox.node_lock(explain_claim.node)
    group by 1, l.pid order by l.pid
  loop
    if v_row.is_node then
      reason := format(case when v_row.stray then 'the claim would be empty: the lock of node %s is held by %s'
                            else 'the claim would be empty: node %s is claiming in %s' end, quote_literal(explain_claim.node), v_row.session);
      return next;
    end if;
    if v_row.shards is not null then
      v_held := array(select s.shard from unnest(v_held) as s(shard) where s.shard <> all (v_row.shards));
      reason := format('shards %s are held by %s and left out', outbox.shards_text(v_row.shards), v_row.session);
      return next;
    end if;
  end loop;
  if explain_claim.max_bytes <= 0 then
    reason := format('the claim would be empty: max_bytes is %s', explain_claim.max_bytes);
    return next;
    return;
  elsif cardinality(v_held) = 0 then
    reason := 'the claim would be empty: it has no shards';
    return next;
    return;
  end if;
  v_next := outbox.next_held(v_held, v_config.shard_count);

  select w.namespace, w.round into strict v_to, v_turn from outbox.walk_start(explain_claim.node, v_shards) as w;
  -- The one asked for, if the walk ends before it, or some that have nothing ripe.
  v_others := case when explain_claim."only" is not null then array[explain_claim."only"] else array(
    select u.namespace from outbox.unripe_namespaces(100) as u
    where (select p.id from outbox.pending as p -- not as an anti join, which could read all there are
           where p.ripe and p.ring = outbox.ring(u.namespace) and p.namespace = u.namespace
           order by p.ring, p.namespace, p.route_ring, p.task_queue, p.shard, p.visible_after, p.id limit 1) is null) end;
  for v_row in
    with walk as materialized (
      select w.* from outbox.claim_walk(explain_claim.node, v_next, cardinality(v_held), explain_claim.batch,
                                        v_to, v_turn, v_now, 0, null, false, v_config, null) as w
    ), pick as materialized (
      select x.visit, count(*) filter (where x.pass = 1) as pass1, count(*) filter (where x.pass = 2) as pass2
      from walk as w
      cross join lateral outbox.claim_read(explain_claim.node, w.visits, w.active, w.width, v_held, v_next, explain_claim.batch,
                                           v_now, false, v_config) as r
      cross join lateral outbox.claim_order(r.candidates, r.wanted, outbox.ceil_div(explain_claim.batch, w.active), explain_claim.batch,
                                            explain_claim.max_bytes, case when w.ended = 'around' then w.visits[1].round end) as o
      cross join lateral unnest(o.picked, o.passes)
                         as x(visit, route, nth, id, tid, due_at, shard, attempt, suspect, payload_bytes, pass)
      where w.active > 0
      group by x.visit
    ), visited as (
      select v.* from walk as w
      cross join lateral unnest(w.visits) with ordinality
                         as v(namespace, round, verdict, quota, claimed, ceiling, sole, routes, looked_to, n)
      union all
      select o.visits[1].*, null
      from unnest(v_others) as u(namespace)
      cross join lateral outbox.claim_walk(explain_claim.node, v_next, cardinality(v_held), 1, v_to, v_turn, v_now, 0,
                                           u.namespace, false, v_config, null) as o
      where u.namespace <> all (select v.namespace from walk as w cross join lateral unnest(w.visits) as v)
    )
    select v.*, w.active, coalesce(p.pass1, 0) as pass1, coalesce(p.pass2, 0) as pass2
    from visited as v
    cross join walk as w
    left join pick as p on p.visit = v.n
    where explain_claim."only" is null or v.namespace = explain_claim."only"
    order by v.n
  loop
    namespace := v_row.namespace;
    due := outbox.count_due(v_row.namespace, v_next, v_now, v_config.count_cap);
    claimed := v_row.claimed;
    quota := v_row.quota;
    ceiling := v_row.ceiling;
    headroom := greatest(v_row.ceiling - v_row.claimed, 0);
    slice := case when v_row.active > 0 then outbox.ceil_div(explain_claim.batch, v_row.active) end;
    pass1 := v_row.pass1;
    pass2 := v_row.pass2;
    v_unripe := (select count(*) from outbox.unripe_due(v_row.namespace, v_next, v_now, v_config.count_cap) as u);
    reason := coalesce(
      outbox.hold_reason(v_row.namespace, v_row.verdict, v_row.claimed, v_row.ceiling, v_row.quota, v_next, v_now),
      case when pass1 + pass2 = 0 then 'not reached this sweep'
           else format('served %s of %s%s', pass1 + pass2, greatest(due, pass1 + pass2),
                       case when due >= v_config.count_cap then ' or more' else '' end)
                || case when pass1 + pass2 >= due then ''
                        when pass1 + pass2 >= headroom then format(', up to its ceiling of %s', ceiling)
                        when v_unripe > 0 then format(', and %s more that the claim first makes ripe', v_unripe)
                        else coalesce('; ' || outbox.paused_routes(v_row.namespace, v_next, v_now),
                                      ', as many as the claim holds for it') end
      end);
    return next;
  end loop;
end $$;
comment on function outbox.explain_claim is 'What claim_fair would do now, and why; writes nothing';
revoke all on function outbox.explain_claim from public;
-- <<< sql/functions/explain_claim.sql

-- >>> sql/functions/extend.sql
-- requires: bad_argument.sql check_settle.sql span.sql
create or replace function outbox.extend(ids bigint[], tokens bigint[], lease interval default null)
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- Lets claims run on for a lease from now (null: config.lease). Returns the ids that are
-- still this claim's; the rest were lost, and whoever works on them should stop. It never
-- waits: a row that somebody has locked, to settle it perhaps, is not extended and not
-- lost either, and keeps nobody from extending the others.
declare
  v_ids   bigint[];
  v_lease interval := coalesce(extend.lease, (select c.lease from outbox.config as c));
begin
  perform outbox.check_settle('extend', extend.ids, extend.tokens);
  if outbox.span(v_lease) not between '1 ms' and '1 day' then -- the span: '-10 years 3651 days' compares as 51 days
    perform outbox.bad_argument('extend', 'lease', format('is %s', v_lease), 'Give up to a day, or null for config.lease.');
  end if;
  v_ids := array(
    select c.id
    from (select distinct u.id, u.token from unnest(extend.ids, extend.tokens) as u(id, token)) as u
    cross join lateral (
      select c.id from outbox.claimed as c where c.id = u.id and c.claim_token + 0 = u.token for update skip locked
    ) as c);
  update outbox.claimed as c set lease_until = clock_timestamp() + outbox.span(v_lease)
  where c.id = any (v_ids);
  return query
  select c.id
  from (select distinct u.id, u.token from unnest(extend.ids, extend.tokens) as u(id, token)) as u
  cross join lateral (
    select c.id from outbox.claimed as c where c.id = u.id and c.claim_token + 0 = u.token offset 0
  ) as c;
end $$;
comment on function outbox.extend is 'Lets claims run on; the ids that are still ours, the rest were lost';
revoke all on function outbox.extend from public;
-- <<< sql/functions/extend.sql

-- >>> sql/functions/failed_attempts.sql
-- requires: retry_delay.sql span.sql
create or replace function outbox.failed_attempts(
  locked bigint[], ids bigint[], tokens bigint[], errors text[], delays interval[], final boolean)
returns table (id bigint, state text)
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_nestloop = off -- the join is with an unnested array: a nested loop would be quadratic
set jit = off
as $$
-- Ends failed attempts at claimed messages that the caller has locked: back to pending
-- after a delay (null: the policy's backoff), or to failed where that was the last of
-- config.max_attempts or is final. Each leaves a row in outbox.failure. Error texts
-- come from outside: they are cut here to 2,000 characters, in the middle, since both ends may
-- say why; and a missing one is no error.
declare
  v_now    timestamptz := clock_timestamp();
  v_config outbox.config;
begin
  if cardinality(failed_attempts.locked) = 0 then
    return;
  end if;
  select c.* into strict v_config from outbox.config as c;
  return query
  with u as (
    select distinct on (x.id, x.token)
           x.id, x.token,
           case when length(x.error) > 2000 then left(x.error, 999) || '…' || right(x.error, 1000)
                else coalesce(nullif(x.error, ''), 'no reason given') end as error,
           x.delay
    from unnest(failed_attempts.ids, failed_attempts.tokens, failed_attempts.errors, failed_attempts.delays)
         as x(id, token, error, delay)
    order by x.id, x.token
  ), c as (
    delete from outbox.claimed as d where d.id = any (failed_attempts.locked) returning d.*
  ), f as (
    select c.*, u.error, failed_attempts.final or c.attempt >= v_config.max_attempts as over,
           v_now + outbox.span(coalesce(u.delay,
             outbox.retry_delay(c.attempt, v_config.retry_base, v_config.retry_multiplier, v_config.retry_cap,
                                v_config.retry_jitter, random()))) as due_at
    from c join u on u.id = c.id and u.token = c.claim_token
  ), logged as (
    insert into outbox.failure (id, attempt, at, node, error)
    select f.id, f.attempt, v_now, f.claimed_by, f.error from f
  ), again as (
    insert into outbox.pending (id, namespace, task_queue, shard, visible_after, ripe, attempt, payload_bytes)
    select f.id, f.namespace, f.task_queue, f.shard, f.due_at, f.due_at <= v_now, f.attempt, f.payload_bytes
    from f where not f.over
  ), over as (
    insert into outbox.settled (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by, error)
    select f.id, f.namespace, f.task_queue, f.shard, 'failed', f.attempt, v_now, f.claimed_by, f.error
    from f where f.over
  )
  select f.id, case when f.over then 'failed' else 'pending' end from f;
end $$;
comment on function outbox.failed_attempts is 'Ends failed attempts at locked messages: pending again, or failed';
revoke all on function outbox.failed_attempts from public;
-- <<< sql/functions/failed_attempts.sql

-- >>> sql/functions/fail.sql
-- requires: check_settle.sql lock_claimed.sql failed_attempts.sql
create or replace function outbox.fail(ids bigint[], tokens bigint[], errors text[] default null)
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Settles messages that can never be delivered as failed (dead letters; redrive()
-- brings them back). As complete().
begin
  perform outbox.check_settle('fail', fail.ids, fail.tokens);
  if cardinality(fail.errors) <> cardinality(fail.ids) then
    perform outbox.bad_argument('fail', 'errors', 'has another length than ids', 'Give one for each id, or null.');
  end if;
  return query
  select f.id from outbox.failed_attempts(outbox.lock_claimed(fail.ids, fail.tokens),
                                          fail.ids, fail.tokens, fail.errors, null, true) as f;
end $$;
comment on function outbox.fail is 'Settles messages as failed; the ids settled, the rest were lost';
revoke all on function outbox.fail from public;
-- <<< sql/functions/fail.sql

-- >>> sql/functions/pause.sql
-- requires: check_key.sql
create or replace function outbox.pause(namespace text, task_queue text default null, note text default null)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Holds a namespace, one of its routes, a route of all namespaces (namespace null), or
-- everything (both null), from the next claim on; what is claimed goes on. The note
-- tells the next one on duty why. False: it was paused already, and got the new note.
begin
  if pause.namespace is not null then
    perform outbox.check_key('pause', 'namespace', pause.namespace);
  end if;
  if pause.task_queue is not null then
    perform outbox.check_key('pause', 'task_queue', pause.task_queue);
  end if;
  update outbox.pause as p set note = coalesce(left(pause.note, 1000), p.note)
  where p.namespace is not distinct from pause.namespace and p.task_queue is not distinct from pause.task_queue;
  if found then
    return false;
  end if;
  insert into outbox.pause (namespace, task_queue, since, by, note)
  values (pause.namespace, pause.task_queue, clock_timestamp(), session_user, left(pause.note, 1000))
  on conflict on constraint pause_key do nothing;
  return found;
end $$;
comment on function outbox.pause is 'Holds a namespace, a route of it, a route of all, or all';
revoke all on function outbox.pause from public;
-- <<< sql/functions/pause.sql

-- >>> sql/functions/prune.sql
-- requires: bad_argument.sql span.sql lock_class.sql node_lock.sql redrive.sql
create or replace function outbox.prune(older_than interval default null, max int default 1000, failed boolean default false)
returns int
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
set jit = off
as $$
-- Deletes up to max messages that were done or cancelled (and failed, when asked) longer
-- ago than older_than (null: config.retention), with payloads and failures, the walks
-- of nodes that are gone, and quotas that were lowered long ago. Their dispatch keys are
-- free again. Returns how many messages; call it until that is below max.
declare
  v_before  timestamptz;
  v_outcome text;
  v_ids     bigint[];
  v_done    int := 0;
  v_node    text;
  v_newest  outbox.walk; -- the walk of the node that claimed last
  v_kept    interval := (select c.retention from outbox.config as c);
  -- Spans, which are what counts: '-10 years 3607 days' compares as 7 days, and is less than none.
  v_age     interval := outbox.span(coalesce(prune.older_than, v_kept));
  v_invoker name := coalesce(nullif(current_setting('role'), 'none'), session_user); -- the role that is set, if one is
begin
  if extract(epoch from prune.older_than) < 0 then
    perform outbox.bad_argument('prune', 'older_than', 'is negative', 'Give an age, as in ''7 days''.');
  elsif coalesce(prune.max, 0) < 1 then
    perform outbox.bad_argument('prune', 'max', 'is null or below 1', 'Give the most messages to delete.');
  end if;
  if (prune.failed or v_age < outbox.span(v_kept))
     and not has_function_privilege(v_invoker, 'outbox.redrive(bigint[])', 'execute') then
    raise exception 'outbox.prune: only operators prune failed messages, or others before their retention of %', v_kept
      using errcode = 'insufficient_privilege', hint = 'outbox.grant_operator makes an operator.';
  end if;
  v_before := clock_timestamp() - v_age;
  foreach v_outcome in array case when prune.failed then '{done,cancelled,failed}' else '{done,cancelled}' end::text[] loop
    v_ids := array(select s.id from outbox.settled as s
                   where s.outcome = v_outcome and s.settled_at <= v_before
                   order by s.settled_at limit prune.max - v_done
                   for update skip locked);
    delete from outbox.failure as f where f.id = any (v_ids);
    delete from outbox.message as m where m.id = any (v_ids);
    delete from outbox.settled as s where s.id = any (v_ids);
    v_done := v_done + cardinality(v_ids);
    exit when v_done >= prune.max;
  end loop;
  delete from outbox.went_back as b where b.ctid = any (array(
    select w.ctid from outbox.went_back as w
    where w.at < clock_timestamp() - interval '30 days' limit 100 for update skip locked));
  delete from outbox.former_quota as q where q.ctid = any (array(
    select f.ctid from outbox.former_quota as f
    where f.until < clock_timestamp() - interval '30 days' limit 100 for update skip locked));
  -- Nodes that are gone: a new one goes on at the newest walk of any, the others are of no
  -- use. Only under the node's lock: its claim would have to wait for this transaction.
  delete from outbox.node as n where n.node in (
    select o.node from outbox.node as o
    where o.heartbeat_at < clock_timestamp() - interval '1 day' limit 100 for update skip locked);
  select w.* into v_newest from outbox.walk as w order by w.claimed_at desc limit 1;
  for v_node in
    select w.node from outbox.walk as w
    where w.claimed_at < clock_timestamp() - interval '1 hour' and w.claimed_at < v_newest.claimed_at
    order by random() limit 100 -- so that those that stay, for the sake of a route, are in nobody's way
  loop
    if pg_try_advisory_xact_lock(outbox.lock_class(), outbox.node_lock(v_node)) then
      delete from outbox.route as r
      where r.ctid = any (array( -- ordered, which the primary key, that holds the node too, is not
              select x.ctid from outbox.route as x where x.node >= v_node and x.node <= v_node order by x.node limit 1000))
        and (r.served_at < clock_timestamp() - interval '30 days'
             -- Another node has a newer one: mostly the node that claimed last, so that comes first.
             -- All nodes there ever were may have one.
             or exists (select from outbox.route as l
                        where (l.namespace, l.node) >= (r.namespace, v_newest.node)
                          and (l.namespace, l.node) <= (r.namespace, v_newest.node) and l.served_at > r.served_at)
             or exists (select from outbox.route as l where l.namespace = r.namespace and l.served_at > r.served_at));
      if not exists (select from outbox.route as x where x.node >= v_node and x.node <= v_node order by x.node limit 1) then
        delete from outbox.walk as w where w.node = v_node;
      end if;
    end if;
  end loop;
  return v_done;
end $$;
comment on function outbox.prune is 'Deletes old settled messages; how many';
revoke all on function outbox.prune from public;
-- <<< sql/functions/prune.sql

-- >>> sql/functions/purge.sql
-- requires: bad_argument.sql bound_transaction.sql check_key.sql cancel_lock.sql lock_class.sql node_lock.sql settle_cancelled.sql
create or replace function outbox.purge(namespace text, max int default 1000, after bigint default 0)
returns table (purged bigint, next bigint, enqueued boolean)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
set jit = off
as $$
-- Deletes all there is of a namespace, in whatever state: messages with their payloads and
-- failures, and in the end its quota, its pauses, and where claims stand among its routes.
-- What is pending or claimed is cancelled first: a delivery under way may go on, its settle is
-- lost. Nothing of this can be undone, and the dispatch keys are free again.
--
-- One call looks at up to 10 x max messages, in the order of their ids, those of others too (no
-- index has the settled ones by namespace), and deletes up to max. Commit, and call it again with next
-- as after, until next is null. Then enqueued says whether there are messages again, of a
-- producer that went on: stop that, and begin anew.
declare
  v_ids   bigint[];
  v_gone  bigint[];
  v_left  bigint[];
  v_nodes text[];
  v_some  bigint;
begin
  perform outbox.check_key('purge', 'namespace', purge.namespace);
  if coalesce(purge.max, 0) not between 1 and 100000 then
    perform outbox.bad_argument('purge', 'max', 'is null, below 1 or above 100000', 'Give the most messages to delete in this call.');
  elsif purge.after is null then
    perform outbox.bad_argument('purge', 'after', 'is null', 'Give 0 to begin, then what the last call returned as next.');
  end if;
  v_ids := array(
    select m.id
    from (select m.id, m.namespace from outbox.message as m where m.id > purge.after order by m.id limit 10 * purge.max) as m
    where m.namespace = purge.namespace limit purge.max);
  purged := 0;
  if cardinality(v_ids) = purge.max then
    next := v_ids[purge.max];
  else
    next := (select max(m.id) from (select m.id from outbox.message as m where m.id > purge.after order by m.id limit 10 * purge.max) as m);
  end if;
  if cardinality(v_ids) > 0 then
    perform outbox.cancel_lock();
    v_left := v_ids;
    loop
      perform outbox.settle_cancelled(v_left, clock_timestamp());
      v_gone := array(
        select s.id from unnest(v_left) as u(id)
        cross join lateral (select s.id from outbox.settled as s where s.id = u.id for update) as s);
      delete from outbox.failure as f where f.id = any (v_gone);
      delete from outbox.message as m where m.id = any (v_gone);
      get diagnostics v_some = row_count; -- without those that somebody else has deleted meanwhile
      purged := purged + v_some;
      delete from outbox.settled as s where s.id = any (v_gone);
      -- One that moved meanwhile, from claimed to pending or from failed to pending, is met again.
      v_left := array(
        select u.id from unnest(v_left) as u(id)
        cross join lateral (
          (select p.id from outbox.pending as p where p.id = u.id offset 0)
          union all
          (select c.id from outbox.claimed as c where c.id = u.id offset 0)
          union all
          (select s.id from outbox.settled as s where s.id = u.id offset 0)
          limit 1
        ) as x);
      exit when cardinality(v_left) = 0;
    end loop;
    -- what check() finds in no state at all
    delete from outbox.failure as f where f.id = any (v_ids);
    delete from outbox.message as m where m.id = any (v_ids);
    get diagnostics v_some = row_count;
    purged := purged + v_some;
  end if;
  if next is not null then
    return next;
    return;
  end if;
  -- The end. Claims write to outbox.route under the lock of their node's name alone: so with that
  -- none of them has to wait for this transaction, and this one has locked nothing else yet.
  perform outbox.bound_transaction(c.claim_idle_timeout) from outbox.config as c;
  v_nodes := array(select r.node from outbox.route as r
                   where (r.namespace, r.node) >= (purge.namespace, '') and r.namespace <= purge.namespace
                   order by r.namespace, r.node limit 1000);
  perform pg_advisory_xact_lock(outbox.lock_class(), n.lock)
  from (select distinct outbox.node_lock(u.node) as lock from unnest(v_nodes) as u(node) order by 1) as n;
  delete from outbox.route as r where r.namespace = purge.namespace and r.node = any (v_nodes);
  delete from outbox.namespace as n where n.namespace = purge.namespace;
  delete from outbox.pause as p where p.namespace = purge.namespace;
  enqueued := exists (select from outbox.pending as p
                      where p.ripe and p.ring = outbox.ring(purge.namespace) and p.namespace = purge.namespace
                      order by p.route_ring limit 1)
    or exists (select from outbox.pending as p
               where not p.ripe and p.ring = outbox.ring(purge.namespace) and p.namespace = purge.namespace
               order by p.visible_after limit 1)
    or exists (select from outbox.claimed as c
               where (c.namespace, c.claim_token) >= (purge.namespace, 0) and c.namespace <= purge.namespace
               order by c.namespace, c.claim_token limit 1)
    or exists (select from outbox.settled as s
               where s.outcome = 'failed' and (s.namespace, s.id) >= (purge.namespace, 0) and s.namespace <= purge.namespace
               order by s.namespace, s.id limit 1);
  return next;
end $$;
comment on function outbox.purge is 'Deletes all there is of a namespace, in chunks';
revoke all on function outbox.purge from public;
-- <<< sql/functions/purge.sql

-- >>> sql/functions/quota.sql
-- requires: check_key.sql
create or replace function outbox.quota(namespace text)
returns table (quota int, strict boolean, claimed bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
-- The quota in force for a namespace, its own or the default, and how much of it is used.
begin
  perform outbox.check_key('quota', 'namespace', quota.namespace);
  return query
  select coalesce(n.quota, g.default_quota), coalesce(n.strict, false),
         (select count(*) from outbox.claimed as c where c.namespace = quota.namespace)
  from outbox.config as g
  left join outbox.namespace as n on n.namespace = quota.namespace;
end $$;
comment on function outbox.quota is 'The quota in force for a namespace, and how much of it is used';
revoke all on function outbox.quota from public;
-- <<< sql/functions/quota.sql

-- >>> sql/functions/release.sql
-- requires: check_settle.sql lock_claimed.sql
create or replace function outbox.release(ids bigint[], tokens bigint[])
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
-- Gives back messages that were claimed and not tried: due as they were, and the
-- attempt is not charged (INV-10). As complete().
declare
  v_ids bigint[];
begin
  perform outbox.check_settle('release', release.ids, release.tokens);
  v_ids := outbox.lock_claimed(release.ids, release.tokens);
  return query
  with c as (
    delete from outbox.claimed as d where d.id = any (v_ids) returning d.*
  )
  insert into outbox.pending as p (id, namespace, task_queue, shard, visible_after, attempt, payload_bytes, suspect)
  select c.id, c.namespace, c.task_queue, c.shard, c.visible_after, greatest(c.attempt - 1, 0), c.payload_bytes, c.suspect
  from c
  returning p.id;
end $$;
comment on function outbox.release is 'Gives untried messages back, uncharged; the ids released, the rest were lost';
revoke all on function outbox.release from public;
-- <<< sql/functions/release.sql

-- >>> sql/functions/resume.sql
create or replace function outbox.resume(namespace text, task_queue text default null)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Takes back the pause() with these very arguments. False: there was none.
begin
  delete from outbox.pause as p
  where p.namespace is not distinct from resume.namespace and p.task_queue is not distinct from resume.task_queue;
  return found;
end $$;
comment on function outbox.resume is 'Takes a pause back';
revoke all on function outbox.resume from public;
-- <<< sql/functions/resume.sql

-- >>> sql/functions/retry.sql
-- requires: check_settle.sql lock_claimed.sql failed_attempts.sql
create or replace function outbox.retry(
  ids bigint[], tokens bigint[], errors text[] default null, delays interval[] default null)
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Gives messages back after a failed attempt: due again after their delay (null: the
-- policy's backoff), or failed where their attempts are used up. As complete().
begin
  perform outbox.check_settle('retry', retry.ids, retry.tokens);
  if cardinality(retry.errors) <> cardinality(retry.ids) then
    perform outbox.bad_argument('retry', 'errors', 'has another length than ids', 'Give one for each id, or null.');
  elsif cardinality(retry.delays) <> cardinality(retry.ids) then
    perform outbox.bad_argument('retry', 'delays', 'has another length than ids', 'Give one for each id, or null.');
  end if;
  return query
  select f.id from outbox.failed_attempts(outbox.lock_claimed(retry.ids, retry.tokens),
                                          retry.ids, retry.tokens, retry.errors, retry.delays, false) as f;
end $$;
comment on function outbox.retry is 'Gives messages back after a failed attempt; the ids settled, the rest were lost';
revoke all on function outbox.retry from public;
-- <<< sql/functions/retry.sql

-- >>> sql/functions/why.sql
-- requires: is_live.sql queue_text.sql claim_locks.sql suspect_text.sql live_shards.sql check_key.sql next_held.sql claim_walk.sql hold_reason.sql time_text.sql pause_text.sql
create or replace function outbox.why(dispatch_key text)
returns table (id bigint, namespace text, task_queue text, shard int, state text, attempts int,
               reason text, next_at timestamptz, failures text[])
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_material = off
set enable_memoize = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
-- Where one message stands: its state, attempts, what holds it back, when it can go next
-- (null: never by itself, or when what holds it is lifted), and its last failures.
-- Always one row, also for a key that no message has.
declare
  v_now     timestamptz := clock_timestamp();
  v_config  outbox.config;
  v_pending outbox.pending;
  v_claimed outbox.claimed;
  v_settled outbox.settled;
  v_next    int[];
  v_hold    text;
  v_nodes   bigint;
  v_owners  text;
  v_owner   text; -- the first of them
begin
  perform outbox.check_key('why', 'dispatch_key', why.dispatch_key);
  select c.* into strict v_config from outbox.config as c;
  select m.id, m.namespace, m.task_queue into id, namespace, task_queue
  from outbox.message as m where m.dispatch_key = why.dispatch_key;
  if not found then
    state := 'unknown';
    reason := 'no message has this key: it was never enqueued, its transaction has not committed or was rolled back, or it was pruned';
    return next;
    return;
  end if;
  select array_agg(format('attempt %s at %s on %s: %s', x.attempt, outbox.time_text(x.at, v_now), x.node, x.error)) into failures
  from (select f.* from outbox.failure as f where f.id = why.id order by f.at desc limit 5) as x;

  select p.* into v_pending from outbox.pending as p where p.id = why.id;
  if found then
    state := 'pending';
    attempts := v_pending.attempt;
    shard := v_pending.shard;
    v_next := outbox.next_held(array(select generate_series(0, v_config.shard_count - 1)), v_config.shard_count);
    select outbox.hold_reason(v.namespace, v.verdict, v.claimed, v.ceiling, v.quota, v_next, v_now) into v_hold
    from outbox.claim_walk('', v_next, v_config.shard_count, 1, '', 0, v_now, 0, v_pending.namespace, false, v_config, null) as w
    cross join lateral unnest(w.visits) as v
    where v.verdict in ('paused', 'ceiling');
    v_hold := nullif(concat_ws('; ', v_hold,
      (select outbox.pause_text(p, v_now) from outbox.pause as p
       where p.task_queue = v_pending.task_queue and (p.namespace = v_pending.namespace or p.namespace is null)
       order by p.namespace nulls last limit 1)), '');
    next_at := case when v_hold is null then v_pending.visible_after end;
    select string_agg(o.node, ', ' order by o.node), min(o.node) into v_owners, v_owner from outbox.live_shards(v_now) as o where o.shard = v_pending.shard;
    select count(*) into v_nodes from outbox.node as n
    where outbox.is_live(n.heartbeat_at, v_now, v_config.node_lapse);
    reason := concat_ws('; ',
      case when v_pending.visible_after > v_now
           then format('%s until %s', case when v_pending.attempt > 0 then 'waits after a failed attempt' else 'delayed' end,
                       outbox.time_text(v_pending.visible_after, v_now)) end,
      v_hold,
      case when v_nodes > 0 and v_owners is null then format('no live node owns its shard %s', v_pending.shard) end,
      (select format('nothing is claimed from its shard %s: that is locked by %s, which is not claiming; to end it: %s',
                     v_pending.shard, l.session, l.remedy)
       from outbox.claim_locks() as l where l.key = v_pending.shard and l.stray limit 1));
    if reason = '' then
      reason := format('due: %s, on %s',
        case when v_pending.ripe then outbox.queue_text(v_pending.namespace, v_pending.shard, v_owner, v_config)
             else 'the next claim from its shard makes it ripe' end,
        coalesce(v_owners, 'whichever sweep claims its shard next; no node sends heartbeats'));
    end if;
    reason := reason || outbox.suspect_text(v_pending.suspect);
    return next;
    return;
  end if;

  select c.* into v_claimed from outbox.claimed as c where c.id = why.id;
  if found then
    state := 'claimed';
    attempts := v_claimed.attempt;
    shard := v_claimed.shard;
    next_at := v_claimed.lease_until;
    reason := format('claimed by %s since %s, ', v_claimed.claimed_by, outbox.time_text(v_claimed.claimed_at, v_now))
      || case when v_claimed.lease_until > v_now
              then format('lease until %s', outbox.time_text(v_claimed.lease_until, v_now))
              else format('lease ran out at %s: the next rescue takes it back', outbox.time_text(v_claimed.lease_until, v_now)) end
      || outbox.suspect_text(v_claimed.suspect);
    return next;
    return;
  end if;

  select s.* into v_settled from outbox.settled as s where s.id = why.id;
  state := coalesce(v_settled.outcome, 'moving');
  attempts := v_settled.attempts;
  shard := v_settled.shard;
  reason := case when v_settled.id is null then 'changed its state during this call: ask again'
                 else format('%s at %s by %s', v_settled.outcome, outbox.time_text(v_settled.settled_at, v_now),
                             v_settled.settled_by)
                      || coalesce(': ' || v_settled.error, '')
                      || case when v_settled.outcome <> 'done' then '; redrive() brings it back' else '' end end;
  return next;
end $$;
comment on function outbox.why is 'Where one message stands, and what holds it back';
revoke all on function outbox.why from public;
-- <<< sql/functions/why.sql

-- >>> sql/functions/views.sql
-- A message and the table that its hot row stands in. Those three are looked up by id, one message
-- after the other: as plain joins they are read as a whole, or once for each message, where
-- the planner's statistics are from a time when they were empty.
create or replace view outbox.messages as
select m.id, m.namespace, m.task_queue, m.dispatch_key,
       coalesce(p.shard, c.shard, s.shard) as shard,
       case when p.id is not null then 'pending' when c.id is not null then 'claimed' else s.outcome end::text as status,
       coalesce(p.attempt, c.attempt, s.attempts) as attempt,
       coalesce(p.visible_after, c.visible_after) as visible_after,
       c.claimed_by, c.lease_until, m.payload, m.created_at, s.settled_at,
       coalesce(s.error, (select f.error from outbox.failure as f where f.id = m.id order by f.at desc limit 1)) as error
from outbox.message as m
left join lateral (
  select p.id, p.shard, p.attempt, p.visible_after from outbox.pending as p
  where p.id = m.id offset 0
) as p on true
left join lateral (
  select c.id, c.shard, c.attempt, c.visible_after, c.claimed_by, c.lease_until from outbox.claimed as c
  where c.id = m.id offset 0
) as c on true
left join lateral (
  select s.shard, s.outcome, s.attempts, s.settled_at, s.error from outbox.settled as s
  where s.id = m.id offset 0
) as s on true;
comment on view outbox.messages is 'One row a message, whatever its state; look it up by dispatch_key or id';
revoke all on outbox.messages from public;

-- Names by loose scans over the indexes that have them, counts no further than config.count_cap:
-- the work is bounded by what is shown, not by the backlog. What is counted is ordered as
-- an index is, and in bounds that no other one serves.
create or replace view outbox.namespaces as
with recursive ripe(ring, namespace) as ( -- in the order of the ring
  select -2147483648, ''::text collate "C"
  union all
  select x.ring, x.namespace
  from ripe as w
  cross join lateral (
    select p.ring, p.namespace from outbox.pending as p
    where p.ripe and (p.ring, p.namespace) > (w.ring, w.namespace)
    order by p.ring, p.namespace, p.route_ring, p.task_queue, p.shard, p.visible_after, p.id limit 1
  ) as x
), unripe(ring, namespace) as (
  select -2147483648, ''::text collate "C"
  union all
  select x.ring, x.namespace
  from unripe as w
  cross join lateral (
    select p.ring, p.namespace from outbox.pending as p
    where not p.ripe and (p.ring, p.namespace) > (w.ring, w.namespace)
    order by p.ring, p.namespace, p.visible_after, p.id limit 1
  ) as x
), other(namespace) as ( -- by name
  select ''::text collate "C"
  union all
  select x.namespace
  from other as w
  cross join lateral (
    select least(
      (select c.namespace from outbox.claimed as c where c.namespace > w.namespace order by c.namespace limit 1),
      (select s.namespace from outbox.settled as s
       where s.namespace > w.namespace and s.outcome = 'failed' order by s.namespace limit 1),
      (select n.namespace from outbox.namespace as n where n.namespace > w.namespace order by n.namespace limit 1),
      (select u.namespace from outbox.pause as u where u.namespace > w.namespace order by u.namespace limit 1)
    ) as namespace
  ) as x
  where x.namespace is not null
), walk(namespace) as ( -- each once: sub-selects in place of anti joins, which could read all there are
  select r.namespace from ripe as r
  union all
  select u.namespace from unripe as u
  where (select p.id from outbox.pending as p where p.ripe and p.ring = u.ring and p.namespace = u.namespace
         order by p.ring, p.namespace, p.route_ring, p.task_queue, p.shard, p.visible_after, p.id limit 1) is null
  union all
  select o.namespace from other as o
  where (select p.id from outbox.pending as p where p.ripe and p.ring = outbox.ring(o.namespace) and p.namespace = o.namespace
         order by p.ring, p.namespace, p.route_ring, p.task_queue, p.shard, p.visible_after, p.id limit 1) is null
    and (select p.id from outbox.pending as p where not p.ripe and p.ring = outbox.ring(o.namespace) and p.namespace = o.namespace
         order by p.ring, p.namespace, p.visible_after, p.id limit 1) is null
)
select w.namespace,
       least(r.ripe + u.unripe, g.count_cap) as pending,
       (select count(*) from (select from outbox.claimed as c
                              where (c.namespace, c.claim_token) >= (w.namespace, 0)
                                and (c.namespace, c.claim_token) <= (w.namespace, 9223372036854775807)
                              order by c.namespace, c.claim_token limit g.count_cap) as x) as claimed,
       (select count(*) from (select from outbox.settled as s
                              where s.outcome = 'failed' and (s.namespace, s.id) >= (w.namespace, 0)
                                and (s.namespace, s.id) <= (w.namespace, 9223372036854775807)
                              order by s.namespace, s.id limit g.count_cap) as x) as failed,
       coalesce(n.quota, g.default_quota) as quota,
       coalesce(n.strict, false) as strict,
       exists (select from outbox.pause as p where p.namespace = w.namespace and p.task_queue is null)
         or exists (select from outbox.pause as p where p.namespace is null and p.task_queue is null) as paused,
       u.unripe,
       -- of up to count_cap lanes, the oldest message that is due; of those that came due and are not ripe yet, too
       (with recursive lane(n, route_ring, task_queue, shard, head) as (
          (select 1, p.route_ring, p.task_queue, p.shard, p.visible_after from outbox.pending as p
           where p.ripe and p.ring = outbox.ring(w.namespace) and p.namespace = w.namespace
           order by p.route_ring, p.task_queue, p.shard, p.visible_after limit 1)
          union all
          select l.n + 1, x.route_ring, x.task_queue, x.shard, x.visible_after
          from lane as l
          cross join lateral (
            select p.route_ring, p.task_queue, p.shard, p.visible_after from outbox.pending as p
            where p.ripe and p.ring = outbox.ring(w.namespace) and p.namespace = w.namespace
              and (p.route_ring, p.task_queue, p.shard) > (l.route_ring, l.task_queue, l.shard)
            order by p.route_ring, p.task_queue, p.shard, p.visible_after limit 1
          ) as x
          where l.n < g.count_cap
        )
        select min(x.head)
        from (select l.head from lane as l
              union all
              (select p.visible_after from outbox.pending as p
               where not p.ripe and p.ring = outbox.ring(w.namespace) and p.namespace = w.namespace
               order by p.visible_after, p.id limit 1)) as x
        where x.head <= statement_timestamp()) as oldest_due_at -- a stable function: who does not ask does not pay
from walk as w
cross join outbox.config as g
left join lateral (select n.quota, n.strict from outbox.namespace as n where n.namespace = w.namespace) as n on true
cross join lateral (
  select count(*) as ripe
  from (select from outbox.pending as p where p.ripe and p.ring = outbox.ring(w.namespace) and p.namespace = w.namespace
        order by p.route_ring, p.task_queue, p.shard, p.visible_after limit g.count_cap) as x
) as r
cross join lateral (
  select count(*) as unripe
  from (select from outbox.pending as p where not p.ripe and p.ring = outbox.ring(w.namespace) and p.namespace = w.namespace
        order by p.visible_after, p.id limit g.count_cap) as x
) as u
where w.namespace <> '';
comment on view outbox.namespaces is 'Namespaces with messages or settings; counts stop at config.count_cap; unripe: pending, and waiting for its time; oldest_due_at: the oldest due message';
revoke all on outbox.namespaces from public;

create or replace view outbox.nodes as
select coalesce(n.node, w.node) as node,
       coalesce(n.heartbeat_at between clock_timestamp() - g.node_lapse and clock_timestamp() + g.node_lapse, false) as live,
       n.heartbeat_at,
       n.node is not null and n.shards is null as auto,
       case when n.shards is null and n.node is not null
            then array(select s.shard from outbox.shard as s where s.node = n.node order by s.shard) else n.shards end as shards,
       n.paused, n.in_flight_bytes,
       case when n.shared_at > clock_timestamp() - g.node_lapse then array[n.process, n.former]
            when n.process is not null then array[n.process] end as processes,
       w.claimed_at as last_claim_at, w.claimed as last_claimed, w.namespace as walked_to, w.round
from outbox.node as n
full join outbox.walk as w on w.node = n.node
cross join outbox.config as g;
comment on view outbox.nodes is 'Nodes by heartbeat and by claims; live: the heartbeat has not lapsed; auto: the outbox gives it its shards';
revoke all on outbox.nodes from public;

create or replace view outbox.pauses as
select p.namespace, p.task_queue, p.since, p.by, p.note from outbox.pause as p;
comment on view outbox.pauses is 'What is paused; null stands for any';
revoke all on outbox.pauses from public;
-- <<< sql/functions/views.sql

-- >>> sql/functions/grants.sql
-- requires: bad_argument.sql
create or replace function outbox.role_calls(kind text)
returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  -- The functions that a producer may call, that a worker may besides, and an operator besides
  -- these: what the grant_ functions give, and the revoke_ functions take back.
  select case role_calls.kind
    when 'producer' then 'outbox.enqueue(text, text, text, bytea, text, jsonb, interval), '
      'outbox.enqueue(text, text, text, text, text, jsonb, interval), outbox.enqueue_json, outbox.enqueue_batch, '
      'outbox.enqueue_texts'
    when 'worker' then 'outbox.claim_fair, outbox.complete, outbox.retry, outbox.fail, outbox.payloads, '
      'outbox.begin_delivery, outbox.release, outbox.extend, outbox.rescue, outbox.prune, outbox.heartbeat, '
      'outbox.leave, outbox.node_processes, outbox.all_shards, outbox.settings, outbox.claim_obstacles, '
      'outbox.node_ceiling'
    when 'operator' then 'outbox.explain_claim, outbox.why, outbox.check, outbox.lock_holders, outbox.count_expired, '
      'outbox.unowned_shards, outbox.configure, outbox.quota, outbox.set_quota, outbox.clear_quota, '
      'outbox.pause, outbox.resume, outbox.cancel, outbox.cancel_namespace, outbox.failed, outbox.purge, '
      'outbox.redrive(bigint[]), outbox.redrive(text, int), outbox.retry_now(text[]), outbox.retry_now(text, int)'
  end;
$$;
comment on function outbox.role_calls is 'The functions that a kind of role may call';
revoke all on function outbox.role_calls from public;

create or replace function outbox.has_own_right(role name, func text)
returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  -- Whether a right to call a function was given to this very role: what it has as a member of
  -- another one, or because all roles have it, does not count.
  select exists (
    select from pg_proc as p
    cross join lateral aclexplode(p.proacl) as a
    join pg_roles as r on r.oid = a.grantee
    where p.pronamespace = 'outbox'::regnamespace and p.proname = has_own_right.func and r.rolname = has_own_right.role
      and p.proowner <> a.grantee);
$$;
comment on function outbox.has_own_right is 'Whether a role was given a right to call a function';
revoke all on function outbox.has_own_right from public;

create or replace function outbox.grant_producer(role name)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Lets a role enqueue, and nothing else. Not security definer: only the schema's owner
-- can hand rights out.
begin
  execute format('grant usage on schema outbox to %I', grant_producer.role);
  execute format('grant execute on function %s to %I', outbox.role_calls('producer'), grant_producer.role);
end $$;
comment on function outbox.grant_producer is 'Lets a role enqueue';
revoke all on function outbox.grant_producer from public;

create or replace function outbox.grant_worker(role name)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Lets a role enqueue, claim and settle: what the sweep binary needs. Not public: who
-- claims reads every tenant's payloads, and settles what others have claimed.
begin
  if coalesce(grant_worker.role, 'public') = 'public' then
    perform outbox.bad_argument('grant_worker', 'role', 'is null or public, which means every role', 'Name the role that sweep connects as.');
  end if;
  perform outbox.grant_producer(grant_worker.role);
  execute format('grant execute on function %s to %I', outbox.role_calls('worker'), grant_worker.role);
end $$;
comment on function outbox.grant_worker is 'Lets a role enqueue, claim and settle';
revoke all on function outbox.grant_worker from public;

create or replace function outbox.grant_operator(role name)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Lets a role do all that a worker can, see everything (payloads too), set quotas and
-- settings, pause, cancel, redrive, retry and purge. Not public, as grant_worker.
begin
  if coalesce(grant_operator.role, 'public') = 'public' then
    perform outbox.bad_argument('grant_operator', 'role', 'is null or public, which means every role', 'Name a role, and grant that to the people on duty.');
  end if;
  perform outbox.grant_worker(grant_operator.role);
  execute format('grant execute on function %s to %I', outbox.role_calls('operator'), grant_operator.role);
  execute format('grant select on outbox.messages, outbox.namespaces, outbox.nodes, outbox.pauses to %I', grant_operator.role);
end $$;
comment on function outbox.grant_operator is 'Lets a role do everything but touch the tables';
revoke all on function outbox.grant_operator from public;

create or replace function outbox.revoke_producer(role name)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Takes back what grant_producer() gives. PostgreSQL does not remember which call gave a right, and
-- a worker or an operator needs these rights too: of such a role, revoke_worker() or
-- revoke_operator() takes back everything, this refuses. What a role has as a member of another one it keeps.
begin
  if revoke_producer.role is null then
    perform outbox.bad_argument('revoke_producer', 'role', 'is null', 'Name the role.');
  end if;
  if revoke_producer.role = (select n.nspowner::regrole::name from pg_namespace as n where n.nspname = 'outbox') then
    perform outbox.bad_argument('revoke_producer', 'role', 'owns the schema, whose functions run with its rights', 'Name another role.');
  end if;
  if outbox.has_own_right(revoke_producer.role, 'claim_fair') then
    perform outbox.bad_argument('revoke_producer', 'role', 'is a worker or an operator, which must be able to enqueue',
      'revoke_worker() or revoke_operator() takes back all; grant again what the role is to keep.');
  end if;
  execute format('revoke execute on function %s from %I', outbox.role_calls('producer'), revoke_producer.role);
  execute format('revoke usage on schema outbox from %I', revoke_producer.role);
end $$;
comment on function outbox.revoke_producer is 'Takes back what grant_producer gives';
revoke all on function outbox.revoke_producer from public;

create or replace function outbox.revoke_worker(role name)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Takes back what grant_worker() gives, what a producer may included. Refuses an operator, as
-- revoke_producer() does.
begin
  if coalesce(revoke_worker.role, 'public') = 'public' then
    perform outbox.bad_argument('revoke_worker', 'role', 'is null or public, which is no worker', 'Name the role.');
  end if;
  if outbox.has_own_right(revoke_worker.role, 'explain_claim') then
    perform outbox.bad_argument('revoke_worker', 'role', 'is an operator, which must be able to claim',
      'revoke_operator() takes back all; grant again what the role is to keep.');
  end if;
  execute format('revoke execute on function %s from %I', outbox.role_calls('worker'), revoke_worker.role);
  perform outbox.revoke_producer(revoke_worker.role);
end $$;
comment on function outbox.revoke_worker is 'Takes back what grant_worker gives';
revoke all on function outbox.revoke_worker from public;

create or replace function outbox.revoke_operator(role name)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Takes back what grant_operator() gives, what a worker and a producer may included. A role
-- that is to go on as one of these needs a grant_ of that again.
begin
  if coalesce(revoke_operator.role, 'public') = 'public' then
    perform outbox.bad_argument('revoke_operator', 'role', 'is null or public, which is no operator', 'Name the role.');
  end if;
  execute format('revoke select on outbox.messages, outbox.namespaces, outbox.nodes, outbox.pauses from %I', revoke_operator.role);
  execute format('revoke execute on function %s from %I', outbox.role_calls('operator'), revoke_operator.role);
  perform outbox.revoke_worker(revoke_operator.role);
end $$;
comment on function outbox.revoke_operator is 'Takes back what grant_operator gives';
revoke all on function outbox.revoke_operator from public;
-- <<< sql/functions/grants.sql

-- Those rights again, on what bears the names now.
do $rights$
declare
  v_statement text;
begin
  if coalesce(pg_catalog.current_setting('outbox.rights', true), '') = '' then
    raise exception 'the rights on the former functions are not known any more'
      using errcode = 'OB005', hint = 'Run each migration as one transaction: psql -1.';
  end if;
  for v_statement in
    with was as (
      select r.*
      from pg_catalog.jsonb_to_recordset(pg_catalog.current_setting('outbox.rights')::pg_catalog.jsonb)
           as r (kind text, name text, args text, col text, grantee oid, privilege text, grantable boolean)
    ), now as (
      select p.oid, p.proname::text as name, pg_catalog.oidvectortypes(p.proargtypes) as args
      from pg_catalog.pg_proc as p
      where p.pronamespace = 'outbox'::pg_catalog.regnamespace
    ), old as (
      select w.name, w.args, exists (select from now as n where n.name = w.name and n.args = w.args) as stays
      from was as w where w.kind = 'function' group by w.name, w.args
    ), new as (
      select n.oid, n.name, n.args, exists (select from old as o where o.name = n.name and o.args = n.args) as stays
      from now as n
    )
    select pg_catalog.format('grant %s on routine %s to %s%s', w.privilege, n.oid::pg_catalog.regprocedure,
                             w.grantee::pg_catalog.regrole, case when w.grantable then ' with grant option' end)
    from was as w
    join old as o on o.name = w.name and o.args = w.args
    join new as n on n.name = w.name
    where w.kind = 'function' and w.grantee is not null
      and case when n.args = w.args then true
               when n.stays then not o.stays and not exists (select from new as m where m.name = n.name and not m.stays)
               else not o.stays or not exists (select from old as q where q.name = n.name and not q.stays) end
    union
    select pg_catalog.format('grant %s%s on %s to %s%s', w.privilege, '(' || pg_catalog.quote_ident(w.col) || ')', c.oid::pg_catalog.regclass,
                             case when w.grantee = 0 then 'public' else w.grantee::pg_catalog.regrole::text end,
                             case when w.grantable then ' with grant option' end)
    from was as w
    join pg_catalog.pg_class as c on c.relnamespace = 'outbox'::pg_catalog.regnamespace and c.relname = w.name
    where w.kind = 'view'
      and (w.col is null or exists (select from pg_catalog.pg_attribute as t where t.attrelid = c.oid and t.attname = w.col and not t.attisdropped))
  loop
    execute v_statement;
  end loop;
end $rights$;

-- <<< snapshot
