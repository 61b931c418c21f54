set local search_path = pg_catalog, pg_temp;
delete from outbox.migration where version = 6;

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
    where p.pronamespace = 'outbox'::pg_catalog.regnamespace and p.proname in ('check', 'claim_fair', 'claim_pick', 'enqueue', 'enqueue_batch', 'enqueue_json', 'explain_claim', 'heartbeat', 'why', null)
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

-- dropped: sql/functions/why.sql
drop function outbox.why(dispatch_key text);

-- dropped: sql/functions/suspect_text.sql
drop function outbox.suspect_text(suspect int);

-- dropped: sql/functions/same_shard_count.sql
drop function outbox.same_shard_count(used int);

-- dropped: sql/functions/payloads.sql
drop function outbox.payloads(ids bigint[], tokens bigint[]);

-- dropped: sql/functions/node_processes.sql
drop function outbox.node_processes();

-- dropped: sql/functions/heartbeat.sql
drop function outbox.heartbeat(node text, shards int[], paused text, in_flight_bytes bigint, process text, seen_token bigint);

-- dropped: sql/functions/pass_token.sql
drop function outbox.pass_token(node text, seen bigint);

-- dropped: sql/functions/explain_claim.sql
drop function outbox.explain_claim(node text, shards int[], batch int, max_bytes bigint, "only" text);

-- dropped: sql/functions/enqueue_json.sql
drop function outbox.enqueue_json(namespace text, task_queue text, dispatch_key text, payload jsonb, headers jsonb, delay interval);

-- dropped: sql/functions/enqueue_batch.sql
drop function outbox.enqueue_texts(namespaces text[], task_queues text[], dispatch_keys text[], payloads text[], content_types text[], headers jsonb[], delays interval[]);
drop function outbox.enqueue_batch(namespaces text[], task_queues text[], dispatch_keys text[], payloads bytea[], content_types text[], headers jsonb[], delays interval[]);

-- dropped: sql/functions/enqueue.sql
drop function outbox.enqueue(namespace text, task_queue text, dispatch_key text, payload text, content_type text, headers jsonb, delay interval);
drop function outbox.enqueue(namespace text, task_queue text, dispatch_key text, payload bytea, content_type text, headers jsonb, delay interval);

-- dropped: sql/functions/looks_like_hex.sql
drop function outbox.looks_like_hex(payload text);

-- dropped: sql/functions/count_expired.sql
drop function outbox.count_expired(max int);

-- dropped: sql/functions/claim_fair.sql
drop function outbox.claim_fair(node text, shards int[], batch int, max_bytes bigint, payloads boolean);

-- dropped: sql/functions/claim_pick.sql
drop function outbox.claim_pick(node text, namespaces text[], rounds bigint[], headrooms int[], soles boolean[], active int, routes text[], route_of int[], width int, held int[], next_held int[], batch int, max_bytes bigint, turn bigint, now timestamptz, for_claim boolean, config outbox.config, out ids bigint[], out tids tid[], out shards int[], out attempts int[], out suspects int[], out passes int[], out picked int[], out last_rank int, out last_bytes bigint, out many text[], out many_at text[]);

-- dropped: sql/functions/check.sql
drop function outbox.check(newest bigint, max int);

-- dropped: sql/functions/begin_delivery.sql
drop function outbox.begin_delivery(ids bigint[], tokens bigint[], together int);

-- dropped: sql/functions/audit_names.sql
drop function outbox.audit_names();

-- dropped: sql/functions/audit_bindings.sql
drop function outbox.audit_bindings();

