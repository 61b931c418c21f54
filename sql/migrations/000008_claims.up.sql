set local search_path = pg_catalog, pg_temp;

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
    where p.pronamespace = 'outbox'::pg_catalog.regnamespace and p.proname in ('claim_fair', 'claim_pick', 'explain_claim', null)
    union all
    select 'view', c.relname, '', x.col, a.grantee, a.privilege_type, a.is_grantable
    from pg_catalog.pg_class as c
    cross join lateral (
      select null as col, c.relacl as acl
      union all
      select t.attname, t.attacl from pg_catalog.pg_attribute as t where t.attrelid = c.oid and t.attacl is not null
    ) as x
    cross join lateral pg_catalog.aclexplode(x.acl) as a
    where c.relnamespace = 'outbox'::pg_catalog.regnamespace and c.relname in (null) and a.grantee <> c.relowner
  ) as r), '[]'), true);
end $rights$;

-- dropped: sql/functions/explain_claim.sql
drop function outbox.explain_claim(node text, shards int[], batch int, max_bytes bigint, "only" text);

-- dropped: sql/functions/claim_fair.sql
drop function outbox.claim_fair(node text, shards int[], batch int, max_bytes bigint, payloads boolean);

-- dropped: sql/functions/claim_pick.sql
drop function outbox.claim_pick(node text, namespaces text[], rounds bigint[], headrooms int[], soles boolean[], active int, routes text[], route_of int[], width int, held int[], next_held int[], batch int, max_bytes bigint, turn bigint, now timestamptz, for_claim boolean, config outbox.config, out ids bigint[], out tids tid[], out shards int[], out attempts int[], out suspects int[], out passes int[], out picked int[], out last_rank int, out last_bytes bigint, out many text[], out many_at text[]);

-- >>> sql/functions/prepared_locks.sql
create or replace function outbox.prepared_locks()
returns table (virtualtransaction text, gid text, owner name, prepared timestamptz)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  -- The prepared transactions of this database, by what pg_locks calls each: it names no session,
  -- and only the lock on the transaction's own number tells which one it is.
  select l.virtualtransaction, x.gid, x.owner, x.prepared
  from pg_prepared_xacts as x
  join pg_locks as l on l.locktype = 'transactionid' and l.transactionid = x.transaction and l.mode = 'ExclusiveLock' and l.pid is null
  where x.database = current_database();
$$;
comment on function outbox.prepared_locks is 'Prepared transactions of this database, as pg_locks names them';
revoke all on function outbox.prepared_locks from public;
-- <<< sql/functions/prepared_locks.sql

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
  if v_locks <> '{}' then raise log 'STRAY % claims % now %', v_locks, v_claims, (select array_agg(l.locktype || ' ' || coalesce(l.relation::regclass::text, l.objid::text) || ' ' || l.virtualtransaction || ' ' || l.pid || ' ' || l.mode) from pg_locks as l where l.virtualtransaction in (select split_part(u.lock, ' ', 2) from unnest(v_locks) as u(lock)) and l.locktype in ('advisory','relation')); end if;
  return array(select distinct split_part(u.lock, ' ', 1)::int from unnest(v_locks) as u(lock) order by 1);
end $$;
comment on function outbox.stray_keys is 'Which locks of claims are held by somebody who is not claiming';
revoke all on function outbox.stray_keys from public;
-- <<< sql/functions/stray_keys.sql

-- >>> sql/functions/claim_locks.sql
-- requires: stray_keys.sql time_text.sql
create or replace function outbox.claim_locks()
returns table (key int, pid int, session text, stray boolean, remedy text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
-- Who holds advisory locks of this outbox, other than this session: key is a shard, below 0
-- a node, or above 1023 another of lock_class(). stray: the holder is not claiming, or was prepared
-- and forgotten. remedy is the SQL that ends the holder's session or transaction.
declare
  v_keys  int[];
  v_stray int[];
begin
  select array_agg(distinct l.objid::bigint::bit(32)::int) into v_keys
  from pg_locks as l
  where l.locktype = 'advisory' and l.classid = 'outbox.pending'::regclass and l.objsubid = 2 and l.granted
    and l.database = (select d.oid from pg_database as d where d.datname = current_database())
    and l.pid is distinct from pg_backend_pid();
  if v_keys is null then
    return;
  end if;
  v_stray := outbox.stray_keys(v_keys);
  return query
  select x.key, x.pid,
         case when x.pid is not null
              then format('pid %s%s', x.pid, ' (' || nullif(concat_ws(', ', nullif(a.application_name, ''), a.usename), '') || ')')
              else format('transaction %s, prepared by %s at %s', quote_literal(t.gid), t.owner, outbox.time_text(t.prepared, clock_timestamp())) end,
         x.key = any (v_stray),
         case when x.pid is not null then format('select pg_terminate_backend(%s)', x.pid)
              else format('rollback prepared %s', quote_literal(t.gid)) end
  from (select l.objid::bigint::bit(32)::int as key, l.pid, l.virtualtransaction
        from pg_locks as l
        where l.locktype = 'advisory' and l.classid = 'outbox.pending'::regclass and l.objsubid = 2 and l.granted
          and l.database = (select d.oid from pg_database as d where d.datname = current_database())
          and l.pid is distinct from pg_backend_pid()) as x
  left join pg_stat_activity as a on a.pid = x.pid
  left join outbox.prepared_locks() as t on x.pid is null and t.virtualtransaction = x.virtualtransaction
  order by x.key;
end $$;
comment on function outbox.claim_locks is 'Other sessions that hold advisory locks of this outbox';
revoke all on function outbox.claim_locks from public;
-- <<< sql/functions/claim_locks.sql

-- >>> sql/functions/claim_obstacles.sql
-- requires: claim_locks.sql
create or replace function outbox.claim_obstacles(claims boolean default false)
returns table (session text, shards int[], others int, remedy text)
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
  -- Who holds locks of this outbox and is not claiming: a row for each session, and each transaction
  -- that was prepared with a claim in it and forgotten. Nothing is claimed from the shards that it
  -- holds until it ends. shards are these, others is how many other locks it holds: those of
  -- nodes, of heartbeats and of cancels. remedy is the SQL that ends the session or transaction.
  -- With claims, those who claim at this moment are listed, too: for a caller that has been
  -- shut out for long.
  select l.session, coalesce(array_agg(l.key order by l.key) filter (where l.key between 0 and 1023), '{}'),
         (count(*) filter (where l.key < 0 or l.key > 1023))::int, l.remedy
  from outbox.claim_locks() as l
  where l.stray or claim_obstacles.claims
  group by l.session, l.remedy
  order by l.session;
$$;
comment on function outbox.claim_obstacles is 'Who holds locks of claims and is not claiming';
revoke all on function outbox.claim_obstacles from public;
-- <<< sql/functions/claim_obstacles.sql

-- >>> sql/functions/shards_text.sql
create or replace function outbox.shards_text(shards int[])
returns text
language sql immutable parallel safe
-- Shards as text, the first twenty of them; null for none.
begin atomic
  select nullif(array_to_string(shards_text.shards[:20], ', '), '')
         || case when cardinality(shards_text.shards) > 20
                 then pg_catalog.format(' and %s more', cardinality(shards_text.shards) - 20) else '' end;
end;
comment on function outbox.shards_text is 'Shards as text';
revoke all on function outbox.shards_text from public;
-- <<< sql/functions/shards_text.sql

-- >>> sql/functions/audit_locks.sql
-- requires: claim_obstacles.sql shards_text.sql
create or replace function outbox.audit_locks()
returns table (guarantee text, subject text, detail text, hint text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set jit = off
as $$
-- The part of check() about locks of claims that are held by somebody who is not claiming.
begin
  return query
  select 'locks', o.session,
         'holds ' || concat_ws(' and ', 'the locks of shards ' || outbox.shards_text(o.shards),
                   case when o.others > 0 then format('%s locks of nodes, heartbeats or cancels', o.others) end)
         || ', and is not claiming'
         || case when o.shards <> '{}' then ': nothing is claimed from these shards' else '' end,
         'To end it: ' || o.remedy
  from outbox.claim_obstacles() as o;
end $$;
comment on function outbox.audit_locks is 'The part of check() about locks that strangers hold';
revoke all on function outbox.audit_locks from public;
-- <<< sql/functions/audit_locks.sql

-- >>> sql/functions/cancel_lock.sql
-- requires: lock_class.sql
create or replace function outbox.cancel_lock()
returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
  -- Cancels wait for each other: each locks two lists of messages, pending and claimed, and
  -- may have to begin again, so that no order of ids keeps two from a deadlock. The key is
  -- behind those of shards. The read of outbox.config tells a cancel from a stranger (see stray_keys).
  select c.shard_count from outbox.config as c;
  select pg_advisory_xact_lock(outbox.lock_class(), 1024);
$$;
comment on function outbox.cancel_lock is 'Makes cancels wait for each other';
revoke all on function outbox.cancel_lock from public;
-- <<< sql/functions/cancel_lock.sql

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

-- >>> sql/functions/walk_start.sql
create or replace function outbox.walk_start(node text, shards int[])
returns table (namespace text, round bigint, edge bigint, edge_shards int[])
language sql stable
-- Where a node's walk goes on. A node that has never claimed goes on where another is, so that
-- nodes that live for one sweep rotate too: where the last one that claimed from the same shards is,
-- else from some of them, else any. (Were it any at once, nodes with different shards that
-- take turns would each go on where the other is, and could pass over the same tenants for ever.)
-- The edge is the node's own: of others, it says nothing.
begin atomic
  (select w.namespace, w.round, w.edge, w.edge_shards
   from outbox.walk as w where w.node = walk_start.node)
  union all
  (select w.namespace, w.round, 0::bigint as edge, null::int[] as edge_shards
   from outbox.walk as w
   order by w.edge_shards = walk_start.shards desc, w.edge_shards && walk_start.shards desc, w.claimed_at desc limit 1)
  union all
  select '' as namespace, 0::bigint as round, 0::bigint as edge, null::int[] as edge_shards
  limit 1;
end;
comment on function outbox.walk_start is 'Where a node''s walk goes on';
revoke all on function outbox.walk_start from public;
-- <<< sql/functions/walk_start.sql

-- >>> sql/functions/due_routes.sql
-- requires: walk_routes.sql walk_lanes.sql
create or replace function outbox.due_routes(namespace text, node text, next_held int[], now timestamptz, max_routes int)
returns table (n int, task_queue text, due boolean)
language sql stable
-- The routes of a namespace that have due messages on held shards and are not paused,
-- out of the first max_routes from behind the one that the node served last (where it never did,
-- that another node did, best one whose first shard is the same: see walk_start). The last of
-- max_routes is here even if it is not due: so far has the claim looked. Lazy: the caller's
-- LIMIT says how many it needs.
begin atomic
  select r.n, r.task_queue, y.due
  from (select coalesce(
          (select t.task_queue from outbox.route as t
           where t.namespace = due_routes.namespace and t.node = due_routes.node),
          (select t.task_queue from outbox.route as t
           where t.namespace = due_routes.namespace
           order by t.shard is not distinct from due_routes.next_held[1] desc, t.served_at desc limit 1), '') as after
        offset 0) as s -- apart, for the next call to be inlined
  cross join lateral (
    select x.* from outbox.walk_routes(due_routes.namespace, s.after) as x
    limit due_routes.max_routes
  ) as r
  cross join lateral (
    select not exists (select from outbox.pause as p
                       where p.namespace = due_routes.namespace and p.task_queue = r.task_queue)
       and not exists (select from outbox.pause as p
                       where p.namespace is null and p.task_queue = r.task_queue)
       and (due_routes.next_held[r.shard + 1] = r.shard and r.head <= due_routes.now
            or exists (select from outbox.walk_lanes(due_routes.namespace, r.task_queue, 0, due_routes.next_held) as l
                       where l.head <= due_routes.now)) as due
    offset 0 -- evaluate it once
  ) as y
  where y.due or r.n = due_routes.max_routes;
end;
comment on function outbox.due_routes is 'Routes of a namespace that a claim may serve, in turn';
revoke all on function outbox.due_routes from public;
-- <<< sql/functions/due_routes.sql

-- >>> sql/functions/claim_pick.sql
-- requires: due_routes.sql walk_lanes.sql
create or replace function outbox.claim_pick(
  node text, namespaces text[], rounds bigint[], headrooms int[], soles boolean[], active int,
  routes text[], route_of int[], width int, held int[], next_held int[],
  batch int, max_bytes bigint, turn bigint, now timestamptz, for_claim boolean, config outbox.config,
  out ids bigint[], out tids tid[], out shards int[], out attempts int[], out suspects int[], out passes int[],
  out picked int[], out left_out int, out many text[], out many_at text[])
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- The second half of a claim's plan: which rows, out of the namespaces that claim_walk has
-- come to (its arguments are what that returns). One row of arrays: a row's id, place, shard,
-- attempts so far, how often it was suspect, pass, and its namespace as an index, in the
-- order of service.
--
-- Each namespace's rows are ranked, round-robin over its routes; rank 1 of all of them
-- comes before rank 2 of any. Ranks up to the slice are pass 1, ceil(batch / active);
-- what the batch still holds behind them is pass 2. So one order gives both passes, and
-- the claim is its first batch rows, or up to the row that reaches max_bytes.
--
-- A payload of max_bytes or more ends the claim whatever is before it. So it comes behind all
-- others, and costs nobody else the turn; but not where it is the very first one, so that it
-- has its turn too: left_out is the first namespace, by index, whose row of rank 1 max_bytes or
-- batch kept out, and the next walk begins there, with the same lanes.
--
-- Only so many rows are read as can be taken: from each namespace what it needs (at
-- first its slice), from each of its routes an equal part of that, lane by lane. A route
-- that runs dry leaves its part to the others, a namespace that runs dry to the others
-- likewise, and then the reading is done again with those larger parts.
--
-- Within a rank the order is that of namespaces (the walk's), unless turn says that
-- all eligible namespaces are here: then the first place moves on by one each round,
-- among those that have a row of that rank, and with it the odd remainder of the batch.
-- Lanes start at a shard drawn by hash from namespace and round, so that no rhythm of
-- the claims can pass one over. many names the namespaces served that have several
-- routes, many_at the route of each that came last: the next pick starts behind it.
--
-- for_claim locks the rows it returns; rows that others have locked do not count. Like
-- claim_walk it runs under the settings of its caller.
declare
  v_slice  int := (claim_pick.batch - 1) / claim_pick.active + 1;
  v_count  int := cardinality(claim_pick.namespaces);
  v_need   int[] := '{}';  -- by namespace: rows wanted,
  v_known  int[];          --   due routes, as far as looked for,
  v_nth    int[];          --   a counter of them,
  v_wide   int[] := '{}';  --   how many were looked for,
  v_look   int[] := '{}';  --   how many to look for,
  v_got    int[];          --   rows found,
  v_open   int[];          --   routes that may have more
  v_queue  text[] := claim_pick.routes;  -- by route: its name,
  v_of     int[] := claim_pick.route_of; --   its namespace, as an index,
  v_part   int[];          --   rows wanted,
  v_have   int[];          --   rows found
  v_route  int[];          -- by row: its route,
  v_rank   int[];
  v_id     bigint[];
  v_tid    tid[];
  v_shard  int[];
  v_tries  int[];
  v_suspect int[];
  v_bytes  int[];
  v_search int[];
  v_raised boolean;
  v_left   int;
  v_more   int;
  i        int;
begin
  for n in 1 .. v_count loop
    v_need[n] := least(claim_pick.headrooms[n], v_slice);
    v_look[n] := least(v_need[n], (claim_pick.config).max_routes);
    v_wide[n] := case when claim_pick.soles[n] then (claim_pick.config).max_routes else claim_pick.width end;
  end loop;
  loop
    v_known := array_fill(0, array[v_count]);
    foreach i in array v_of loop
      v_known[i] := v_known[i] + 1;
    end loop;
    v_search := array(select u.n from unnest(v_known, v_wide, v_look) with ordinality as u(known, wide, look, n)
                      where u.known = u.wide and u.wide < u.look);
    if v_search <> '{}' then
      select coalesce(array_agg(x.i), '{}'), array_agg(x.task_queue) into v_of, v_queue
      from (
        select u.i, u.task_queue from unnest(v_of, v_queue) as u(i, task_queue) where u.i <> all (v_search)
        union all
        select u.i, r.task_queue
        from unnest(v_search) as u(i)
        cross join lateral (
          select r.task_queue, r.due
          from outbox.due_routes(claim_pick.namespaces[u.i], claim_pick.node, claim_pick.next_held, claim_pick.now,
                                 (claim_pick.config).max_routes) as r
          limit v_look[u.i]
        ) as r
        where r.due
      ) as x;
      foreach i in array v_search loop
        v_wide[i] := v_look[i];
      end loop;
      continue;
    end if;
    exit when v_of = '{}';
    v_part := array_fill(0, array[cardinality(v_of)]);
    v_nth := array_fill(0, array[v_count]);
    for r in 1 .. cardinality(v_of) loop
      i := v_of[r];
      v_nth[i] := v_nth[i] + 1;
      if v_nth[i] <= v_need[i] then
        v_part[r] := (v_need[i] - 1) / least(v_known[i], v_need[i]) + 1;
      end if;
    end loop;

    loop -- until each namespace has what it needs, or nothing more
      -- A route's rows: those of the lane it starts at, then of the lanes that have any.
      if claim_pick.for_claim then
        select array_agg(x.r), array_agg(x.rank), array_agg(x.id), array_agg(x.tid), array_agg(x.shard),
               array_agg(x.attempt), array_agg(x.suspect), array_agg(x.payload_bytes)
        into v_route, v_rank, v_id, v_tid, v_shard, v_tries, v_suspect, v_bytes
        from (
          select r.r, m.*, (row_number() over (partition by r.i order by m.nth, r.r))::int as rank
          from unnest(v_of, v_queue, v_part) with ordinality as u(i, task_queue, part, r)
          cross join lateral (
            select u.*, claim_pick.namespaces[u.i] as namespace,
                   claim_pick.held[1 + (hashtextextended(claim_pick.namespaces[u.i] collate "C", claim_pick.rounds[u.i])
                                        & 9223372036854775807) % cardinality(claim_pick.held)] as first
            offset 0
          ) as r
          cross join lateral (
            select row_number() over () as nth, x.*
            from (
              select p.*
              from (
                select r.first as shard
                union all
                select l.shard
                from outbox.walk_lanes(r.namespace, r.task_queue, r.first + 1, claim_pick.next_held) as l
                where l.head <= claim_pick.now and l.shard <> r.first
              ) as l
              cross join lateral (
                select p.id, p.ctid as tid, p.shard, p.attempt, p.suspect, p.payload_bytes
                from outbox.pending as p
                where p.namespace = r.namespace and p.task_queue = r.task_queue
                  and p.shard = l.shard and p.visible_after <= claim_pick.now
                order by p.visible_after, p.id limit r.part
                for update skip locked
              ) as p
              limit r.part
            ) as x
          ) as m
          where r.part > 0
        ) as x;
      else -- the same without the lock
        select array_agg(x.r), array_agg(x.rank), array_agg(x.id), array_agg(x.tid), array_agg(x.shard),
               array_agg(x.attempt), array_agg(x.suspect), array_agg(x.payload_bytes)
        into v_route, v_rank, v_id, v_tid, v_shard, v_tries, v_suspect, v_bytes
        from (
          select r.r, m.*, (row_number() over (partition by r.i order by m.nth, r.r))::int as rank
          from unnest(v_of, v_queue, v_part) with ordinality as u(i, task_queue, part, r)
          cross join lateral (
            select u.*, claim_pick.namespaces[u.i] as namespace,
                   claim_pick.held[1 + (hashtextextended(claim_pick.namespaces[u.i] collate "C", claim_pick.rounds[u.i])
                                        & 9223372036854775807) % cardinality(claim_pick.held)] as first
            offset 0
          ) as r
          cross join lateral (
            select row_number() over () as nth, x.*
            from (
              select p.*
              from (
                select r.first as shard
                union all
                select l.shard
                from outbox.walk_lanes(r.namespace, r.task_queue, r.first + 1, claim_pick.next_held) as l
                where l.head <= claim_pick.now and l.shard <> r.first
              ) as l
              cross join lateral (
                select p.id, p.ctid as tid, p.shard, p.attempt, p.suspect, p.payload_bytes
                from outbox.pending as p
                where p.namespace = r.namespace and p.task_queue = r.task_queue
                  and p.shard = l.shard and p.visible_after <= claim_pick.now
                order by p.visible_after, p.id limit r.part
              ) as p
              limit r.part
            ) as x
          ) as m
          where r.part > 0
        ) as x;
      end if;

      v_have := array_fill(0, array[cardinality(v_of)]);
      v_got := array_fill(0, array[v_count]);
      v_open := array_fill(0, array[v_count]);
      for k in 1 .. coalesce(cardinality(v_id), 0) loop
        v_have[v_route[k]] := v_have[v_route[k]] + 1;
      end loop;
      for r in 1 .. cardinality(v_of) loop
        v_got[v_of[r]] := v_got[v_of[r]] + v_have[r];
        v_open[v_of[r]] := v_open[v_of[r]] + (v_have[r] = v_part[r])::int;
      end loop;
      v_raised := false;
      for r in 1 .. cardinality(v_of) loop
        if v_have[r] = v_part[r] and v_got[v_of[r]] < v_need[v_of[r]] then
          v_part[r] := v_part[r] + (v_need[v_of[r]] - v_got[v_of[r]] - 1) / v_open[v_of[r]] + 1;
          v_raised := true;
        end if;
      end loop;
      exit when not v_raised;
    end loop;

    -- Where others have locked all that these routes have due, look at more of them.
    v_raised := false;
    for n in 1 .. v_count loop
      if v_got[n] < v_need[n] and v_known[n] = v_wide[n] and v_wide[n] < (claim_pick.config).max_routes then
        v_look[n] := (claim_pick.config).max_routes;
        v_raised := true;
      end if;
    end loop;
    continue when v_raised;

    v_left := claim_pick.batch;
    v_more := 0;
    for n in 1 .. v_count loop
      v_left := v_left - least(v_got[n], v_need[n]);
      v_more := v_more + (v_got[n] >= v_need[n] and v_need[n] < claim_pick.headrooms[n])::int;
    end loop;
    exit when v_left <= 0 or v_more = 0;
    for n in 1 .. v_count loop
      if v_got[n] >= v_need[n] then
        v_need[n] := least(v_need[n] + (v_left - 1) / v_more + 1, claim_pick.headrooms[n]);
        v_look[n] := least(greatest(v_look[n], v_need[n]), (claim_pick.config).max_routes);
      end if;
    end loop;
  end loop;

  with placed as materialized (
    select k.k, v_of[k.route] as i, k.route, k.rank, k.id, k.tid, k.shard, k.attempt, k.suspect, k.bytes,
           row_number() over (partition by k.rank order by v_of[k.route]) - 1 as place,
           count(*) over (partition by k.rank) as places
    from unnest(v_route, v_rank, v_id, v_tid, v_shard, v_tries, v_suspect, v_bytes) with ordinality
         as k(route, rank, id, tid, shard, attempt, suspect, bytes, k)
    where k.rank <= v_need[v_of[k.route]]
  ), ordered as (
    select p.*, row_number() over w as n,
           coalesce(sum(p.bytes) over (w rows between unbounded preceding and 1 preceding), 0) as bytes_before
    from placed as p
    window w as (order by (p.bytes >= claim_pick.max_bytes and (p.rank > 1 or p.place > 0)) is true, p.rank,
      -- A turn that max_bytes could cut short within rank 1 would pass over those
      -- that it started behind: then the walk's own order stands, and goes on there.
      case when claim_pick.turn is not null
                and (claim_pick.max_bytes is null
                     or (select sum(f.bytes) from placed as f where f.rank = 1) < claim_pick.max_bytes)
           then (p.place - claim_pick.turn % p.places + p.places) % p.places else p.place end)
  ), cut as (
    select o.*, o.n <= claim_pick.batch and (claim_pick.max_bytes is null or o.bytes_before < claim_pick.max_bytes) as taken
    from ordered as o
  )
  select array_agg(c.id) filter (where c.taken), array_agg(c.tid) filter (where c.taken),
         array_agg(c.shard) filter (where c.taken), array_agg(c.attempt) filter (where c.taken),
         array_agg(c.suspect) filter (where c.taken),
         array_agg(case when c.rank <= v_slice then 1 else 2 end) filter (where c.taken),
         array_agg(c.i) filter (where c.taken), array_agg(c.route) filter (where c.taken),
         min(c.i) filter (where not c.taken and c.rank = 1)
  into ids, tids, shards, attempts, suspects, passes, picked, v_route, left_out
  from (select c.* from cut as c order by c.n) as c;

  if false = any (claim_pick.soles) then
    v_have := array_fill(null::int, array[v_count]); -- the last route, a namespace
    for k in 1 .. coalesce(cardinality(ids), 0) loop
      v_have[picked[k]] := v_route[k];
    end loop;
    for n in 1 .. v_count loop
      if v_have[n] is not null and not claim_pick.soles[n] then
        many := many || claim_pick.namespaces[n];
        many_at := many_at || v_queue[v_have[n]];
      end if;
    end loop;
  end if;
end $$;
comment on function outbox.claim_pick is 'Which rows a claim takes from eligible namespaces, in order';
revoke all on function outbox.claim_pick from public;
-- <<< sql/functions/claim_pick.sql

-- >>> sql/functions/claim_fair.sql
-- requires: check_claim.sql next_held.sql walk_start.sql claim_walk.sql claim_pick.sql lock_class.sql node_lock.sql span.sql
create or replace function outbox.claim_fair(node text, shards int[], batch int, max_bytes bigint default null,
                                             payloads boolean default true)
returns table (id bigint, claim_token bigint, namespace text, task_queue text, dispatch_key text, shard int,
               attempt int, content_type text, headers jsonb, payload bytea, lease_until timestamptz, pass int,
               payload_bytes int, suspect int)
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
-- Claims up to batch due messages on these shards for this node, fairly: every active
-- namespace gets its slice of the batch, capped by its headroom; what is left is shared
-- out in rounds. With max_bytes the claim ends with the row that reaches it, and a payload
-- of that many bytes comes last, unless it is the first. Rows come back in the order of service. A claim never waits for another one. How it ended stands in
-- the setting outbox.claim_outcome until the transaction ends, for current_setting():
--
--   served        it brought messages
--   cut           it visited config.max_visits namespaces, or ran out of time, before it had
--                 looked at all: claim again at once, the next walk goes on there
--   cut_past_end  the same, and the walk came past the last name: once in each round
--   all_round     it brought none: nothing is due that it may claim
--   shut_out      it brought none, and another claim has some of the shards, or the node's name
--
-- Without payloads, payload and headers are null: whoever claims reads them with payloads(),
-- as they fit into its memory, once the claim is committed. Then the messages have not begun
-- yet, and those that are suspect (see rescue) are to be told to begin_delivery() before they
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
  v_cursor  text;        -- where the walk starts
  v_round   bigint;
  v_edge    bigint;      -- claimed messages with older tokens need not be looked for,
  v_edges   int[];       --   on these shards
  v_last    int;         -- the last one that had its turn
  v_walk    record;      -- the namespaces
  v_pick    record;      -- the rows, in the order of service
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
  if current_setting('idle_in_transaction_session_timeout')::interval not between '1 ms' and v_config.claim_idle_timeout then
    -- A claim left open would hold its shards: it may not stay open for long.
    perform set_config('idle_in_transaction_session_timeout',
                       (extract(epoch from v_config.claim_idle_timeout) * 1000)::bigint::text, true);
  end if;
  if current_setting('tcp_user_timeout') = '0' then
    -- Nor may one whose client is frozen or gone, and takes in none of what is sent to it.
    perform set_config('tcp_user_timeout', (extract(epoch from v_config.claim_idle_timeout) * 1000)::bigint::text, true);
  end if;

  -- 2. The node's lock, then those of the shards; all are given back at commit.
  v_class := outbox.lock_class();
  if not pg_try_advisory_xact_lock(v_class, outbox.node_lock(claim_fair.node)) then
    return;
  end if;
  select array_agg(s.shard) into v_held
  from unnest(v_shards) as s(shard) where pg_try_advisory_xact_lock(v_class, s.shard);
  if v_held is null then
    return;
  end if;
  v_next := outbox.next_held(v_held, v_config.shard_count);
  v_now := clock_timestamp();
  v_until := v_now + outbox.span(v_config.lease);

  -- 3. Whom to serve.
  select w.namespace, w.round, w.edge, w.edge_shards into strict v_cursor, v_round, v_edge, v_edges
  from outbox.walk_start(claim_fair.node, v_shards) as w;
  if v_edges is null or not v_held <@ v_edges then
    v_edges := v_held; -- other shards than it knows the edge of
    v_edge := 0;
  end if;
  select w.* into v_walk
  from outbox.claim_walk(claim_fair.node, v_next, cardinality(v_held), claim_fair.batch, v_cursor, v_round, v_now,
                         v_edge, null, true, v_config) as w;

  -- 4. Which rows.
  select p.* into v_pick
  from outbox.claim_pick(claim_fair.node, v_walk.namespaces, v_walk.rounds, v_walk.headrooms, v_walk.soles, v_walk.active,
                         v_walk.routes, v_walk.route_of, v_walk.width, v_held, v_next, claim_fair.batch, claim_fair.max_bytes,
                         case when not v_walk.more then v_walk.rounds[1] end, v_now, true, v_config) as p
  where v_walk.active > 0;

  perform set_config('outbox.claim_outcome', case
    when v_walk.more and v_walk.active < claim_fair.batch then case when v_walk.wrapped then 'cut_past_end' else 'cut' end
    when v_pick.ids is not null then 'served'
    when v_held <> v_shards then 'shut_out'
    else 'all_round' end, true);

  -- 5. Where the next claim goes on: behind the last namespace that the walk came to,
  -- or, where max_bytes left some out, with the first of those. A walk all around that
  -- served none leaves everything as it is.
  v_last := coalesce(v_pick.left_out - 1, cardinality(v_walk.namespaces));
  if v_pick.ids is not null or v_walk.more then
    v_token := nextval('outbox.claim_token') + floor(random() * 4194304)::bigint; -- see the sequence's migration
    if v_token <= (select max(w.edge) from outbox.walk as w) then
      -- The sequence was set back: below an edge, what is claimed would not be counted.
      perform setval('outbox.claim_token', (select max(w.edge) from outbox.walk as w) + 1000 * 4194304::bigint); -- see pass_token
      v_token := nextval('outbox.claim_token') + floor(random() * 4194304)::bigint;
    end if;
    if v_edges = v_held then
      -- Nobody else claims on these shards before this claim ends, and then with a later
      -- token than this one's. So the oldest one there now stays the oldest.
      v_edge := coalesce((select c.claim_token from outbox.claimed as c
                          where c.claim_token >= v_edge and v_next[c.shard + 1] = c.shard
                          order by c.claim_token limit 1), v_token);
    end if;
    insert into outbox.walk as w (node, namespace, round, claimed_at, claimed, edge, edge_shards)
    values (claim_fair.node, v_walk.namespaces[v_last], v_walk.rounds[v_last], v_now,
            coalesce(cardinality(v_pick.ids), 0), v_edge, v_edges)
    on conflict on constraint walk_pkey do update
      set namespace = excluded.namespace, round = excluded.round, claimed_at = excluded.claimed_at,
          claimed = excluded.claimed, edge = excluded.edge, edge_shards = excluded.edge_shards;
  end if;
  if v_walk.idle is not null or v_pick.many is not null then
    insert into outbox.route as t (namespace, node, task_queue, served_at, shard)
    select u.namespace, claim_fair.node, u.task_queue, v_now, v_held[1]
    from unnest(v_pick.many || v_walk.idle, v_pick.many_at || v_walk.idle_at) as u(namespace, task_queue)
    on conflict on constraint route_pkey do update
      set task_queue = excluded.task_queue, served_at = excluded.served_at, shard = excluded.shard
      where t.task_queue <> excluded.task_queue;
  end if;
  if v_pick.ids is null then
    return;
  end if;

  -- 6. Move the rows, and return them with their cold side.
  with p as (
    delete from outbox.pending as d where d.ctid = any (v_pick.tids) returning d.*
  )
  insert into outbox.claimed as c (id, namespace, task_queue, shard, visible_after, attempt, payload_bytes,
                                   claim_token, claimed_by, claimed_at, lease_until, suspect, begun)
  select p.id, p.namespace, p.task_queue, p.shard, p.visible_after,
         least(p.attempt, 2147483646) + 1, -- a charge on the last attempt there is must not raise
         p.payload_bytes, v_token, claim_fair.node, v_now, v_until, p.suspect,
         case when claim_fair.payloads then least(cardinality(v_pick.ids), 32767) else 0 end
  from p;
  get diagnostics v_moved = row_count;
  if v_moved <> cardinality(v_pick.ids) then
    raise exception 'outbox.claim_fair: locked % rows and found % of them again', cardinality(v_pick.ids), v_moved
      using errcode = 'internal_error';
  end if;
  return query
  select m.id, v_token, m.namespace, m.task_queue, m.dispatch_key, u.shard, least(u.attempt, 2147483646) + 1,
         m.content_type, case when claim_fair.payloads then m.headers end, case when claim_fair.payloads then m.payload end,
         v_until, u.pass, octet_length(m.payload), u.suspect
  from unnest(v_pick.ids, v_pick.shards, v_pick.attempts, v_pick.suspects, v_pick.passes) with ordinality
       as u(id, shard, attempt, suspect, pass, n)
  cross join lateral ( -- a look-up each: a join could read every message there is
    select m.* from outbox.message as m where m.id = u.id offset 0
  ) as m
  order by u.n;
end $$;
comment on function outbox.claim_fair is 'Claims due messages, fairly over namespaces';
revoke all on function outbox.claim_fair from public;
-- <<< sql/functions/claim_fair.sql

-- >>> sql/functions/explain_claim.sql
-- requires: check_claim.sql next_held.sql walk_start.sql claim_walk.sql claim_pick.sql hold_reason.sql paused_routes.sql count_due.sql claim_locks.sql node_lock.sql shards_text.sql
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
-- that it would visit, in the order of the walk. It runs the same plan (claim_walk and
-- claim_pick), writes nothing and takes no lock (so what others have locked at this
-- instant, which claim_fair leaves out, counts here). "only" answers for one namespace,
-- wherever the walk stands. due counts no further than config.count_cap. What stands in
-- the way of the claim itself comes first, in rows without a namespace.
declare
  v_config outbox.config;
  v_shards int[];
  v_held   int[];
  v_next   int[];
  v_now    timestamptz := clock_timestamp();
  v_to     text;
  v_turn   bigint;
  v_row    record;
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
  for v_row in
    with walk as materialized (
      select w.* from outbox.claim_walk(explain_claim.node, v_next, cardinality(v_held), explain_claim.batch,
                                        v_to, v_turn, v_now, 0, null, false, v_config) as w
    ), pick as materialized (
      select x.i, count(*) filter (where x.pass = 1) as pass1, count(*) filter (where x.pass = 2) as pass2
      from walk as w
      cross join lateral outbox.claim_pick(
        explain_claim.node, w.namespaces, w.rounds, w.headrooms, w.soles, w.active, w.routes, w.route_of, w.width, v_held,
        v_next, explain_claim.batch, explain_claim.max_bytes, case when not w.more then w.rounds[1] end, v_now, false, v_config) as p
      cross join lateral unnest(p.picked, p.passes) as x(i, pass)
      where w.active > 0
      group by x.i
    ), visited as (
      select v.* from walk as w
      cross join lateral unnest(w.namespaces, w.verdicts, w.quotas, w.claimed, w.ceilings) with ordinality
                         as v(namespace, verdict, quota, claimed, ceiling, i)
      union all -- the one asked for, if the walk ends before it
      select o.namespaces[1], o.verdicts[1], o.quotas[1], o.claimed[1], o.ceilings[1], 0
      from outbox.claim_walk(explain_claim.node, v_next, cardinality(v_held), 1, v_to, v_turn, v_now, 0,
                             explain_claim."only", false, v_config) as o
      where explain_claim."only" is not null
        and explain_claim."only" <> all (select unnest(w.namespaces) from walk as w)
    )
    select v.*, w.active, coalesce(p.pass1, 0) as pass1, coalesce(p.pass2, 0) as pass2
    from visited as v
    cross join walk as w
    left join pick as p on p.i = v.i
    where explain_claim."only" is null or v.namespace = explain_claim."only"
    order by v.i
  loop
    namespace := v_row.namespace;
    due := outbox.count_due(v_row.namespace, v_next, v_now, v_config.count_cap);
    claimed := v_row.claimed;
    quota := v_row.quota;
    ceiling := v_row.ceiling;
    headroom := greatest(v_row.ceiling - v_row.claimed, 0);
    slice := case when v_row.active > 0 then (explain_claim.batch - 1) / v_row.active + 1 end;
    pass1 := v_row.pass1;
    pass2 := v_row.pass2;
    reason := coalesce(
      outbox.hold_reason(v_row.namespace, v_row.verdict, v_row.claimed, v_row.ceiling, v_row.quota, v_next, v_now),
      case when pass1 + pass2 = 0 then 'not reached this sweep'
           else format('served %s of %s%s', pass1 + pass2, greatest(due, pass1 + pass2),
                       case when due >= v_config.count_cap then ' or more' else '' end)
                || case when pass1 + pass2 >= due then ''
                        when pass1 + pass2 >= headroom then format(', up to its ceiling of %s', ceiling)
                        else coalesce('; ' || outbox.paused_routes(v_row.namespace, v_next, v_now),
                                      ', as many as the claim holds for it') end
      end);
    return next;
  end loop;
end $$;
comment on function outbox.explain_claim is 'What claim_fair would do now, and why; writes nothing';
revoke all on function outbox.explain_claim from public;
-- <<< sql/functions/explain_claim.sql

-- >>> sql/functions/lock_holders.sql
-- requires: node_lock.sql claim_locks.sql
create or replace function outbox.lock_holders(node text)
returns table (shard int, pid int, session text)
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
  -- Who holds locks of this outbox, other than this session: those of shards, and that of
  -- the node (shard null).
  select case when l.key >= 0 then l.key end, l.pid, l.session
  from outbox.claim_locks() as l
  where l.key between 0 and 1023 or l.key = outbox.node_lock(lock_holders.node);
$$;
comment on function outbox.lock_holders is 'Other sessions that hold shards, or this node''s lock';
revoke all on function outbox.lock_holders from public;
-- <<< sql/functions/lock_holders.sql

-- >>> sql/functions/why.sql
-- requires: claim_locks.sql suspect_text.sql live_shards.sql check_key.sql next_held.sql claim_walk.sql hold_reason.sql time_text.sql pause_text.sql
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

  select p.* into v_pending from outbox.pending as p -- by range and order: as in cancel()
  where p.id >= why.id and p.id <= why.id order by p.id limit 1;
  if found then
    state := 'pending';
    attempts := v_pending.attempt;
    shard := v_pending.shard;
    v_next := outbox.next_held(array(select generate_series(0, v_config.shard_count - 1)), v_config.shard_count);
    select outbox.hold_reason(w.namespaces[1], w.verdicts[1], w.claimed[1], w.ceilings[1], w.quotas[1], v_next, v_now) into v_hold
    from outbox.claim_walk('', v_next, v_config.shard_count, 1, '', 0, v_now, 0, v_pending.namespace, false, v_config) as w
    where w.verdicts[1] in ('paused', 'ceiling');
    v_hold := nullif(concat_ws('; ', v_hold,
      (select outbox.pause_text(p, v_now) from outbox.pause as p
       where p.task_queue = v_pending.task_queue and (p.namespace = v_pending.namespace or p.namespace is null)
       order by p.namespace nulls last limit 1)), '');
    next_at := case when v_hold is null then v_pending.visible_after end;
    select string_agg(o.node, ', ' order by o.node) into v_owners from outbox.live_shards(v_now) as o where o.shard = v_pending.shard;
    select count(*) into v_nodes from outbox.node as n
    where n.heartbeat_at between v_now - v_config.node_lapse and v_now + v_config.node_lapse;
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
      reason := format('due: goes when the walk comes to it, on %s',
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

-- >>> sql/functions/grants.sql
-- requires: bad_argument.sql
create or replace function outbox.grant_producer(role name)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Lets a role enqueue, and nothing else. Not security definer: only the schema's owner
-- can hand rights out.
begin
  execute format('grant usage on schema outbox to %I', grant_producer.role);
  execute format('grant execute on function outbox.enqueue(text, text, text, bytea, text, jsonb, interval), '
    'outbox.enqueue(text, text, text, text, text, jsonb, interval), outbox.enqueue_json, outbox.enqueue_batch, '
    'outbox.enqueue_texts to %I', grant_producer.role);
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
  execute format('grant execute on function outbox.claim_fair, outbox.complete, outbox.retry, outbox.fail, '
    'outbox.payloads, outbox.begin_delivery, outbox.release, outbox.extend, outbox.rescue, outbox.prune, outbox.heartbeat, outbox.leave, outbox.node_processes, '
    'outbox.all_shards, outbox.settings, outbox.claim_obstacles, outbox.node_ceiling to %I', grant_worker.role);
end $$;
comment on function outbox.grant_worker is 'Lets a role enqueue, claim and settle';
revoke all on function outbox.grant_worker from public;

create or replace function outbox.grant_operator(role name)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Lets a role do all that a worker can, see everything (payloads too), set quotas and
-- settings, pause, cancel and redrive. Not public, as grant_worker.
begin
  if coalesce(grant_operator.role, 'public') = 'public' then
    perform outbox.bad_argument('grant_operator', 'role', 'is null or public, which means every role', 'Name a role, and grant that to the people on duty.');
  end if;
  perform outbox.grant_worker(grant_operator.role);
  execute format('grant execute on function outbox.explain_claim, outbox.why, outbox.check, outbox.lock_holders, outbox.count_expired, '
    'outbox.unowned_shards, outbox.configure, outbox.quota, outbox.set_quota, outbox.clear_quota, '
    'outbox.pause, outbox.resume, outbox.cancel, outbox.cancel_namespace, '
    'outbox.redrive(bigint[]), outbox.redrive(text, int) to %I', grant_operator.role);
  execute format('grant select on outbox.messages, outbox.namespaces, outbox.nodes, outbox.pauses to %I', grant_operator.role);
end $$;
comment on function outbox.grant_operator is 'Lets a role do everything but touch the tables';
revoke all on function outbox.grant_operator from public;
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

-- Whoever may claim may ask who stops claims.
do $$
declare
  v_role regrole;
begin
  for v_role in
    select a.grantee from pg_catalog.pg_proc as p cross join lateral pg_catalog.aclexplode(p.proacl) as a
    where p.pronamespace = 'outbox'::pg_catalog.regnamespace and p.proname = 'claim_fair' and a.grantee not in (0, p.proowner)
  loop
    execute pg_catalog.format('grant execute on function outbox.claim_obstacles to %s', v_role);
  end loop;
end $$;

insert into outbox.migration (version) values (8);