-- >>> sql/functions/audit_claims.sql
create or replace function outbox.audit_claims()
returns table (guarantee text, subject text, detail text, hint text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_nestloop = off
set jit = off
as $$
-- The part of check() about what is claimed now: quotas, claim tokens, leases.
--
-- Quotas are judged by the claims that are still there, since a namespace may rightly have
-- more claimed than its quota: after it was lowered, or while shards move. What no order of
-- events allows is a claim above it. A claim holds its shards until it commits, so on those
-- that it took rows from it counted every row with an older token; with its own they are
-- at most its ceiling, and so the quota, of that time: the present one, or a former one
-- that was in force less than a day before (a day, since the transaction that lowers a
-- quota may commit late). Claims of a strict namespace count all shards, in the order of
-- their tokens. The sum over shards that different claims held is bounded only while
-- ownership is fixed, so nothing is said of it.
declare
  v_now    timestamptz := clock_timestamp();
  v_config outbox.config;
  v_token  bigint := (select q.last_value - (not q.is_called)::int from outbox.claim_token as q);
begin
  select c.* into v_config from outbox.config as c;

  return query
  with part as (
    select c.namespace, c.shard, c.claim_token, min(c.claimed_at) as claimed_at, count(*) as rows
    from outbox.claimed as c group by c.namespace, c.shard, c.claim_token
  ), counted as (
    select p.*, sum(p.rows) over (partition by p.namespace, p.shard order by p.claim_token) as on_shard,
           sum(p.rows) over (partition by p.namespace order by p.claim_token) as on_all
    from part as p
  ), claim as (
    select c.namespace, c.claim_token, min(c.claimed_at) as claimed_at,
           case when coalesce(bool_or(n.strict), false) then max(c.on_all) else sum(c.on_shard) end as seen,
           coalesce(bool_or(n.strict), false) as strict, coalesce(max(n.quota), v_config.default_quota) as quota
    from counted as c left join outbox.namespace as n on n.namespace = c.namespace
    group by c.namespace, c.claim_token
  ), above as (
    select c.*, greatest(c.quota, (select max(f.quota) from outbox.former_quota as f
                                   where (f.namespace = c.namespace or f.namespace is null)
                                     and c.claimed_at < f.until + interval '1 day')) as allowed
    from claim as c
    where c.seen > c.quota and c.claimed_at > v_now - interval '29 days' -- prune() forgets former quotas after 30
  ), worst as (
    select distinct on (a.namespace) a.* from above as a where a.seen > a.allowed
    order by a.namespace, a.seen - a.allowed desc
  )
  select 'INV-4', format('namespace %L', w.namespace),
         format('claim %s at %s brought it to %s messages%s, its quota is %s%s', w.claim_token, w.claimed_at, w.seen,
                case when w.strict then '' else ' on the shards it took them from' end, w.quota,
                case when w.allowed > w.quota then format(' (%s not long before)', w.allowed) else '' end),
         'Claims went past outbox.claim_fair, or a function was changed: compare it with "sweep migrate sql".'
  from worst as w;

  return query
  select 'INV-4', format('node %s', w.node),
         format('does not count message %s against the quota of its namespace: claim token %s on shard %s is below the node''s edge, %s',
                min(c.id), min(c.claim_token), min(c.shard), w.edge),
         'Was the sequence outbox.claim_token set back? update outbox.walk set edge = 0.'
  from outbox.walk as w
  join outbox.claimed as c on c.claim_token < w.edge and c.shard = any (w.edge_shards)
  group by w.node, w.edge;

  return query
  select 'INV-9', format('message %s', c.id),
         format('has claim token %s, the last one drawn is %s', c.claim_token, v_token),
         'A later claim could draw the same token. select setval(''outbox.claim_token'', (select max(claim_token) from outbox.claimed)).'
  from outbox.claimed as c where c.claim_token > v_token;

  return query
  select 'INV-9', format('claim token %s', c.claim_token),
         format('belongs to %s claims, by %s', count(distinct (c.claimed_by, c.claimed_at)),
                left(string_agg(distinct c.claimed_by, ', '), 200)),
         'Each claim draws its own. Was the sequence outbox.claim_token set back?'
  from outbox.claimed as c group by c.claim_token having count(distinct (c.claimed_by, c.claimed_at)) > 1;

  return query
  select 'INV-2', format('message %s', c.id),
         format('is claimed by %s, and its lease ran out at %s', c.claimed_by, c.lease_until),
         'Nodes rescue every few seconds: may they, is a session holding its row? select * from outbox.rescue() takes it back.'
  from outbox.claimed as c
  where c.lease_until < v_now - interval '1 hour'
    and exists (select from outbox.node as n where n.heartbeat_at > v_now - v_config.node_lapse);

  return query
  select 'INV-2', format('message %s', c.id), format('is claimed by %s until %s, no lease is that long', c.claimed_by, c.lease_until),
         'No rescue takes it before. Set its lease_until to now().'
  from outbox.claimed as c where c.lease_until > v_now + interval '2 days';
end $$;
comment on function outbox.audit_claims is 'The part of check() about what is claimed';
revoke all on function outbox.audit_claims from public;
-- <<< sql/functions/audit_claims.sql

-- >>> sql/functions/shard_of.sql
create or replace function outbox.shard_of(dispatch_key text, shard_count int)
returns int
language sql immutable parallel safe
-- The shard of a dispatch key: 0 to shard_count - 1, evenly spread. It is computed
-- once, at enqueue, and stored, so that a restore on another platform moves nothing.
-- The "C" collation keeps the hash apart from the database's own.
begin atomic
  select ((hashtextextended(shard_of.dispatch_key collate "C", 0) & 9223372036854775807) % shard_of.shard_count)::int;
end;
comment on function outbox.shard_of is 'The shard that a dispatch key hashes to';
revoke all on function outbox.shard_of from public;
-- <<< sql/functions/shard_of.sql

-- >>> sql/functions/audit_schema.sql
create or replace function outbox.audit_schema()
returns table (guarantee text, subject text, detail text, hint text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set jit = off
as $$
-- The part of check() about what the guarantees stand on: settings, sequences, triggers,
-- tables that survive a crash, functions as they were installed, and rights.
declare
  v_owner  oid := (select n.nspowner from pg_namespace as n where n.oid = 'outbox'::regnamespace);
  v_shards int := (select c.shard_count from outbox.config as c);
  v_lapse  interval := (select c.node_lapse from outbox.config as c);
  v_max    bigint;
  v_last   bigint;
begin
  return query
  select 'INV-4', 'outbox.config', format('has %s rows', count(*)), 'It has exactly one: insert into outbox.config default values.'
  from outbox.config as c having count(*) <> 1;

  return query
  select 'INV-9', 'sequence outbox.claim_token', format('has cache %s, increment %s%s', q.seqcache, q.seqincrement,
         case when q.seqcycle then ', and cycles' else '' end),
         'A later claim must draw a larger token: alter sequence outbox.claim_token cache 1 increment 1 no cycle.'
  from pg_sequence as q
  where q.seqrelid = 'outbox.claim_token'::regclass and (q.seqcache <> 1 or q.seqincrement < 1 or q.seqcycle);

  v_max := (select max(m.id) from outbox.message as m);
  v_last := pg_sequence_last_value(pg_get_serial_sequence('outbox.message', 'id')::regclass);
  if v_max > coalesce(v_last, 0) then
    return query
    select 'INV-2', 'outbox.message.id', format('goes up to %s, its sequence stands at %s', v_max, coalesce(v_last, 0)),
           'Enqueue fails until it has caught up. Set it to the largest id: select setval(pg_get_serial_sequence(''outbox.message'', ''id''), ...).';
  end if;

  return query
  select 'INV-2', format('table %s', c.oid::regclass),
         case when c.relpersistence <> 'p' then 'is unlogged: a crash empties it' else 'has forced row security: rows are hidden from the functions' end,
         'alter table ... set logged, or no force row level security.'
  from pg_class as c
  where c.relnamespace = 'outbox'::regnamespace and c.relkind in ('r', 'p', 'S')
    and (c.relpersistence <> 'p' or c.relforcerowsecurity);

  return query
  select 'INV-4', format('trigger %s on %s', e.name, e.rel), case when t.oid is null then 'is missing' else 'is disabled' end,
         'It keeps shard_count fixed, or former quotas for this audit. Create it as the migration does, or: alter table ... enable trigger.'
  from (values ('config_guard', 'outbox.config'), ('former_quota', 'outbox.namespace')) as e(name, rel)
  left join pg_trigger as t on t.tgrelid = e.rel::regclass and t.tgname = e.name
  where t.oid is null or t.tgenabled not in ('O', 'A');

  return query
  select 'INV-5', format('node %L', n.node), format('names shards that do not exist: %s, of 0 to %s',
         array_to_string(array(select s.shard from unnest(n.shards) as s(shard) where s.shard not between 0 and v_shards - 1 limit 10), ', '), v_shards - 1),
         'Its claims are refused. Restart it with shards that exist.'
  from outbox.node as n
  where n.heartbeat_at > clock_timestamp() - v_lapse
    and exists (select from unnest(n.shards) as s(shard) where s.shard not between 0 and v_shards - 1);

  return query
  select 'rights', format('function %s', p.oid::regprocedure), x.problem, x.hint
  from pg_proc as p
  cross join lateral (
    values
      (exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a where a.grantee = 0),
       'can be executed by everybody', 'revoke all on all functions in schema outbox from public.'),
      (p.proowner <> v_owner, format('belongs to %s, the schema to %s', p.proowner::regrole, v_owner::regrole),
       'It runs with another role''s rights. alter function ... owner to the schema''s owner.'),
      (p.prosecdef and not 'search_path=pg_catalog, pg_temp' = any (coalesce(p.proconfig, '{}')),
       'runs with its owner''s rights under its caller''s search_path',
       'A caller could make it run anything. alter function ... set search_path = pg_catalog, pg_temp.')
  ) as x(wrong, problem, hint)
  where p.pronamespace = 'outbox'::regnamespace and x.wrong;

  return query
  select 'rights', x.object, format('%s may %s', case when x.grantee = 0 then 'everybody' else x.grantee::regrole::text end,
                                    string_agg(lower(x.privilege), ', ' order by x.privilege)),
         'Only the functions may change the tables. Revoke it, and look at pg_default_acl: default privileges may have granted it.'
  from (
    select format('table %s', c.oid::regclass) as object, a.grantee, a.privilege_type as privilege
    from pg_class as c cross join lateral aclexplode(c.relacl) as a
    where c.relnamespace = 'outbox'::regnamespace and c.relkind in ('r', 'p', 'S')
      and a.grantee <> c.relowner
      and (a.grantee = 0 or a.privilege_type in ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER'))
    union all
    select format('view %s', c.oid::regclass), a.grantee, a.privilege_type
    from pg_class as c cross join lateral aclexplode(c.relacl) as a
    where c.relnamespace = 'outbox'::regnamespace and c.relkind = 'v' and a.grantee = 0
    union all
    select 'schema outbox', a.grantee, a.privilege_type
    from pg_namespace as n cross join lateral aclexplode(n.nspacl) as a
    where n.oid = 'outbox'::regnamespace and a.grantee <> n.nspowner and a.privilege_type = 'CREATE'
  ) as x
  group by x.object, x.grantee;
end $$;
comment on function outbox.audit_schema is 'The part of check() about what the guarantees stand on';
revoke all on function outbox.audit_schema from public;
-- <<< sql/functions/audit_schema.sql

-- >>> sql/functions/lock_class.sql
create or replace function outbox.lock_class()
returns int
language sql stable parallel safe
-- The class of this outbox's advisory locks: the oid of outbox.pending (an oid is
-- unsigned, hence the wrap), so that an application's own locks cannot collide.
-- Keys 0 to 1023 are shards, negative ones are nodes (see node_lock), 1024 is cancel_lock, 1025 share_lock.
begin atomic
  select (case when x.oid > 2147483647 then x.oid - 4294967296 else x.oid end)::int
  from (select 'outbox.pending'::regclass::oid::bigint) as x(oid);
end;
comment on function outbox.lock_class is 'The class (first key) of the outbox''s advisory locks';
revoke all on function outbox.lock_class from public;
-- <<< sql/functions/lock_class.sql

-- >>> sql/functions/cancel.sql
-- requires: bad_argument.sql cancel_lock.sql
create or replace function outbox.cancel(dispatch_keys text[])
returns table (dispatch_key text, was text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
-- Settles messages as cancelled: pending ones, and claimed ones too, whose delivery may
-- go on, but whose settle is then lost. Returns the keys cancelled and what each was;
-- keys that do not exist or were settled already are left out.
declare
  v_ids bigint[];
  v_now timestamptz := clock_timestamp();
begin
  if cancel.dispatch_keys is null then
    perform outbox.bad_argument('cancel', 'dispatch_keys', 'is null', 'Give the keys of the messages to cancel.');
  end if;
  perform outbox.cancel_lock();
  v_ids := array(select m.id from outbox.message as m where m.dispatch_key = any (cancel.dispatch_keys) order by m.id);
  loop
    return query
    with p as (
      delete from outbox.pending as d
      where d.id = any (array(select p.id from outbox.pending as p where p.id = any (v_ids) order by p.id for update))
      returning d.id, d.namespace, d.task_queue, d.shard, d.attempt, 'pending' as was
    ), s as (
      insert into outbox.settled (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
      select p.id, p.namespace, p.task_queue, p.shard, 'cancelled', p.attempt, v_now, session_user from p
    )
    select (select m.dispatch_key from outbox.message as m where m.id = p.id), p.was from p;
    return query
    with c as (
      delete from outbox.claimed as d
      where d.id = any (array(select c.id from outbox.claimed as c where c.id = any (v_ids) order by c.id for update))
      returning d.id, d.namespace, d.task_queue, d.shard, d.attempt, 'claimed' as was
    ), s as (
      insert into outbox.settled (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
      select c.id, c.namespace, c.task_queue, c.shard, 'cancelled', c.attempt, v_now, session_user from c
    )
    select (select m.dispatch_key from outbox.message as m where m.id = c.id), c.was from c;
    -- One that went from claimed to pending between the two statements is met again.
    exit when not exists (select from outbox.pending as p where p.id = any (v_ids))
          and not exists (select from outbox.claimed as c where c.id = any (v_ids));
  end loop;
end $$;
comment on function outbox.cancel is 'Cancels pending and claimed messages; the keys cancelled and what each was';
revoke all on function outbox.cancel from public;
-- <<< sql/functions/cancel.sql

-- >>> sql/functions/cancel_namespace.sql
-- requires: bad_argument.sql check_key.sql cancel_lock.sql
create or replace function outbox.cancel_namespace(namespace text, max int default null)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
-- Cancels a namespace's pending and claimed messages, up to max of them (null: all), as
-- cancel() does; returns how many. On a large backlog call it with a max until it
-- returns 0: each transaction is short then. pause() the namespace first where its
-- messages should not be served in between.
declare
  v_now  timestamptz := clock_timestamp();
  v_ids  bigint[];
  v_last bigint := (select max(m.id) from outbox.message as m); -- what comes after this call stays
  v_done bigint := 0;
  v_some bigint;
begin
  perform outbox.check_key('cancel_namespace', 'namespace', cancel_namespace.namespace);
  if cancel_namespace.max < 1 then
    perform outbox.bad_argument('cancel_namespace', 'max', 'is below 1', 'Give the most messages to cancel, or null for all.');
  end if;
  perform outbox.cancel_lock();
  loop
    -- By lane, which is cheap; then locked by id. What moves in between is met in the
    -- next turn.
    v_ids := array(
      (select p.id from outbox.pending as p where p.namespace = cancel_namespace.namespace and p.id <= v_last
       order by p.task_queue, p.shard, p.visible_after, p.id limit cancel_namespace.max - v_done)
      union all
      (select c.id from outbox.claimed as c where c.namespace = cancel_namespace.namespace and c.id <= v_last
       order by c.shard limit cancel_namespace.max - v_done)
      limit cancel_namespace.max - v_done);
    with p as (
      delete from outbox.pending as d
      where d.id = any (array(select p.id from outbox.pending as p where p.id = any (v_ids) order by p.id for update))
      returning d.id, d.namespace, d.task_queue, d.shard, d.attempt
    )
    insert into outbox.settled (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
    select p.id, p.namespace, p.task_queue, p.shard, 'cancelled', p.attempt, v_now, session_user from p;
    get diagnostics v_some = row_count;
    v_done := v_done + v_some;
    with c as (
      delete from outbox.claimed as d
      where d.id = any (array(select c.id from outbox.claimed as c where c.id = any (v_ids) order by c.id for update))
      returning d.id, d.namespace, d.task_queue, d.shard, d.attempt
    )
    insert into outbox.settled (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
    select c.id, c.namespace, c.task_queue, c.shard, 'cancelled', c.attempt, v_now, session_user from c;
    get diagnostics v_some = row_count;
    v_done := v_done + v_some;
    exit when cardinality(v_ids) = 0 or v_done >= cancel_namespace.max;
  end loop;
  return v_done;
end $$;
comment on function outbox.cancel_namespace is 'Cancels a namespace''s pending and claimed messages; how many';
revoke all on function outbox.cancel_namespace from public;
-- <<< sql/functions/cancel_namespace.sql

-- >>> sql/functions/check.sql
-- requires: bad_argument.sql audit_messages.sql audit_claims.sql audit_indexes.sql audit_schema.sql
create or replace function outbox.check(newest bigint default null, max int default 100)
returns table (guarantee text, subject text, detail text, hint text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
-- An audit: every guarantee that SQL can check, a row for each violation, none when all
-- is well. Of each kind at most max rows come one by one, the rest as a number.
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

-- >>> sql/functions/claim_walk.sql
-- requires: walk_namespaces.sql due_routes.sql node_ceiling.sql
create or replace function outbox.claim_walk(
  node text, next_held int[], held int, batch int, walked_to text, turn bigint, now timestamptz,
  edge bigint, "only" text, for_claim boolean, config outbox.config,
  out namespaces text[], out verdicts text[], out rounds bigint[], out quotas int[], out claimed int[], out ceilings int[],
  out headrooms int[], out soles boolean[], out active int, out idle text[], out idle_at text[],
  out routes text[], out route_of int[], out width int, out wrapped boolean, out more boolean)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- The first half of a claim's plan: whom to serve. Visits namespaces from behind
-- walked_to on, once around, until batch of them are eligible (more are never
-- needed: the slice is 1 then), or config.max_visits are visited, or the time is up: more
-- says then that there may be more. The time bounds a walk past namespaces with
-- nothing due in very many lanes, so that the claim can keep the place it came to. The
-- verdict on each:
--
--   eligible  has due messages on held shards, is not paused, has headroom
--   paused    stopped, itself or with all
--   ceiling   no headroom: as many are claimed as its ceiling allows, or more
--   idle      nothing due on held shards, on a route that is not paused
--   locked    strict, and another claim is counting its quota
--
-- One row of arrays, by namespace in the order of the walk. claimed and ceiling are those
-- on held shards, or on all for a strict namespace that is closer to its quota than to its
-- ceiling; headroom is the difference, 0 unless eligible. A round counts the walk's visits
-- to this very namespace: it grows by one with each, wherever the walk wraps. A sole one
-- has messages in one route only. idle are the idle ones with more routes than
-- config.max_routes, idle_at the last route looked at of each.
--
-- routes are the due routes of the eligible ones, in their turn, route_of the namespace of
-- each, as an index: up to width of a namespace, and all if they are fewer.
--
-- It goes in strides, so that one statement serves many namespaces: the first is as long as
-- it takes if all are eligible, each later one at least as long as all before. Only
-- for_claim takes locks: those of strict namespaces.
--
-- On held shards, nothing is claimed with a token below edge: where a long transaction
-- keeps dead rows, those of all older claims are not waded through.
--
-- It runs under the settings of its caller, which pin the plans.
declare
  v_any_pause boolean := exists (select from outbox.pause);
  v_all_pause boolean := exists (select from outbox.pause as p where p.namespace is null and p.task_queue is null);
  v_deadline  timestamptz := claim_walk.now + interval '2 s';
  v_size      int;
  v_count     int;       -- of this stride: namespaces,
  v_names     text[];    --   and their facts
  v_wraps     boolean[];
  v_verdicts  text[];
  v_quotas    int[];
  v_claimed   int[];
  v_all       int[];     -- claimed on all shards
  v_ceilings  int[];
  v_soles     boolean[];
  v_search    int[];     -- those whose routes must be looked at,
  v_stricts   int[];     -- those that are strict
  v_of        int[];     -- their due routes
  v_queues    text[];
  v_row       record;
  v_idle_at   text[];
  v_late      int;       -- the first one that there was no time for
  v_rooms     int[];
  i           int;
begin
  namespaces := '{}';
  active := 0;
  wrapped := false;
  more := false;
  loop
    v_size := least(greatest(claim_walk.batch - active, cardinality(namespaces)),
                    (claim_walk.config).max_visits - cardinality(namespaces));
    select count(*), array_agg(x.namespace), array_agg(x.wrapped), array_agg(x.verdict), array_agg(x.quota),
           array_agg(x.on_held), array_agg(x.on_all), array_agg(x.ceiling), array_agg(x.sole),
           array_agg(x.n) filter (where x.verdict is null), array_agg(x.n) filter (where x.is_strict),
           array_agg(x.n) filter (where x.verdict = 'eligible'), array_agg(x.task_queue) filter (where x.verdict = 'eligible')
    into v_count, v_names, v_wraps, v_verdicts, v_quotas, v_claimed, v_all, v_ceilings, v_soles, v_search, v_stricts,
         v_of, v_queues
    from (
      select w.n, w.namespace, w.wrapped, w.task_queue, w.sole, q.quota, q.is_strict, c.on_held, q.ceiling,
             case when q.is_strict
                  then (select count(*) from outbox.claimed as c where c.namespace = w.namespace)::int end as on_all,
             case when v_all_pause
                    or v_any_pause and exists (select from outbox.pause as p
                                               where p.namespace = w.namespace and p.task_queue is null) then 'paused'
                  when c.on_held >= q.ceiling then 'ceiling'
                  when w.sole and w.head <= claim_walk.now and claim_walk.next_held[w.shard + 1] = w.shard
                    and not (v_any_pause
                             and (exists (select from outbox.pause as p
                                          where p.namespace = w.namespace and p.task_queue = w.task_queue)
                                  or exists (select from outbox.pause as p
                                             where p.namespace is null and p.task_queue = w.task_queue))) then 'eligible'
             end as verdict
      from (
        select 1 as n, o.namespace, false as wrapped, null as task_queue, null as shard, null as head, false as sole
        from (values (claim_walk."only")) as o(namespace)
        where claim_walk."only" is not null
        union all
        select * from outbox.walk_namespaces(coalesce(v_names[v_count], claim_walk.walked_to), claim_walk.wrapped,
                                             claim_walk.walked_to, v_size)
        where claim_walk."only" is null
      ) as w
      left join lateral (
        select n.quota, n.strict from outbox.namespace as n where n.namespace = w.namespace
      ) as o on true
      cross join lateral (
        select coalesce(o.quota, (claim_walk.config).default_quota) as quota, coalesce(o.strict, false) as is_strict,
               outbox.node_ceiling(coalesce(o.quota, (claim_walk.config).default_quota), claim_walk.held,
                                   (claim_walk.config).shard_count) as ceiling
      ) as q
      cross join lateral (
        select (count(*) filter (where claim_walk.next_held[c.shard + 1] = c.shard))::int as on_held
        from outbox.claimed as c -- bounds of pairs, for no other index to come into question
        where (c.namespace, c.claim_token) >= (w.namespace, claim_walk.edge)
          and (c.namespace, c.claim_token) <= (w.namespace, 9223372036854775807)
      ) as c
      order by w.n
    ) as x;
    exit when v_count = 0;

    -- Of a namespace, more routes than its slice is long are not needed.
    width := coalesce(width, least((claim_walk.batch - 1) / v_count + 1, (claim_walk.config).max_routes));
    v_late := v_count + 1;
    v_idle_at := array_fill(null::text, array[v_count]);
    if v_search is not null then -- else nothing is to be set up
      for v_row in
        select u.i, t.is_late, r.task_queue, r.due
        from unnest(v_search) with ordinality as u(i, n)
        cross join lateral (
          select u.n > 1 and clock_timestamp() > v_deadline as is_late offset 0
        ) as t
        left join lateral (
          select r.task_queue, r.due
          from outbox.due_routes(v_names[u.i], claim_walk.node, claim_walk.next_held, claim_walk.now,
                                 (claim_walk.config).max_routes) as r
          where not t.is_late
          limit claim_walk.width
        ) as r on true
      loop
        if v_row.is_late then
          v_late := v_row.i;
          exit;
        elsif v_row.due then
          v_verdicts[v_row.i] := 'eligible';
          v_of := v_of || v_row.i;
          v_queues := v_queues || v_row.task_queue;
        elsif v_verdicts[v_row.i] is null then
          v_verdicts[v_row.i] := 'idle';
          v_idle_at[v_row.i] := v_row.task_queue;
        end if;
      end loop;
    end if;

    v_rooms := array_fill(0, array[v_count]);
    i := 0;
    loop
      more := active = claim_walk.batch or i + 1 = v_late and v_late <= v_count
              or cardinality(namespaces) + i = (claim_walk.config).max_visits;
      exit when more or i = v_count;
      i := i + 1;
      if i = any (v_stricts) then
        if v_verdicts[i] = 'eligible' and claim_walk.for_claim then
          -- Whoever holds this row is the only one to claim from the namespace, until it
          -- commits. Only a statement that starts after that sees all that is claimed.
          perform from outbox.namespace as n where n.namespace = v_names[i] for no key update skip locked;
          if found then
            v_all[i] := (select count(*) from outbox.claimed as c where c.namespace = v_names[i]);
          else
            v_verdicts[i] := 'locked';
          end if;
        end if;
        if v_quotas[i] - v_all[i] <= v_ceilings[i] - v_claimed[i] then
          v_claimed[i] := v_all[i];
          v_ceilings[i] := v_quotas[i];
          if v_verdicts[i] = 'eligible' and v_claimed[i] >= v_ceilings[i] then
            v_verdicts[i] := 'ceiling';
          end if;
        end if;
      end if;
      if v_verdicts[i] = 'eligible' then
        active := active + 1;
        v_rooms[i] := v_ceilings[i] - v_claimed[i];
      elsif v_idle_at[i] is not null then
        idle := idle || v_names[i];
        idle_at := idle_at || v_idle_at[i];
      end if;
    end loop;

    routes := routes || v_queues;
    route_of := route_of || array(select cardinality(claim_walk.namespaces) + u.i from unnest(v_of) as u(i));
    namespaces := namespaces || v_names[:i];
    verdicts := verdicts || v_verdicts[:i];
    rounds := rounds || array(select claim_walk.turn + u.wrapped::int from unnest(v_wraps[:i]) as u(wrapped));
    quotas := quotas || v_quotas[:i];
    claimed := claimed || v_claimed[:i];
    ceilings := ceilings || v_ceilings[:i];
    headrooms := headrooms || v_rooms[:i];
    soles := soles || v_soles[:i];
    wrapped := v_wraps[i];
    exit when more or v_count < v_size or claim_walk."only" is not null;
  end loop;
end $$;
comment on function outbox.claim_walk is 'Whom a claim serves: the namespaces it visits, and a verdict on each';
revoke all on function outbox.claim_walk from public;
-- <<< sql/functions/claim_walk.sql

-- >>> sql/functions/claim_pick.sql
-- requires: due_routes.sql walk_lanes.sql
create or replace function outbox.claim_pick(
  node text, namespaces text[], rounds bigint[], headrooms int[], soles boolean[], active int,
  routes text[], route_of int[], width int, held int[], next_held int[],
  batch int, max_bytes bigint, turn bigint, now timestamptz, for_claim boolean, config outbox.config,
  out ids bigint[], out tids tid[], out shards int[], out attempts int[], out passes int[],
  out picked int[], out last_rank int, out last_bytes bigint, out many text[], out many_at text[])
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- The second half of a claim's plan: which rows, out of the namespaces that claim_walk has
-- come to (its arguments are what that returns). One row of arrays: a row's id, place, shard,
-- attempts so far, pass, and its namespace as an index, in the order of service.
--
-- Each namespace's rows are ranked, round-robin over its routes; rank 1 of all of them
-- comes before rank 2 of any. Ranks up to the slice are pass 1, ceil(batch / active);
-- what the batch still holds behind them is pass 2. So one order gives both passes, and
-- the claim is its first batch rows, or up to the row that reaches max_bytes.
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
               array_agg(x.attempt), array_agg(x.payload_bytes)
        into v_route, v_rank, v_id, v_tid, v_shard, v_tries, v_bytes
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
                select p.id, p.ctid as tid, p.shard, p.attempt, p.payload_bytes
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
               array_agg(x.attempt), array_agg(x.payload_bytes)
        into v_route, v_rank, v_id, v_tid, v_shard, v_tries, v_bytes
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
                select p.id, p.ctid as tid, p.shard, p.attempt, p.payload_bytes
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
    select k.k, v_of[k.route] as i, k.route, k.rank, k.id, k.tid, k.shard, k.attempt, k.bytes,
           row_number() over (partition by k.rank order by v_of[k.route]) - 1 as place,
           count(*) over (partition by k.rank) as places
    from unnest(v_route, v_rank, v_id, v_tid, v_shard, v_tries, v_bytes) with ordinality
         as k(route, rank, id, tid, shard, attempt, bytes, k)
    where k.rank <= v_need[v_of[k.route]]
  ), ordered as (
    select p.*, row_number() over w as n,
           coalesce(sum(p.bytes) over (w rows between unbounded preceding and 1 preceding), 0) as bytes_before
    from placed as p
    window w as (order by p.rank,
      -- A turn that max_bytes could cut short within rank 1 would pass over those
      -- that it started behind: then the walk's own order stands, and goes on there.
      case when claim_pick.turn is not null
                and (claim_pick.max_bytes is null
                     or (select sum(f.bytes) from placed as f where f.rank = 1) < claim_pick.max_bytes)
           then (p.place - claim_pick.turn % p.places + p.places) % p.places else p.place end)
  )
  select array_agg(o.id), array_agg(o.tid), array_agg(o.shard), array_agg(o.attempt),
         array_agg(case when o.rank <= v_slice then 1 else 2 end), array_agg(o.i), array_agg(o.route),
         max(o.rank), max(o.bytes_before + o.bytes)
  into ids, tids, shards, attempts, passes, picked, v_route, last_rank, last_bytes
  from (select o.* from ordered as o
        where o.n <= claim_pick.batch and (claim_pick.max_bytes is null or o.bytes_before < claim_pick.max_bytes)
        order by o.n) as o;

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

-- >>> sql/functions/node_lock.sql
create or replace function outbox.node_lock(node text)
returns int
language sql immutable parallel safe
-- The second key of a node's advisory lock: negative, so that it is no shard's. Two
-- names that collide cost one of them an empty claim now and then, nothing else.
begin atomic
  select (-1 - (hashtextextended(node_lock.node collate "C", 0) & 2147483647))::int;
end;
comment on function outbox.node_lock is 'The key of a node''s advisory lock';
revoke all on function outbox.node_lock from public;
-- <<< sql/functions/node_lock.sql

-- >>> sql/functions/claim_fair.sql
-- requires: check_claim.sql next_held.sql claim_walk.sql claim_pick.sql lock_class.sql node_lock.sql span.sql
create or replace function outbox.claim_fair(node text, shards int[], batch int, max_bytes bigint default null)
returns table (id bigint, claim_token bigint, namespace text, task_queue text, dispatch_key text, shard int,
               attempt int, content_type text, headers jsonb, payload bytea, lease_until timestamptz, pass int)
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
-- out in rounds. With max_bytes the claim ends with the row that reaches it. Rows come
-- back in the order of service. An empty result means nothing to do, or nothing to serve
-- among as many namespaces as one claim visits (the next one goes on behind them), or that
-- another claim of the same node, or of all the shards, is under way: it never waits for one.
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
  if claim_fair.max_bytes <= 0 or cardinality(v_shards) = 0 then
    return;
  end if;
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

  -- 3. Whom to serve. A node that has never claimed goes on where any other is, so
  -- that nodes that live for one sweep rotate too.
  select w.namespace, w.round, w.edge, w.edge_shards into v_cursor, v_round, v_edge, v_edges
  from outbox.walk as w where w.node = claim_fair.node;
  if not found then
    select w.namespace, w.round into v_cursor, v_round from outbox.walk as w order by w.claimed_at desc limit 1;
  end if;
  v_cursor := coalesce(v_cursor, '');
  v_round := coalesce(v_round, 0);
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

  -- 5. Where the next claim goes on: behind the last namespace that the walk came to,
  -- or, where max_bytes ended the claim within rank 1, behind the last one served. A
  -- walk all around that served none leaves everything as it is.
  v_last := cardinality(v_walk.namespaces);
  if v_pick.last_rank = 1 and claim_fair.max_bytes <= v_pick.last_bytes then
    v_last := v_pick.picked[cardinality(v_pick.picked)];
  end if;
  if v_pick.ids is not null or v_walk.more then
    v_token := nextval('outbox.claim_token');
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
    insert into outbox.route as t (namespace, node, task_queue, served_at)
    select u.namespace, claim_fair.node, u.task_queue, v_now
    from unnest(v_pick.many || v_walk.idle, v_pick.many_at || v_walk.idle_at) as u(namespace, task_queue)
    on conflict on constraint route_pkey do update
      set task_queue = excluded.task_queue, served_at = excluded.served_at
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
                                   claim_token, claimed_by, claimed_at, lease_until)
  select p.id, p.namespace, p.task_queue, p.shard, p.visible_after,
         least(p.attempt, 2147483646) + 1, -- a charge on the last attempt there is must not raise
         p.payload_bytes, v_token, claim_fair.node, v_now, v_until
  from p;
  get diagnostics v_moved = row_count;
  if v_moved <> cardinality(v_pick.ids) then
    raise exception 'outbox.claim_fair: locked % rows and found % of them again', cardinality(v_pick.ids), v_moved
      using errcode = 'internal_error';
  end if;
  return query
  select m.id, v_token, m.namespace, m.task_queue, m.dispatch_key, u.shard, least(u.attempt, 2147483646) + 1,
         m.content_type, m.headers, m.payload, v_until, u.pass
  from unnest(v_pick.ids, v_pick.shards, v_pick.attempts, v_pick.passes) with ordinality as u(id, shard, attempt, pass, n)
  join outbox.message as m on m.id = u.id
  order by u.n;
end $$;
comment on function outbox.claim_fair is 'Claims due messages, fairly over namespaces';
revoke all on function outbox.claim_fair from public;
-- <<< sql/functions/claim_fair.sql

-- >>> sql/functions/lock_claimed.sql
create or replace function outbox.lock_claimed(ids bigint[], tokens bigint[])
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- Locks the claimed messages whose claim token is still the one shown (INV-9), in the
-- order of their ids, so that settles never deadlock; returns their ids.
begin
  return (
    select coalesce(array_agg(x.id), '{}')
    from (select c.id
          from (select distinct u.id, u.token from unnest(lock_claimed.ids, lock_claimed.tokens) as u(id, token)) as u
          join outbox.claimed as c on c.id = u.id and c.claim_token = u.token
          order by c.id
          for update of c) as x
  );
end $$;
comment on function outbox.lock_claimed is 'Locks claimed messages by id and claim token; the ids found';
revoke all on function outbox.lock_claimed from public;
-- <<< sql/functions/lock_claimed.sql

-- >>> sql/functions/config_guard.sql
create or replace function outbox.config_guard()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Keeps shard_count as it is once a message exists: stored shards would no longer
-- match, and a key's shard must not change while it is in flight. Notes a default quota
-- that is lowered, as keep_former_quota() does.
begin
  if tg_op = 'DELETE' then
    raise exception 'outbox.config must keep its one row'
      using errcode = 'OB005', hint = 'Update it instead.';
  end if;
  if new.shard_count <> old.shard_count then
    -- Whoever is about to write the first message waits, and then reads the new count.
    lock table outbox.message in share row exclusive mode;
    if exists (select from outbox.message) then
      raise exception 'shard_count is fixed at % once a message exists', old.shard_count
        using errcode = 'OB005', hint = 'Drain and prune the outbox first.';
    end if;
  end if;
  if new.default_quota < old.default_quota then
    insert into outbox.former_quota (until, quota, by) values (clock_timestamp(), old.default_quota, session_user);
  end if;
  return new;
end $$;
comment on function outbox.config_guard is 'Trigger: fixes shard_count once a message exists, notes a default quota that is lowered';
revoke all on function outbox.config_guard from public;
create or replace trigger config_guard before update or delete on outbox.config
  for each row execute function outbox.config_guard();
-- <<< sql/functions/config_guard.sql

-- >>> sql/functions/enqueue.sql
-- requires: bad_argument.sql check_key.sql shard_of.sql span.sql
create or replace function outbox.enqueue(
  namespace text, task_queue text, dispatch_key text, payload bytea,
  content_type text default 'application/json', headers jsonb default '{}', delay interval default null)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
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
    insert into outbox.pending as p (id, namespace, task_queue, shard, visible_after, payload_bytes)
    select m.id, enqueue.namespace, enqueue.task_queue,
           outbox.shard_of(enqueue.dispatch_key, (select c.shard_count from outbox.config as c)), v_due,
           octet_length(enqueue.payload)
    from m
    returning p.id into v_id;
    if found then
      return v_id;
    end if;
    -- A new statement, so that it sees what the insert ran into. It may be pruned by
    -- now: then there is no such message any more, and the key is free.
    select m.namespace into v_owner from outbox.message as m where m.dispatch_key = enqueue.dispatch_key;
    if found then
      if v_owner <> enqueue.namespace then
        raise exception 'outbox.enqueue: dispatch_key % belongs to another namespace', quote_literal(enqueue.dispatch_key)
          using errcode = 'OB003', hint = 'Dispatch keys are unique over all namespaces: put the namespace into the key.';
      end if;
      return null;
    end if;
  end loop;
end $$;
comment on function outbox.enqueue is 'Writes a message in this transaction; its id, or null for a duplicate';
revoke all on function outbox.enqueue from public;
-- <<< sql/functions/enqueue.sql

-- >>> sql/functions/enqueue_batch.sql
-- requires: bad_argument.sql shard_of.sql span.sql
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
  v_again  text[];  -- keys to write once more; null: all
  v_keys   text[] := '{}';
  v_ids    bigint[] := '{}';
  v_newkeys text[];
  v_newids  bigint[];
  v_owners  text[] := '{}';
  v_newowners text[];
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
    select u.ord, octet_length(u.payload) as bytes, octet_length(u.header::text) as header_bytes,
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
    perform outbox.bad_argument('enqueue_batch', format('%s[%s]', v_bad.argument, v_bad.ord), 'is null or not usable',
      'Names and keys have 1 to 512 bytes, content types 1 to 256; payloads are bytes; headers are JSON objects.');
  end if;

  loop
    with u as materialized (
      select distinct on (u.dispatch_key collate "C") u.*
      from unnest(enqueue_batch.namespaces, enqueue_batch.task_queues, enqueue_batch.dispatch_keys,
                  enqueue_batch.payloads, enqueue_batch.content_types, enqueue_batch.headers,
                  enqueue_batch.delays) with ordinality
           as u(namespace, task_queue, dispatch_key, payload, content_type, header, delay, ord)
      where v_again is null or u.dispatch_key = any (v_again)
      order by u.dispatch_key collate "C", u.ord
    ), m as (
      insert into outbox.message as n (namespace, task_queue, dispatch_key, content_type, headers, payload, created_at)
      select u.namespace, u.task_queue, u.dispatch_key, coalesce(u.content_type, 'application/json'),
             coalesce(u.header, '{}'), u.payload, v_now
      from u
      on conflict on constraint message_dispatch_key_key do nothing
      returning n.id, n.namespace, n.task_queue, n.dispatch_key, octet_length(n.payload) as bytes
    ), p as (
      insert into outbox.pending as q (id, namespace, task_queue, shard, visible_after, payload_bytes)
      select m.id, m.namespace, m.task_queue, outbox.shard_of(m.dispatch_key, (select c.shard_count from outbox.config as c)),
             v_now + coalesce(outbox.span(u.delay), '0'), m.bytes
      from m join u on u.dispatch_key = m.dispatch_key
    )
    select array_agg(m.dispatch_key), array_agg(m.id), array_agg(m.namespace)
    into v_newkeys, v_newids, v_newowners
    from m;
    v_keys := v_keys || v_newkeys;
    v_ids := v_ids || v_newids;
    v_owners := v_owners || v_newowners;

    -- What the insert ran into, in a new statement, as in enqueue; not what it wrote, which
    -- an older snapshot may see beside the pruned one of the same key. The look-up is a
    -- scalar one, by the key's index: a join could read every message there is.
    select array_agg(x.ord order by x.ord) filter (where x.owner <> x.namespace) as foreigners,
           array_agg(x.dispatch_key) filter (where x.owner is null) as pruned
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
        using errcode = 'OB003', hint = 'Dispatch keys are unique over all namespaces: put the namespace into the key.';
    end if;
    v_again := v_bad.pruned;
    exit when v_again is null;
  end loop;

  return query
  select u.ord::int, case when u.nth = 1 then d.id end
  from (select k.ord, k.dispatch_key, row_number() over (partition by k.dispatch_key order by k.ord) as nth
        from unnest(enqueue_batch.dispatch_keys) with ordinality as k(dispatch_key, ord)) as u
  left join unnest(v_keys, v_ids) as d(dispatch_key, id) on d.dispatch_key = u.dispatch_key
  order by u.ord;
end $$;
comment on function outbox.enqueue_batch is 'Writes many messages in this transaction; the id of each, or null for a duplicate';
revoke all on function outbox.enqueue_batch from public;
-- <<< sql/functions/enqueue_batch.sql

-- >>> sql/functions/enqueue_json.sql
-- requires: enqueue.sql
create or replace function outbox.enqueue_json(
  namespace text, task_queue text, dispatch_key text, payload jsonb,
  headers jsonb default '{}', delay interval default null)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- enqueue() for a payload at hand as jsonb: in psql, in a trigger. jsonb rewrites what
-- it is given (spaces, order of keys, duplicates), so signed bodies go through enqueue().
begin
  return outbox.enqueue(enqueue_json.namespace, enqueue_json.task_queue, enqueue_json.dispatch_key,
    convert_to(enqueue_json.payload::text, 'UTF8'), 'application/json', enqueue_json.headers, enqueue_json.delay);
end $$;
comment on function outbox.enqueue_json is 'enqueue() with a jsonb payload';
revoke all on function outbox.enqueue_json from public;
-- <<< sql/functions/enqueue_json.sql

-- >>> sql/functions/explain_claim.sql
-- requires: check_claim.sql next_held.sql claim_walk.sql claim_pick.sql hold_reason.sql paused_routes.sql count_due.sql lock_holders.sql
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
    select h.pid, h.session, bool_or(h.shard is null) as is_node,
           array_agg(h.shard order by h.shard) filter (where h.shard = any (v_shards)) as shards
    from outbox.lock_holders(explain_claim.node) as h
    group by h.pid, h.session order by h.pid
  loop
    if v_row.is_node then
      reason := format('the claim would be empty: node %s is claiming in %s', quote_literal(explain_claim.node), v_row.session);
      return next;
    end if;
    if v_row.shards is not null then
      v_held := array(select s.shard from unnest(v_held) as s(shard) where s.shard <> all (v_row.shards));
      reason := format('shards %s are held by %s and left out', array_to_string(v_row.shards, ', '), v_row.session);
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

  select w.namespace, w.round into v_to, v_turn from outbox.walk as w where w.node = explain_claim.node;
  if not found then
    select w.namespace, w.round into v_to, v_turn from outbox.walk as w order by w.claimed_at desc limit 1;
  end if;
  v_to := coalesce(v_to, '');
  v_turn := coalesce(v_turn, 0);
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
  if v_lease not between '1 ms' and '1 day' then
    perform outbox.bad_argument('extend', 'lease', format('is %s', v_lease), 'Give up to a day, or null for config.lease.');
  end if;
  v_ids := array(
    select c.id
    from (select distinct u.id, u.token from unnest(extend.ids, extend.tokens) as u(id, token)) as u
    join outbox.claimed as c on c.id = u.id and c.claim_token = u.token
    order by c.id
    for update of c skip locked);
  update outbox.claimed as c set lease_until = clock_timestamp() + outbox.span(v_lease)
  where c.id = any (v_ids);
  return query
  select c.id
  from (select distinct u.id, u.token from unnest(extend.ids, extend.tokens) as u(id, token)) as u
  join outbox.claimed as c on c.id = u.id and c.claim_token = u.token;
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
-- come from outside: they are cut here, and a missing one is no error.
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
           x.id, x.token, left(coalesce(nullif(x.error, ''), 'no reason given'), 2000) as error, x.delay
    from unnest(failed_attempts.ids, failed_attempts.tokens, failed_attempts.errors, failed_attempts.delays)
         as x(id, token, error, delay)
    order by x.id, x.token
  ), c as (
    delete from outbox.claimed as d where d.id = any (failed_attempts.locked) returning d.*
  ), f as (
    select c.*, u.error, u.delay, failed_attempts.final or c.attempt >= v_config.max_attempts as over
    from c join u on u.id = c.id and u.token = c.claim_token
  ), logged as (
    insert into outbox.failure (id, attempt, at, node, error)
    select f.id, f.attempt, v_now, f.claimed_by, f.error from f
  ), again as (
    insert into outbox.pending (id, namespace, task_queue, shard, visible_after, attempt, payload_bytes)
    select f.id, f.namespace, f.task_queue, f.shard,
           v_now + outbox.span(coalesce(f.delay,
             outbox.retry_delay(f.attempt, v_config.retry_base, v_config.retry_multiplier, v_config.retry_cap,
                                v_config.retry_jitter, random()))),
           f.attempt, f.payload_bytes
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

-- >>> sql/functions/heartbeat.sql
-- requires: bad_argument.sql check_key.sql share_out.sql
create or replace function outbox.heartbeat(
  node text, shards int[] default null, paused text default null, in_flight_bytes bigint default 0,
  process text default null)
returns table (owned int[], again_in interval, shared_name boolean)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Says that a node lives, and how it is, and returns the shards that it owns now. Without
-- shards the outbox gives it some (see share_out); with shards, those are its own and no
-- other node is given them; '{}' is none, for one that stops. Only this makes a live node,
-- and only leave(), or config.node_lapse without it, ends one; a claim does neither.
--
-- Call again within a third of the lapse, and after again_in where that is sooner: then
-- another node's heartbeat lapses unless it is heard of, and its shards are given away.
-- process tells apart two processes under one name, which is harmless but no use: they
-- own the same shards. shared_name says that there are two. In a transaction above read
-- committed, whose snapshot may be old, it says that the node lives, and shares nothing out.
declare
  v_now   timestamptz;
  v_lapse interval;
  v_wrong int;
  v_total int;
begin
  perform outbox.check_key('heartbeat', 'node', heartbeat.node);
  select c.node_lapse, c.shard_count into strict v_lapse, v_total from outbox.config as c;
  if exists (select from unnest(heartbeat.shards) as s(shard) where s.shard is null) then
    perform outbox.bad_argument('heartbeat', 'shards', 'has a null element',
      'Give shard numbers; null for those that the outbox gives it, ''{}'' for none.');
  end if;
  select s.shard into v_wrong from unnest(heartbeat.shards) as s(shard) where s.shard < 0 or s.shard >= v_total limit 1;
  if found then
    perform outbox.bad_argument('heartbeat', 'shards', format('has %s, outside 0 to %s', v_wrong, v_total - 1),
      'outbox.config.shard_count says how many there are.');
  end if;
  v_now := clock_timestamp();
  owned := array(select distinct s.shard from unnest(heartbeat.shards) as s(shard) order by s.shard);

  insert into outbox.node as n (node, heartbeat_at, shards, paused, in_flight_bytes, process)
  values (heartbeat.node, v_now, case when heartbeat.shards is not null then owned end, left(heartbeat.paused, 1000),
          greatest(coalesce(heartbeat.in_flight_bytes, 0), 0), left(heartbeat.process, 200))
  on conflict on constraint node_pkey do update
    set heartbeat_at = excluded.heartbeat_at, shards = excluded.shards, paused = excluded.paused,
        in_flight_bytes = excluded.in_flight_bytes, process = excluded.process,
        -- A process that another one has taken the name from, and that is heard of again,
        -- was not its predecessor: there are two.
        former = case when n.process is distinct from excluded.process then n.process else n.former end,
        shared_at = case when excluded.process = n.former and excluded.process <> n.process then excluded.heartbeat_at
                         else n.shared_at end
    -- One that stops, and has a successor already, leaves the name to that.
    where (excluded.shards = '{}' and excluded.process = n.former and excluded.process <> n.process
           and n.heartbeat_at between v_now - v_lapse and v_now + v_lapse) is not true;

  if outbox.share_out(v_now) then
    select greatest(v_lapse - (v_now - coalesce(min(n.heartbeat_at), v_now)), '0') into again_in
    from outbox.node as n
    where n.node <> heartbeat.node and n.heartbeat_at between v_now - v_lapse and v_now + v_lapse;
  else
    again_in := '0';
  end if;
  if heartbeat.shards is null then
    owned := array(select s.shard from outbox.shard as s where s.node = heartbeat.node order by s.shard);
  end if;
  select coalesce(n.shared_at > v_now - v_lapse, false) into shared_name from outbox.node as n where n.node = heartbeat.node;
  return next;
end $$;
comment on function outbox.heartbeat is 'Says that a node lives, and how it is; the shards that it owns';
revoke all on function outbox.heartbeat from public;
-- <<< sql/functions/heartbeat.sql

-- >>> sql/functions/redrive.sql
-- requires: bad_argument.sql check_key.sql
create or replace function outbox.redrive(ids bigint[])
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- Brings failed and cancelled messages back: pending, due now, attempts from 0. Their
-- failures stay on record. Returns the ids brought back. (In psql, a bare '{1,2}' would be
-- taken for a namespace: write redrive(array[1, 2]).)
declare
  v_now timestamptz := clock_timestamp();
begin
  if redrive.ids is null then
    perform outbox.bad_argument('redrive', 'ids', 'is null', 'Give ids of failed or cancelled messages.');
  end if;
  return query
  with s as (
    delete from outbox.settled as d
    where d.id = any (array(
      select s.id from outbox.settled as s where s.id = any (redrive.ids) and s.outcome <> 'done' order by s.id for update))
    returning d.id, d.namespace, d.task_queue, d.shard
  )
  insert into outbox.pending as p (id, namespace, task_queue, shard, visible_after, payload_bytes)
  select s.id, s.namespace, s.task_queue, s.shard, v_now, octet_length(m.payload)
  from s join outbox.message as m on m.id = s.id
  returning p.id;
end $$;
comment on function outbox.redrive(bigint[]) is 'Brings failed and cancelled messages back to pending; the ids brought back';
revoke all on function outbox.redrive(bigint[]) from public;

create or replace function outbox.redrive(namespace text, max int default null)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
-- redrive() for a namespace's failed messages, oldest first, up to max (null: all);
-- returns how many. Cancelled ones come back by their ids only: whoever cancelled them
-- did so on purpose.
declare
  v_ids bigint[];
begin
  perform outbox.check_key('redrive', 'namespace', redrive.namespace);
  if redrive.max < 1 then
    perform outbox.bad_argument('redrive', 'max', 'is below 1', 'Give the most messages to bring back, or null for all.');
  end if;
  v_ids := array(select s.id from outbox.settled as s
                 where s.namespace = redrive.namespace and s.outcome = 'failed'
                 order by s.id limit redrive.max);
  return (select count(*) from outbox.redrive(v_ids));
end $$;
comment on function outbox.redrive(text, int) is 'Brings a namespace''s failed messages back to pending; how many';
revoke all on function outbox.redrive(text, int) from public;
-- <<< sql/functions/redrive.sql

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
  v_kept    interval := (select c.retention from outbox.config as c);
begin
  if prune.older_than < '0' then
    perform outbox.bad_argument('prune', 'older_than', 'is negative', 'Give an age, as in ''7 days''.');
  elsif coalesce(prune.max, 0) < 1 then
    perform outbox.bad_argument('prune', 'max', 'is null or below 1', 'Give the most messages to delete.');
  end if;
  if (prune.failed or prune.older_than < v_kept)
     and not has_function_privilege(session_user, 'outbox.redrive(bigint[])', 'execute') then
    raise exception 'outbox.prune: only operators prune failed messages, or others before their retention of %', v_kept
      using errcode = 'insufficient_privilege', hint = 'outbox.grant_operator makes an operator.';
  end if;
  v_before := clock_timestamp() - outbox.span(coalesce(prune.older_than, v_kept));
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
  delete from outbox.former_quota as q where q.ctid = any (array(
    select f.ctid from outbox.former_quota as f
    where f.until < clock_timestamp() - interval '30 days' limit 100 for update skip locked));
  -- Nodes that are gone: a new one goes on at the newest walk of any, the others are of no
  -- use. Only under the node's lock: its claim would have to wait for this transaction.
  delete from outbox.node as n where n.node in (
    select o.node from outbox.node as o
    where o.heartbeat_at < clock_timestamp() - interval '1 day' limit 100 for update skip locked);
  for v_node in
    select w.node from outbox.walk as w
    where w.claimed_at < clock_timestamp() - interval '1 hour'
      and exists (select from outbox.walk as l where l.claimed_at > w.claimed_at)
    limit 100
  loop
    if pg_try_advisory_xact_lock(outbox.lock_class(), outbox.node_lock(v_node)) then
      delete from outbox.route as r
      where r.node = v_node
        and (r.served_at < clock_timestamp() - interval '30 days'
             or exists (select from outbox.route as l where l.namespace = r.namespace and l.served_at > r.served_at));
      if not exists (select from outbox.route as r where r.node = v_node) then
        delete from outbox.walk as w where w.node = v_node;
      end if;
    end if;
  end loop;
  return v_done;
end $$;
comment on function outbox.prune is 'Deletes old settled messages; how many';
revoke all on function outbox.prune from public;
-- <<< sql/functions/prune.sql

-- >>> sql/functions/quota.sql
-- requires: check_key.sql
create or replace function outbox.quota(namespace text)
returns table (quota int, strict boolean, claimed bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
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
  insert into outbox.pending as p (id, namespace, task_queue, shard, visible_after, attempt, payload_bytes)
  select c.id, c.namespace, c.task_queue, c.shard, c.visible_after, greatest(c.attempt - 1, 0), c.payload_bytes
  from c
  returning p.id;
end $$;
comment on function outbox.release is 'Gives untried messages back, uncharged; the ids released, the rest were lost';
revoke all on function outbox.release from public;
-- <<< sql/functions/release.sql

-- >>> sql/functions/rescue.sql
-- requires: bad_argument.sql failed_attempts.sql
create or replace function outbox.rescue(max int default 1000)
returns table (id bigint, state text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
-- Takes up to max messages whose lease has run out from a node that is dead or stuck:
-- due again at once, or failed where their attempts are used up. The attempt stays
-- charged, so a message that kills its workers ends as failed (INV-10). Any node may
-- call it; two that do share the work, and a settle under way wins.
declare
  v_now timestamptz := clock_timestamp();
  v_ids bigint[];
  v_tokens bigint[];
begin
  if coalesce(rescue.max, 0) < 1 then
    perform outbox.bad_argument('rescue', 'max', 'is null or below 1', 'Give the most messages to take.');
  end if;
  select array_agg(x.id), array_agg(x.claim_token) into v_ids, v_tokens
  from (select c.id, c.claim_token from outbox.claimed as c
        where c.lease_until <= v_now
        order by c.lease_until limit rescue.max
        for update skip locked) as x;
  if v_ids is null then
    return;
  end if;
  return query
  select f.id, f.state
  from outbox.failed_attempts(v_ids, v_ids, v_tokens,
         array_fill('lease expired: its node died, or it outlived --delivery-timeout'::text, array[cardinality(v_ids)]),
         array_fill('0'::interval, array[cardinality(v_ids)]), false) as f;
end $$;
comment on function outbox.rescue is 'Takes messages back whose lease has run out; what became of each';
revoke all on function outbox.rescue from public;
-- <<< sql/functions/rescue.sql

-- >>> sql/functions/why.sql
-- requires: live_shards.sql check_key.sql next_held.sql claim_walk.sql hold_reason.sql time_text.sql pause_text.sql
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

  select p.* into v_pending from outbox.pending as p where p.id = why.id;
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
      case when v_nodes > 0 and v_owners is null then format('no live node owns its shard %s', v_pending.shard) end);
    if reason = '' then
      reason := format('due: goes when the walk comes to it, on %s',
                       coalesce(v_owners, 'whichever sweep claims its shard next; no node sends heartbeats'));
    end if;
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
              else format('lease ran out at %s: the next rescue takes it back', outbox.time_text(v_claimed.lease_until, v_now)) end;
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
create or replace view outbox.messages as
select m.id, m.namespace, m.task_queue, m.dispatch_key,
       coalesce(p.shard, c.shard, s.shard) as shard,
       case when p.id is not null then 'pending' when c.id is not null then 'claimed' else s.outcome end::text as status,
       coalesce(p.attempt, c.attempt, s.attempts) as attempt,
       coalesce(p.visible_after, c.visible_after) as visible_after,
       c.claimed_by, c.lease_until, m.payload, m.created_at, s.settled_at,
       coalesce(s.error, (select f.error from outbox.failure as f where f.id = m.id order by f.at desc limit 1)) as error
from outbox.message as m
left join outbox.pending as p on p.id = m.id
left join outbox.claimed as c on c.id = m.id
left join outbox.settled as s on s.id = m.id;
comment on view outbox.messages is 'One row a message, whatever its state; look it up by dispatch_key or id';
revoke all on outbox.messages from public;

-- Names by a loose scan over five indexes, counts no further than config.count_cap:
-- the work is bounded by what is shown, not by the backlog.
create or replace view outbox.namespaces as
with recursive walk(namespace) as (
  select ''::text collate "C"
  union all
  select x.namespace
  from walk as w
  cross join lateral (
    select least(
      (select p.namespace from outbox.pending as p where p.namespace > w.namespace order by p.namespace limit 1),
      (select c.namespace from outbox.claimed as c where c.namespace > w.namespace order by c.namespace limit 1),
      (select s.namespace from outbox.settled as s
       where s.namespace > w.namespace and s.outcome = 'failed' order by s.namespace limit 1),
      (select n.namespace from outbox.namespace as n where n.namespace > w.namespace order by n.namespace limit 1),
      (select u.namespace from outbox.pause as u where u.namespace > w.namespace order by u.namespace limit 1)
    ) as namespace
  ) as x
  where x.namespace is not null
)
select w.namespace,
       (select count(*) from (select from outbox.pending as p where p.namespace = w.namespace limit g.count_cap) as x) as pending,
       (select count(*) from (select from outbox.claimed as c where c.namespace = w.namespace limit g.count_cap) as x) as claimed,
       (select count(*) from (select from outbox.settled as s
                              where s.namespace = w.namespace and s.outcome = 'failed'
                              limit g.count_cap) as x) as failed,
       coalesce(n.quota, g.default_quota) as quota,
       coalesce(n.strict, false) as strict,
       exists (select from outbox.pause as p where p.namespace = w.namespace and p.task_queue is null)
         or exists (select from outbox.pause as p where p.namespace is null and p.task_queue is null) as paused
from walk as w
cross join outbox.config as g
left join lateral (select n.quota, n.strict from outbox.namespace as n where n.namespace = w.namespace) as n on true
where w.namespace <> '';
comment on view outbox.namespaces is 'Namespaces with messages or settings; counts stop at config.count_cap';
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
create or replace function outbox.grant_producer(role name)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Lets a role enqueue, and nothing else. Not security definer: only the schema's owner
-- can hand rights out.
begin
  execute format('grant usage on schema outbox to %I', grant_producer.role);
  execute format('grant execute on function outbox.enqueue, outbox.enqueue_json, outbox.enqueue_batch to %I', grant_producer.role);
end $$;
comment on function outbox.grant_producer is 'Lets a role enqueue';
revoke all on function outbox.grant_producer from public;

create or replace function outbox.grant_worker(role name)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Lets a role enqueue, claim and settle: what the sweep binary needs.
begin
  perform outbox.grant_producer(grant_worker.role);
  execute format('grant execute on function outbox.claim_fair, outbox.complete, outbox.retry, outbox.fail, '
    'outbox.release, outbox.extend, outbox.rescue, outbox.prune, outbox.heartbeat, outbox.leave, '
    'outbox.all_shards, outbox.settings, outbox.node_ceiling to %I', grant_worker.role);
end $$;
comment on function outbox.grant_worker is 'Lets a role enqueue, claim and settle';
revoke all on function outbox.grant_worker from public;

create or replace function outbox.grant_operator(role name)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Lets a role do all that a worker can, see everything (payloads too), set quotas and
-- settings, pause, cancel and redrive.
begin
  perform outbox.grant_worker(grant_operator.role);
  execute format('grant execute on function outbox.explain_claim, outbox.why, outbox.check, outbox.lock_holders, '
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
