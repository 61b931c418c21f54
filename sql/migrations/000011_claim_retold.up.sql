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
    where p.pronamespace = 'outbox'::pg_catalog.regnamespace and p.proname in ('claim_fair', 'claim_walk', 'count_due', 'due_routes', 'explain_claim', 'hold_reason', 'paused_routes', 'walk_namespaces', 'walk_routes', 'walk_start', 'why', null)
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
drop view outbox.pauses;
drop view outbox.nodes;
drop view outbox.namespaces;
drop view outbox.messages;

-- dropped: sql/functions/why.sql
drop function outbox.why(dispatch_key text);

-- dropped: sql/functions/explain_claim.sql
drop function outbox.explain_claim(node text, shards int[], batch int, max_bytes bigint, "only" text);

-- dropped: sql/functions/hold_reason.sql
drop function outbox.hold_reason(namespace text, verdict text, claimed int, ceiling int, quota int, next_held int[], now timestamptz);

-- dropped: sql/functions/paused_routes.sql
drop function outbox.paused_routes(namespace text, next_held int[], now timestamptz);

-- dropped: sql/functions/count_due.sql
drop function outbox.count_due(namespace text, next_held int[], now timestamptz, cap int);

-- dropped: sql/functions/claim_fair.sql
drop function outbox.claim_fair(node text, shards int[], batch int, max_bytes bigint, payloads boolean);

-- dropped: sql/functions/claim_pick.sql
drop function outbox.claim_pick(node text, namespaces text[], rounds bigint[], headrooms int[], soles boolean[], active int, routes text[], route_of int[], width int, held int[], next_held int[], batch int, max_bytes bigint, turn bigint, now timestamptz, for_claim boolean, config outbox.config, out ids bigint[], out tids tid[], out shards int[], out attempts int[], out suspects int[], out passes int[], out picked int[], out left_out int, out many text[], out many_at text[]);

-- dropped: sql/functions/claim_walk.sql
drop function outbox.claim_walk(node text, next_held int[], held int, batch int, walked_to text, turn bigint, now timestamptz, edge bigint, "only" text, for_claim boolean, config outbox.config, out namespaces text[], out verdicts text[], out rounds bigint[], out quotas int[], out claimed int[], out ceilings int[], out headrooms int[], out soles boolean[], out active int, out idle text[], out idle_at text[], out routes text[], out route_of int[], out width int, out wrapped boolean, out more boolean);

-- dropped: sql/functions/due_routes.sql
drop function outbox.due_routes(namespace text, node text, next_held int[], now timestamptz, max_routes int);

-- dropped: sql/functions/walk_routes.sql
drop function outbox.walk_routes(namespace text, after text);

-- dropped: sql/functions/walk_namespaces.sql
drop function outbox.walk_namespaces(after text, wrapped boolean, until text, size int);

-- dropped: sql/functions/walk_start.sql
drop function outbox.walk_start(node text, shards int[]);

-- >>> sql/functions/is_live.sql
create or replace function outbox.is_live(heartbeat_at timestamptz, now timestamptz, lapse interval)
returns boolean
language sql stable parallel safe
-- Whether a node is alive at an instant: its last heartbeat is no more than the lapse away.
-- One from the future, of a server that was ahead before a failover, lapses too.
-- Give now as a variable or a column, not as clock_timestamp(): it is read twice.
begin atomic
  select coalesce(is_live.heartbeat_at between is_live.now - is_live.lapse and is_live.now + is_live.lapse, false);
end;
comment on function outbox.is_live is 'Whether a node with this last heartbeat is alive';
revoke all on function outbox.is_live from public;
-- <<< sql/functions/is_live.sql

-- >>> sql/functions/audit_claims.sql
-- requires: is_live.sql
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
  v_token  bigint := (select q.last_value + 4194303 from outbox.claim_token as q); -- the largest drawn so far, at most
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
         format('has claim token %s, the last one drawn is %s at most', c.claim_token, v_token),
         'A later claim could draw a smaller token. select setval(''outbox.claim_token'', (select max(claim_token) from outbox.claimed)).'
  from outbox.claimed as c where c.claim_token > v_token;

  return query
  select 'INV-9', format('claim token %s', c.claim_token),
         format('belongs to %s claims, by %s', count(distinct (c.claimed_by, c.claimed_at)),
                left(string_agg(distinct c.claimed_by, ', '), 200)),
         'Each claim draws its own. Was the sequence outbox.claim_token set back?'
  from outbox.claimed as c group by c.claim_token having count(distinct (c.claimed_by, c.claimed_at)) > 1;

  return query
  select 'INV-2', 'database',
         format('went back in time: at %s, node %s had seen claim token %s, and the last one drawn was %s', b.at, b.node, b.seen, b.drawn),
         'A fail-over or a restore lost what was committed last: messages enqueued then are gone, and some settled then come again. '
         'Once it is dealt with: delete from outbox.went_back.'
  from outbox.went_back as b where b.at > v_now - interval '30 days';

  return query
  select 'INV-2', format('message %s', c.id),
         format('is claimed by %s, and its lease ran out at %s', c.claimed_by, c.lease_until),
         'Nodes rescue every few seconds: may they, is a session holding its row? select * from outbox.rescue() takes it back.'
  from outbox.claimed as c
  where c.lease_until < v_now - interval '1 hour'
    and exists (select from outbox.node as n where outbox.is_live(n.heartbeat_at, v_now, v_config.node_lapse));

  return query
  select 'INV-2', format('message %s', c.id), format('is claimed by %s until %s, no lease is that long', c.claimed_by, c.lease_until),
         'No rescue takes it before. Set its lease_until to now().'
  from outbox.claimed as c where c.lease_until > v_now + interval '2 days';
end $$;
comment on function outbox.audit_claims is 'The part of check() about what is claimed';
revoke all on function outbox.audit_claims from public;
-- <<< sql/functions/audit_claims.sql

-- >>> sql/functions/audit_indexes.sql
create or replace function outbox.audit_indexes(is_full boolean)
returns table (guarantee text, subject text, detail text, hint text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off -- Each order by below is an index's own: with these, only that
set enable_bitmapscan = off -- index can give it, and only the heap a range of ctid.
set enable_sort = off
set enable_incremental_sort = off
set jit = off
as $$
-- The part of check() about indexes: each is there, in use, and finds every row of its
-- table. A row that an index lacks is as good as lost: the claim, the count of a quota,
-- the rescue and the search for duplicates look nowhere else. Where not is_full, only the
-- small tables are counted.
begin
  return query
  select e.guarantee, format('index %s', e.name),
         case when i.indexrelid is null then 'is missing' when not i.indisvalid then 'is not valid'
              when not i.indisready then 'takes no new rows' else 'is not unique any more' end,
         'Build it as the migration does ("sweep migrate sql"), or: reindex index outbox....'
  from (values ('INV-2', 'message_pkey', true), ('INV-3', 'message_dispatch_key_key', true), ('INV-1', 'pending_pkey', true),
               ('INV-14', 'pending_ripe', false), ('INV-14', 'pending_unripe_due', false), ('INV-14', 'pending_unripe_namespace', false),
               ('INV-1', 'claimed_pkey', true), ('INV-14', 'claimed_namespace', false),
               ('INV-14', 'claimed_token', false), ('INV-14', 'claimed_lease', false), ('INV-1', 'settled_pkey', true), ('INV-14', 'settled_retention', false),
               ('INV-14', 'settled_failed', false), ('INV-14', 'failure_id', false), ('INV-4', 'namespace_pkey', true),
               ('INV-6', 'pause_key', true)) as e(guarantee, name, is_unique)
  left join pg_class as c on c.relname = e.name and c.relnamespace = 'outbox'::regnamespace
  left join pg_index as i on i.indexrelid = c.oid
  where i.indexrelid is null or not i.indisvalid or not i.indisready or e.is_unique and not i.indisunique;

  return query
  select 'INV-2', format('index %s', x.name), format('finds %s of the %s rows of its table', x.by_index, x.by_heap),
         'It is corrupt. Look at the disk and the server''s log, then: reindex index concurrently outbox....'
  from (
    select 'message_pkey' as name, (select count(*) from (select from outbox.message as m order by m.id offset 0) as x) as by_index,
           (select count(*) from outbox.message as m where m.ctid >= '(0,0)') as by_heap where audit_indexes.is_full
    union all
    select 'message_dispatch_key_key', (select count(*) from (select from outbox.message as m order by m.dispatch_key offset 0) as x),
           (select count(*) from outbox.message as m where m.ctid >= '(0,0)') where audit_indexes.is_full
    union all
    select 'pending_pkey', (select count(*) from (select from outbox.pending as p order by p.id offset 0) as x),
           (select count(*) from outbox.pending as p where p.ctid >= '(0,0)') where audit_indexes.is_full
    union all
    select 'pending_ripe', (select count(*) from (select from outbox.pending as p where p.ripe
                             order by p.ring, p.namespace, p.route_ring, p.task_queue, p.shard, p.visible_after, p.id offset 0) as x),
           (select count(*) from outbox.pending as p where p.ctid >= '(0,0)' and p.ripe::int = 1) where audit_indexes.is_full
    union all
    select 'pending_unripe_due', (select count(*) from (select from outbox.pending as p where not p.ripe
                                   order by p.shard, p.visible_after, p.id offset 0) as x),
           (select count(*) from outbox.pending as p where p.ctid >= '(0,0)' and p.ripe::int = 0) where audit_indexes.is_full
    union all
    select 'pending_unripe_namespace', (select count(*) from (select from outbox.pending as p where not p.ripe
                                         order by p.ring, p.namespace, p.visible_after, p.id offset 0) as x),
           (select count(*) from outbox.pending as p where p.ctid >= '(0,0)' and p.ripe::int = 0) where audit_indexes.is_full
    union all
    select 'settled_pkey', (select count(*) from (select from outbox.settled as s order by s.id offset 0) as x),
           (select count(*) from outbox.settled as s where s.ctid >= '(0,0)') where audit_indexes.is_full
    union all
    select 'settled_retention', (select count(*) from (select from outbox.settled as s order by s.outcome, s.settled_at offset 0) as x),
           (select count(*) from outbox.settled as s where s.ctid >= '(0,0)') where audit_indexes.is_full
    union all
    select 'settled_failed', (select count(*) from (select from outbox.settled as s where s.outcome = 'failed'
                               order by s.namespace, s.id offset 0) as x),
           (select count(*) from outbox.settled as s where s.ctid >= '(0,0)' and s.outcome || '' = 'failed') where audit_indexes.is_full
    union all
    select 'failure_id', (select count(*) from (select from outbox.failure as f order by f.id offset 0) as x),
           (select count(*) from outbox.failure as f where f.ctid >= '(0,0)') where audit_indexes.is_full
    union all
    select 'claimed_pkey', (select count(*) from (select from outbox.claimed as c order by c.id offset 0) as x),
           (select count(*) from outbox.claimed as c where c.ctid >= '(0,0)')
    union all
    select 'claimed_namespace', (select count(*) from (select from outbox.claimed as c order by c.namespace, c.claim_token offset 0) as x),
           (select count(*) from outbox.claimed as c where c.ctid >= '(0,0)')
    union all
    select 'claimed_token', (select count(*) from (select from outbox.claimed as c order by c.claim_token offset 0) as x),
           (select count(*) from outbox.claimed as c where c.ctid >= '(0,0)')
    union all
    select 'claimed_lease', (select count(*) from (select from outbox.claimed as c order by c.lease_until offset 0) as x),
           (select count(*) from outbox.claimed as c where c.ctid >= '(0,0)')
    union all
    select 'namespace_pkey', (select count(*) from (select from outbox.namespace as n order by n.namespace offset 0) as x),
           (select count(*) from outbox.namespace as n where n.ctid >= '(0,0)')
    union all
    select 'pause_key', (select count(*) from (select from outbox.pause as p order by p.namespace, p.task_queue offset 0) as x),
           (select count(*) from outbox.pause as p where p.ctid >= '(0,0)')
  ) as x
  where x.by_index <> x.by_heap;
end $$;
comment on function outbox.audit_indexes is 'The part of check() about indexes';
revoke all on function outbox.audit_indexes from public;
-- <<< sql/functions/audit_indexes.sql

-- >>> sql/functions/audit_messages.sql
-- requires: shard_of.sql
create or replace function outbox.audit_messages(first_id bigint)
returns table (guarantee text, subject text, detail text, hint text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_nestloop = off -- after an analyse of empty tables it would be quadratic
set work_mem = '64MB'     -- hashes of ids and keys
set jit = off
as $$
-- The part of check() about messages one by one, those from this id on: each stands in
-- one state, on its shard, with what its cold side says, charged as its state implies.
declare
  v_shards int := (select c.shard_count from outbox.config as c);
begin
  return query
  select x.guarantee, format('message %s', h.id), x.detail, x.hint
  from (
    select p.id, 'pending' as state, p.namespace, p.task_queue, p.shard, p.payload_bytes, p.attempt, 0 as least
    from outbox.pending as p where p.id >= audit_messages.first_id
    union all
    select c.id, 'claimed', c.namespace, c.task_queue, c.shard, c.payload_bytes, c.attempt, 1
    from outbox.claimed as c where c.id >= audit_messages.first_id
    union all
    select s.id, s.outcome, s.namespace, s.task_queue, s.shard, null, s.attempts, (s.outcome <> 'cancelled')::int
    from outbox.settled as s where s.id >= audit_messages.first_id
  ) as h
  left join outbox.message as m on m.id = h.id and m.id >= audit_messages.first_id
  cross join lateral (
    values
      ('INV-2', m.id is null, format('is %s and has no row in outbox.message: its key and payload are gone', h.state),
       'Nothing can deliver it. Restore its row in outbox.message, or delete it from the table of its state.'),
      ('INV-4', h.namespace <> m.namespace, format('is %s in namespace %L, its message in %L', h.state, h.namespace, m.namespace),
       'It counts against the wrong quota. Set namespace in the table of its state to that of outbox.message.'),
      ('INV-4', h.shard <> outbox.shard_of(m.dispatch_key, v_shards),
       format('is %s on shard %s, its key hashes to %s', h.state, h.shard, outbox.shard_of(m.dispatch_key, v_shards)),
       'Another node than its shard''s owner claims and counts it, or none. Set shard to outbox.shard_of(dispatch_key, shard_count).'),
      ('INV-7', h.task_queue <> m.task_queue, format('is %s in task queue %L, its message in %L', h.state, h.task_queue, m.task_queue),
       'It goes by the wrong route. Set task_queue in the table of its state to that of outbox.message.'),
      ('INV-10', h.attempt < h.least, format('is %s after %s attempts', h.state, h.attempt),
       'A claim charges an attempt, nothing takes it below 0. Set attempt to 1.'),
      ('INV-13', h.payload_bytes <> octet_length(m.payload),
       format('is %s with %s bytes, its payload has %s', h.state, h.payload_bytes, octet_length(m.payload)),
       'Claims count it against max_bytes by that. Set payload_bytes to the length of the payload.')
  ) as x(guarantee, wrong, detail, hint)
  where (m.id is null or h.namespace <> m.namespace or h.task_queue <> m.task_queue or h.attempt < h.least
         or h.shard <> outbox.shard_of(m.dispatch_key, v_shards) or h.payload_bytes <> octet_length(m.payload))
    and x.wrong;

  return query
  select 'INV-5', format('message %s', p.id), 'stands at another place of the ring than its namespace and route have',
         'outbox.ring() was replaced, or hashes otherwise: claims do not find it. update outbox.pending set namespace = namespace, task_queue = task_queue.'
  from outbox.pending as p
  where p.id >= audit_messages.first_id
    and (p.ring <> outbox.ring(p.namespace) or p.route_ring <> outbox.ring(p.task_queue));

  return query
  select 'INV-2', format('message %s', m.id), format('with key %L is in no state: neither pending, nor claimed, nor settled', m.dispatch_key),
         'It is never delivered, and its key counts as a duplicate. Delete it from outbox.message and enqueue it again.'
  from outbox.message as m
  where m.id >= audit_messages.first_id
    and not exists (select from outbox.pending as p where p.id = m.id)
    and not exists (select from outbox.claimed as c where c.id = m.id)
    and not exists (select from outbox.settled as s where s.id = m.id);

  return query
  select 'INV-2', format('message %s', h.id), format('is %s at once', string_agg(h.state, ' and ' order by h.state)),
         'It may be delivered again after it was settled. Keep the row of one state; settled is the last.'
  from (select p.id, 'pending' as state from outbox.pending as p where p.id >= audit_messages.first_id
        union all select c.id, 'claimed' from outbox.claimed as c where c.id >= audit_messages.first_id
        union all select s.id, s.outcome from outbox.settled as s where s.id >= audit_messages.first_id) as h
  group by h.id having count(*) > 1;

  return query
  select 'INV-2', format('message %s', f.id), format('has %s recorded failures, and no row in outbox.message', count(*)),
         'Delete them from outbox.failure, unless the message was deleted by mistake.'
  from outbox.failure as f
  where f.id >= audit_messages.first_id and not exists (select from outbox.message as m where m.id = f.id)
  group by f.id;

  return query
  select 'INV-3', format('dispatch key %L', m.dispatch_key),
         format('belongs to messages %s', array_to_string((array_agg(m.id order by m.id))[1:10], ', ')),
         'The unique index is broken. Delete all of them but one, from every table, then: reindex table outbox.message.'
  from outbox.message as m where m.id >= audit_messages.first_id
  group by m.dispatch_key having count(*) > 1;
end $$;
comment on function outbox.audit_messages is 'The part of check() about messages one by one';
revoke all on function outbox.audit_messages from public;
-- <<< sql/functions/audit_messages.sql

-- >>> sql/functions/audit_schema.sql
-- requires: is_live.sql
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
  v_now    timestamptz := clock_timestamp();
  v_max    bigint;
  v_last   bigint;
begin
  return query
  select 'INV-4', 'outbox.config', format('has %s rows', count(*)), 'It has exactly one: insert into outbox.config default values.'
  from outbox.config as c having count(*) <> 1;

  return query
  select 'INV-9', 'sequence outbox.claim_token', format('has cache %s, increment %s%s', q.seqcache, q.seqincrement,
         case when q.seqcycle then ', and cycles' else '' end),
         'A later claim must draw a larger token: alter sequence outbox.claim_token cache 1 increment 4194304 no cycle.'
  from pg_sequence as q
  where q.seqrelid = 'outbox.claim_token'::regclass and (q.seqcache <> 1 or q.seqincrement < 4194304 or q.seqcycle);

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
  where outbox.is_live(n.heartbeat_at, v_now, v_lapse)
    and exists (select from unnest(n.shards) as s(shard) where s.shard not between 0 and v_shards - 1);

  return query
  select 'rights', format('function %s', p.oid::regprocedure), x.problem, x.hint
  from pg_proc as p
  cross join lateral (
    values
      (exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a where a.grantee = 0)
         and p.proname <> 'ring', -- which the view namespaces calls with its reader's rights
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

-- >>> sql/functions/bound_transaction.sql
create or replace function outbox.bound_transaction(longest interval)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Ends the session, until the transaction is over, where it waits for its client longer than
-- this: what the transaction has locked keeps others from their work. A limit that is
-- stricter already stays.
declare
  v_ms text := (extract(epoch from bound_transaction.longest) * 1000)::bigint::text;
begin
  if current_setting('idle_in_transaction_session_timeout')::interval not between '1 ms' and bound_transaction.longest then
    perform set_config('idle_in_transaction_session_timeout', v_ms, true);
  end if;
  if current_setting('tcp_user_timeout') = '0' then
    -- The same for a client that is frozen or gone, and takes in none of what is sent to it.
    perform set_config('tcp_user_timeout', v_ms, true);
  end if;
end $$;
comment on function outbox.bound_transaction is 'Limits how long the transaction may wait for its client';
revoke all on function outbox.bound_transaction from public;
-- <<< sql/functions/bound_transaction.sql

-- >>> sql/functions/settle_cancelled.sql
create or replace function outbox.settle_cancelled(ids bigint[], now timestamptz)
returns table (id bigint, was text)
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
-- Settles messages as cancelled, those of ids that are pending and then those that are
-- claimed; returns which, and what each was. The caller holds cancel_lock(). A message that
-- goes from claimed to pending between the two statements is in neither: the caller looks
-- for it again.
declare
  v_tids tid[]; -- of those locked
begin
  -- Look-ups one by one, in the order of the ids: a join could read every message there
  -- is.
  v_tids := array(
    select p.tid
    from (select u.id from unnest(settle_cancelled.ids) as u(id) order by u.id) as u
    cross join lateral (
      select p.ctid as tid from outbox.pending as p where p.id = u.id for update
    ) as p);
  return query
  with p as (
    delete from outbox.pending as d where d.ctid = any (v_tids)
    returning d.id, d.namespace, d.task_queue, d.shard, d.attempt
  )
  insert into outbox.settled as s (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
  select p.id, p.namespace, p.task_queue, p.shard, 'cancelled', p.attempt, settle_cancelled.now, session_user from p
  returning s.id, 'pending';
  v_tids := array(
    select c.tid
    from (select u.id from unnest(settle_cancelled.ids) as u(id) order by u.id) as u
    cross join lateral (select c.ctid as tid from outbox.claimed as c where c.id = u.id for update) as c);
  return query
  with c as (
    delete from outbox.claimed as d where d.ctid = any (v_tids)
    returning d.id, d.namespace, d.task_queue, d.shard, d.attempt
  )
  insert into outbox.settled as s (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
  select c.id, c.namespace, c.task_queue, c.shard, 'cancelled', c.attempt, settle_cancelled.now, session_user from c
  returning s.id, 'claimed';
end $$;
comment on function outbox.settle_cancelled is 'Settles pending and claimed messages as cancelled; which, and what each was';
revoke all on function outbox.settle_cancelled from public;
-- <<< sql/functions/settle_cancelled.sql

-- >>> sql/functions/cancel.sql
-- requires: bad_argument.sql cancel_lock.sql settle_cancelled.sql
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
  v_ids := array(
    select m.id
    from (select distinct u.dispatch_key from unnest(cancel.dispatch_keys) as u(dispatch_key)) as u
    cross join lateral (select m.id from outbox.message as m where m.dispatch_key = u.dispatch_key offset 0) as m
    order by m.id);
  loop
    return query
    select (select m.dispatch_key from outbox.message as m where m.id = s.id), s.was
    from outbox.settle_cancelled(v_ids, v_now) as s;
    -- One that went from claimed to pending meanwhile is met again.
    exit when not exists (
            select from unnest(v_ids) as u(id)
            cross join lateral (
              select p.id from outbox.pending as p where p.id >= u.id and p.id <= u.id order by p.id limit 1
            ) as p)
          and not exists (
            select from unnest(v_ids) as u(id)
            cross join lateral (select c.id from outbox.claimed as c where c.id = u.id offset 0) as c);
  end loop;
end $$;
comment on function outbox.cancel is 'Cancels pending and claimed messages; the keys cancelled and what each was';
revoke all on function outbox.cancel from public;
-- <<< sql/functions/cancel.sql

-- >>> sql/functions/cancel_namespace.sql
-- requires: bad_argument.sql check_key.sql cancel_lock.sql settle_cancelled.sql
create or replace function outbox.cancel_namespace(namespace text, max int default null)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
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
      (select p.id from outbox.pending as p
       where p.ripe and p.ring = outbox.ring(cancel_namespace.namespace) and p.namespace = cancel_namespace.namespace
         and p.id <= v_last
       order by p.route_ring, p.task_queue, p.shard, p.visible_after, p.id limit cancel_namespace.max - v_done)
      union all
      (select p.id from outbox.pending as p
       where not p.ripe and p.ring = outbox.ring(cancel_namespace.namespace) and p.namespace = cancel_namespace.namespace
         and p.id <= v_last
       order by p.visible_after, p.id limit cancel_namespace.max - v_done)
      union all
      (select c.id from outbox.claimed as c -- bounds of pairs, for no other index to come into question
       where (c.namespace, c.claim_token) >= (cancel_namespace.namespace, 0)
         and (c.namespace, c.claim_token) <= (cancel_namespace.namespace, 9223372036854775807) and c.id <= v_last
       order by c.namespace, c.claim_token limit cancel_namespace.max - v_done)
      limit cancel_namespace.max - v_done);
    v_done := v_done + (select count(*) from outbox.settle_cancelled(v_ids, v_now) as s);
    exit when cardinality(v_ids) = 0 or v_done >= cancel_namespace.max;
  end loop;
  return v_done;
end $$;
comment on function outbox.cancel_namespace is 'Cancels a namespace''s pending and claimed messages; how many';
revoke all on function outbox.cancel_namespace from public;
-- <<< sql/functions/cancel_namespace.sql

-- >>> sql/functions/ceil_div.sql
create or replace function outbox.ceil_div(a int, b int)
returns int
language sql immutable parallel safe
-- a / b, rounded up; b is above 0. Without a sum that could overflow. (node_ceiling, which
-- roles call with their own rights, rounds for itself, in bigint.)
begin atomic
  select ceil_div.a / ceil_div.b + (ceil_div.a % ceil_div.b > 0)::int;
end;
comment on function outbox.ceil_div is 'A division that rounds up';
revoke all on function outbox.ceil_div from public;
-- <<< sql/functions/ceil_div.sql

-- >>> sql/functions/next_held.sql
create or replace function outbox.next_held(held int[], total int)
returns int[]
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
-- For each shard s of total, at s + 1: the first held shard from s on, null behind
-- the last. Shard s is held if next[s + 1] = s. held is sorted.
declare
  v_next int[] := array_fill(null::int, array[next_held.total]);
  v_from int := 0;
  v_held int;
begin
  foreach v_held in array next_held.held loop
    for s in v_from .. v_held loop
      v_next[s + 1] := v_held;
    end loop;
    v_from := v_held + 1;
  end loop;
  return v_next;
end $$;
comment on function outbox.next_held is 'For each shard, the first held one from it on';
revoke all on function outbox.next_held from public;
-- <<< sql/functions/next_held.sql

-- >>> sql/functions/walk_start.sql
create or replace function outbox.walk_start(node text, shards int[])
returns table (namespace text, round bigint, edge bigint, edge_shards int[],
               unripe_from timestamptz, unripe_from_id bigint, unripe_all_at timestamptz, unripe_namespace text, unripe_rest int,
               detours outbox.detour[])
language sql stable
-- Where a node's walk goes on. A node that has never claimed goes on where another is, so that
-- nodes that live for one sweep rotate too: where the last one that claimed from the same shards is,
-- else from some of them, else any. (The same shards first: two nodes with different shards that take
-- turns would go on from each other's cursor, and could skip the same tenants for ever.) The edges
-- and detours of others it does not take over.
begin atomic
  (select w.namespace, w.round, w.edge, w.edge_shards, w.unripe_from, w.unripe_from_id, w.unripe_all_at, w.unripe_namespace, w.unripe_rest, w.detours
   from outbox.walk as w where w.node = walk_start.node)
  union all
  (select w.namespace, w.round, 0::bigint as edge, null::int[] as edge_shards, '-infinity'::timestamptz as unripe_from,
          0::bigint as unripe_from_id, '-infinity'::timestamptz as unripe_all_at, w.unripe_namespace, 0 as unripe_rest, null::outbox.detour[] as detours
   from outbox.walk as w
   order by w.edge_shards = walk_start.shards desc, w.edge_shards && walk_start.shards desc, w.claimed_at desc limit 1)
  union all
  select '' as namespace, 0::bigint as round, 0::bigint as edge, null::int[] as edge_shards, '-infinity'::timestamptz as unripe_from,
         0::bigint as unripe_from_id, '-infinity'::timestamptz as unripe_all_at, '' as unripe_namespace, 0 as unripe_rest, null::outbox.detour[] as detours
  limit 1;
end;
comment on function outbox.walk_start is 'Where a node''s walk goes on';
revoke all on function outbox.walk_start from public;
-- <<< sql/functions/walk_start.sql

-- >>> sql/functions/ripen.sql
-- requires: ceil_div.sql
create or replace function outbox.ripen(
  held int[], next_held int[], now timestamptz,
  inout unripe_from timestamptz, inout unripe_from_id bigint, inout unripe_all_at timestamptz, inout unripe_namespace text,
  inout unripe_rest int, out ripened int, out again boolean)
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_sort = off -- each part comes from an index in its order
as $$
-- The start of a claim: what has come due on its shards becomes ripe, so that the walk finds it.
-- What is delayed, or waits after a failed attempt, is not ripe until then, and costs claims
-- nothing. Only claims do this, under the locks of their shards: so two never meet on a message.
--
-- A claim makes about 500 messages ripe in the order of their time, an equal part of each shard.
-- Where a shard has more, it takes turns as well: it goes on to the next 100 namespaces with
-- messages that wait, in the order of the ring, and makes up to 20 of each ripe. So a million
-- messages of one namespace that come due at one instant do not hold up the others. again says
-- that there is more: the next claim is to follow at once.
--
-- The inout parameters are kept in outbox.walk between the claims of a node. Where a long
-- transaction keeps dead rows, those of what has become ripe before are not read again: the search
-- begins at (unripe_from, unripe_from_id), where the last one stopped, or, if that found all, 100 ms
-- before it. What is committed later than that after it has come due is found every 2 s, when a search
-- begins at the beginning; unripe_all_at is the last time. unripe_namespace is the last one whose
-- turn it was. Where the turns read very many pages, since dead rows of before are in their way,
-- there are none for unripe_rest claims.
declare
  v_part   int := greatest(outbox.ceil_div(500, cardinality(ripen.held)), 2);
  v_from   timestamptz;
  v_id     bigint;
  v_tids   tid[];
  v_turns  tid[];
  v_pages  bigint := pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass);
begin
  if ripen.now not between unripe_all_at and unripe_all_at + interval '2 s' then
    unripe_from := '-infinity';
    unripe_from_id := 0;
    unripe_all_at := ripen.now;
  end if;
  -- by time: pending_unripe_due; a shard with v_part rows may have more
  select array_agg(d.tid),
         (array_agg(d.visible_after order by d.visible_after, d.id) filter (where d.nth = v_part))[1],
         (array_agg(d.id order by d.visible_after, d.id) filter (where d.nth = v_part))[1]
  into v_tids, v_from, v_id
  from unnest(ripen.held) as s(shard)
  cross join lateral (
    select p.*, row_number() over () as nth
    from (
      select p.ctid as tid, p.visible_after, p.id
      from outbox.pending as p
      where not p.ripe and p.shard = s.shard
        and (p.visible_after, p.id) >= (ripen.unripe_from, ripen.unripe_from_id) and p.visible_after <= ripen.now
      order by p.visible_after, p.id limit v_part
    ) as p
  ) as d;
  ripened := 0;
  again := v_from is not null;
  unripe_rest := greatest(unripe_rest - 1, 0);
  if again and unripe_rest = 0 then
    v_pages := pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass);
    -- by turns: pending_unripe_namespace, and up to 200 rows of each, for some may be on other shards
    with recursive walk(n, ring, namespace, wrapped) as (
      select 0, outbox.ring(ripen.unripe_namespace), ripen.unripe_namespace collate "C", false
      union all
      select w.n + 1, x.ring, x.namespace, x.wrapped
      from walk as w
      cross join lateral (
        (select p.ring, p.namespace, w.wrapped
         from outbox.pending as p
         where not p.ripe and (p.ring, p.namespace) > (w.ring, w.namespace)
         order by p.ring, p.namespace, p.visible_after limit 1)
        union all
        (select p.ring, p.namespace, true
         from outbox.pending as p
         where not w.wrapped and not p.ripe
         order by p.ring, p.namespace, p.visible_after limit 1)
        limit 1
      ) as x
      where w.n < 100
        and not (x.wrapped and (x.ring, x.namespace) > (outbox.ring(ripen.unripe_namespace), ripen.unripe_namespace collate "C"))
    )
    select array_agg(x.tid), (array_agg(w.namespace order by w.n desc))[1]
    into v_turns, unripe_namespace
    from walk as w
    left join lateral (
      select p.tid
      from (
        select p.ctid as tid, p.shard
        from outbox.pending as p
        where not p.ripe and p.ring = w.ring and p.namespace = w.namespace
          and (p.visible_after, p.id) >= (ripen.unripe_from, ripen.unripe_from_id) and p.visible_after <= ripen.now
        order by p.visible_after, p.id limit 200
      ) as p
      where ripen.next_held[p.shard + 1] = p.shard limit 20
    ) as x on true
    where w.n > 0;
    v_pages := pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) - v_pages;
    if v_pages >= 2000 then -- dead rows of those that became ripe before
      unripe_rest := least(v_pages / 500, 100);
    end if;
  end if;
  if again then
    unripe_from := v_from;
    unripe_from_id := v_id;
  else
    unripe_from := ripen.now - interval '100 ms';
    unripe_from_id := 0;
  end if;
  if v_tids is not null then
    -- what others have locked, to cancel it, say, stays as it is
    v_tids := array(select p.ctid from outbox.pending as p
                    where p.ctid = any (v_tids || v_turns)
                      and case when p.ripe then false else true end -- as no partial index says it: by ctid alone
                    for update skip locked);
    update outbox.pending as p set ripe = true where p.ctid = any (v_tids);
    ripened := cardinality(v_tids);
  end if;
end $$;
comment on function outbox.ripen is 'Makes what has come due ripe, which is where claims look';
revoke all on function outbox.ripen from public;
-- <<< sql/functions/ripen.sql

-- >>> sql/functions/walk_detour.sql
create or replace function outbox.walk_detour(after text, landed text, pages bigint, is_its_own boolean)
returns outbox.detour[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- A stretch of the ring that later claims skip, where a walk read very many pages of outbox.pending on
-- its way from the namespace "after" to the next one with a ripe message that it could see, "landed".
-- It read past messages that it could not see: not committed yet, as of a large import, or dead and not
-- vacuumed yet, as behind a long transaction. Most often they are of a namespace between the two;
-- else of "landed" itself, as where reading its messages took these pages (is_its_own), and then that
-- is skipped as well. For pages / 500 claims, at most 100: so whoever makes claims slow is looked at
-- less often, and the others do not pay for it.
declare
  v_before bigint := pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass);
  v_upto   text;
begin
  select p.namespace into v_upto
  from outbox.pending as p
  where p.ripe and (p.ring, p.namespace) >= (outbox.ring(walk_detour.landed), walk_detour.landed)
  order by p.ring, p.namespace, p.route_ring, p.task_queue, p.shard, p.visible_after limit 1;
  if walk_detour.is_its_own or pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) - v_before > walk_detour.pages / 2 then
    select p.namespace into v_upto
    from outbox.pending as p
    where p.ripe and (p.ring, p.namespace) > (outbox.ring(walk_detour.landed), walk_detour.landed)
    order by p.ring, p.namespace, p.route_ring, p.task_queue, p.shard, p.visible_after limit 1;
    if v_upto is null then -- behind the end of the ring comes its beginning
      select p.namespace into v_upto
      from outbox.pending as p
      where p.ripe
      order by p.ring, p.namespace, p.route_ring, p.task_queue, p.shard, p.visible_after limit 1;
    end if;
  end if;
  return array[row(walk_detour.after, v_upto, least(walk_detour.pages / 500, 100))::outbox.detour];
end $$;
comment on function outbox.walk_detour is 'A stretch of the ring that claims shall pass over for a while';
revoke all on function outbox.walk_detour from public;
-- <<< sql/functions/walk_detour.sql

-- >>> sql/functions/walk_namespaces.sql
create or replace function outbox.walk_namespaces(after text, wrapped boolean, until text, size int, detours outbox.detour[])
returns table (n int, namespace text, wrapped boolean, task_queue text, shard int, head timestamptz, sole boolean,
               pages bigint, pages_within bigint, detoured boolean)
language sql stable
-- Up to size namespaces that have ripe messages, in the order of the ring, from behind
-- "after" on and, unless already wrapped, once around to "until"; with the head of the
-- first lane of each. A loose index scan: a step goes to the next route, and from a
-- second route of the same namespace to the next namespace. So a namespace costs one
-- descent of pending_ripe if it has one route (sole), and two otherwise, however many
-- messages it has. Detours, null for none, are taken: behind the namespace "after" of one, the
-- walk goes on at "upto". pages is how many pages of the table the step to the namespace read,
-- pages_within the step to its second route, and detoured whether the former took a detour. (No
-- set clause: it would forbid inlining.)
begin atomic
  with recursive walk(n, nth, ring, namespace, wrapped, route_ring, task_queue, shard, head, pages, detoured) as (
    select 0, 0, outbox.ring(walk_namespaces.after), walk_namespaces.after collate "C", walk_namespaces.wrapped,
           null::int, null::text collate "C", null::int, null::timestamptz, null::bigint, false
    union all
    select w.n + x.is_next::int, case when x.is_next then 1 else 2 end, x.ring, x.namespace, x.wrapped, x.route_ring, x.task_queue,
           x.shard, x.head, pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) - s.pages, s.upto is not null
    from walk as w
    cross join lateral (
      select d.*, d.upto is not null and (outbox.ring(d.upto), d.upto) <= (w.ring, w.namespace) as wraps
      from (select pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) as pages,
                   case when walk_namespaces.detours is not null
                        then (select d.upto collate "C" from unnest(walk_namespaces.detours) as d where d.after = w.namespace
                              order by d.claims desc limit 1) end as upto
            offset 0) as d
      offset 0
    ) as s
    cross join lateral (
      (select p.ring, p.namespace, w.wrapped, p.route_ring, p.task_queue, p.shard, p.visible_after as head, false as is_next
       from outbox.pending as p -- before a detour, a second route
       where s.upto is not null and w.nth = 1 and p.ripe and p.ring = w.ring and p.namespace = w.namespace
         and (p.route_ring, p.task_queue) > (w.route_ring, w.task_queue)
       order by p.route_ring, p.task_queue, p.shard, p.visible_after limit 1)
      union all
      (select p.ring, p.namespace, w.wrapped, p.route_ring, p.task_queue, p.shard, p.visible_after as head,
              w.n = 0 or p.namespace <> w.namespace as is_next
       from outbox.pending as p
       where not s.wraps and p.ripe and (p.ring, p.namespace, p.route_ring, p.task_queue) -- or past every route that there can be
             > (case when s.upto is null then w.ring else outbox.ring(s.upto) end, coalesce(s.upto, w.namespace),
                case when s.upto is not null then -2147483648 when w.nth = 1 then w.route_ring else 2147483647 end,
                case when s.upto is not null then '' when w.nth = 1 then w.task_queue else repeat(chr(1114111), 129) end)
       order by p.ring, p.namespace, p.route_ring, p.task_queue, p.shard, p.visible_after limit 1)
      union all
      (select p.ring, p.namespace, true, p.route_ring, p.task_queue, p.shard, p.visible_after, true
       from outbox.pending as p
       where p.ripe and not w.wrapped
         and (p.ring, p.namespace) >= (case when s.wraps then outbox.ring(s.upto) else -2147483648 end,
                                       case when s.wraps then s.upto else '' end)
       order by p.ring, p.namespace, p.route_ring, p.task_queue, p.shard, p.visible_after limit 1)
      limit 1
    ) as x
    where w.n <= walk_namespaces.size
      and not (x.wrapped and (x.ring, x.namespace) > (outbox.ring(walk_namespaces.until), walk_namespaces.until collate "C"))
  )
  select w.n, w.namespace, w.wrapped, w.task_queue, w.shard, w.head, w.next_nth = 1, w.pages,
         case when w.next_nth = 2 then w.next_pages else 0 end, w.detoured
  from (select w.*, lead(w.nth, 1, 1) over o as next_nth, lead(w.pages) over o as next_pages from walk as w window o as (order by w.n, w.nth)) as w
  where w.nth = 1 and w.n <= walk_namespaces.size;
end;
comment on function outbox.walk_namespaces is 'Namespaces with ripe messages, by loose index scan';
revoke all on function outbox.walk_namespaces from public;
-- <<< sql/functions/walk_namespaces.sql

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

-- >>> sql/functions/route_start.sql
create or replace function outbox.route_start(namespace text, node text, next_held int[])
returns table (task_queue text)
language sql stable
-- The route of a namespace behind which a node's next search begins: the one that the node served
-- last. Where the node never served the namespace, the one that another node served last, best one whose
-- first shard is the same, for the reason that walk_start() gives. Null: from the beginning.
begin atomic
  select coalesce(
    (select t.task_queue from outbox.route as t
     where t.namespace = route_start.namespace and t.node = route_start.node),
    (select t.task_queue from outbox.route as t
     where t.namespace = route_start.namespace
     order by t.shard is not distinct from route_start.next_held[1] desc, t.served_at desc limit 1));
end;
comment on function outbox.route_start is 'The route behind which a node''s next search in a namespace begins';
revoke all on function outbox.route_start from public;
-- <<< sql/functions/route_start.sql

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

-- >>> sql/functions/walk_lanes.sql
create or replace function outbox.walk_lanes(namespace text, task_queue text, start int, next_held int[])
returns table (n int, shard int, head timestamptz)
language sql stable
-- The lanes of a route on held shards that have ripe messages, from shard "start" on and
-- once around, each with the time at which its oldest message is due. One descent of
-- pending_ripe each, and one for a run of shards that are not held: next_held[s + 1]
-- is the first held shard from s on (see next_held). Lazy.
begin atomic
  with recursive walk(n, shard, head, wrapped) as (
    select 0, walk_lanes.start - 1, null::timestamptz, false
    union all
    select w.n + 1, x.shard, x.head, x.wrapped
    from walk as w
    cross join lateral (
      (select p.shard, p.visible_after as head, w.wrapped from outbox.pending as p
       where p.ripe and p.ring = outbox.ring(walk_lanes.namespace) and p.namespace = walk_lanes.namespace
         and p.route_ring = outbox.ring(walk_lanes.task_queue) and p.task_queue = walk_lanes.task_queue
         and p.shard >= walk_lanes.next_held[w.shard + 2]
       order by p.shard, p.visible_after limit 1)
      union all
      (select p.shard, p.visible_after, true from outbox.pending as p
       where not w.wrapped and walk_lanes.start > walk_lanes.next_held[1]
         and p.ripe and p.ring = outbox.ring(walk_lanes.namespace) and p.namespace = walk_lanes.namespace
         and p.route_ring = outbox.ring(walk_lanes.task_queue) and p.task_queue = walk_lanes.task_queue
         and p.shard >= walk_lanes.next_held[1]
       order by p.shard, p.visible_after limit 1)
      limit 1
    ) as x
    where not (x.wrapped and x.shard >= walk_lanes.start)
  )
  select w.n, w.shard, w.head from walk as w
  where w.n > 0 and walk_lanes.next_held[w.shard + 1] = w.shard;
end;
comment on function outbox.walk_lanes is 'Lanes of a route with ripe messages on held shards, by loose index scan';
revoke all on function outbox.walk_lanes from public;
-- <<< sql/functions/walk_lanes.sql

-- >>> sql/functions/claim_lanes.sql
-- requires: walk_lanes.sql
create or replace function outbox.claim_lanes(namespace text, task_queue text, first int, next_held int[], now timestamptz)
returns table (shard int)
language sql stable
-- The lanes of a route that a claim reads, in their order: the first one, whatever it holds,
-- then those that have due messages, which costs a descent each to find out. Lazy.
begin atomic
  select claim_lanes.first as shard
  union all
  select l.shard
  from outbox.walk_lanes(claim_lanes.namespace, claim_lanes.task_queue, claim_lanes.first + 1, claim_lanes.next_held) as l
  where l.head <= claim_lanes.now and l.shard <> claim_lanes.first;
end;
comment on function outbox.claim_lanes is 'Lanes of a route that a claim reads, in order';
revoke all on function outbox.claim_lanes from public;
-- <<< sql/functions/claim_lanes.sql

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

-- >>> sql/functions/claim_order.sql
-- requires: ceil_div.sql
create or replace function outbox.claim_order(
  candidates outbox.candidate[], wanted int[], slice int, batch int, max_bytes bigint, turn bigint,
  out picked outbox.candidate[], out passes int[], out left_out int)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- The third part of a claim: the order of service. picked are the messages to take, in that order;
-- passes says of each whether it is part of its namespace's slice, 1, or of what was left, 2.
--
--   parameter           what it is
--   candidates, wanted  what claim_read() returned
--   slice               ceil(batch / active namespaces)
--   max_bytes           null, or the payload bytes that end the claim
--   turn                null, or, where all eligible namespaces are here, the walk's round
--
-- The candidates of each namespace are ranked, round-robin over its routes; rank 1 of all
-- namespaces comes before rank 2 of any. Ranks up to the slice are pass 1. So one order gives
-- both passes, and the claim is its first batch messages, or up to the one that reaches max_bytes.
--
-- Within a rank the order is that of the walk, unless there is a turn: then the first place moves on
-- by one each round, among the namespaces that have a message of that rank, and with it the odd
-- remainder of the batch.
--
-- A payload of max_bytes or more would end the claim wherever it stands. So it goes behind all
-- others, and no other namespace loses its message; but the first message of the claim stays first, so
-- that large payloads are served, too. left_out is the first visit whose message of rank 1 max_bytes
-- or batch kept out: the next walk begins there.
begin
  with ranked as (
    select c.*, row_number() over (partition by c.visit order by c.nth, c.route) as rank
    from unnest(claim_order.candidates) as c
  ), placed as materialized (
    select r.*, row_number() over (partition by r.rank order by r.visit) - 1 as place,
           count(*) over (partition by r.rank) as places
    from ranked as r
    where r.rank <= claim_order.wanted[r.visit]
  ), ordered as (
    select p.*, row_number() over w as n,
           coalesce(sum(p.payload_bytes) over (w rows between unbounded preceding and 1 preceding), 0) as bytes_before
    from placed as p
    window w as (order by (p.payload_bytes >= claim_order.max_bytes and (p.rank > 1 or p.place > 0)) is true, p.rank,
      -- Not where max_bytes may end the claim within rank 1: it might end before it comes to those
      -- in front of the first place, and the next walk would skip them. Then the walk's order stands.
      case when claim_order.turn is not null
                and (claim_order.max_bytes is null
                     or (select sum(f.payload_bytes) from placed as f where f.rank = 1) < claim_order.max_bytes)
           then (p.place - claim_order.turn % p.places + p.places) % p.places else p.place end)
  ), cut as (
    select o.*, o.n <= claim_order.batch
                and (claim_order.max_bytes is null or o.bytes_before < claim_order.max_bytes) as taken
    from ordered as o
  )
  select array_agg(row(c.visit, c.route, c.nth, c.id, c.tid, c.due_at, c.shard, c.attempt, c.suspect, c.payload_bytes)::outbox.candidate)
           filter (where c.taken),
         array_agg(case when c.rank <= claim_order.slice then 1 else 2 end) filter (where c.taken),
         min(c.visit) filter (where not c.taken and c.rank = 1)
  into picked, passes, left_out
  from (select c.* from cut as c order by c.n) as c;
end $$;
comment on function outbox.claim_order is 'The order in which a claim serves, and where it ends';
revoke all on function outbox.claim_order from public;
-- <<< sql/functions/claim_order.sql

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

-- >>> sql/functions/walk_routes.sql
create or replace function outbox.walk_routes(namespace text)
returns table (n int, task_queue text, shard int, head timestamptz)
language sql stable
-- The routes of a namespace that have ripe messages, in the order of the ring, each with the
-- head of its first lane. One descent of pending_ripe each. Lazy.
begin atomic
  with recursive walk(n, route_ring, task_queue, shard, head) as (
    select 0, -2147483648, ''::text collate "C", null::int, null::timestamptz
    union all
    select w.n + 1, x.route_ring, x.task_queue, x.shard, x.head
    from walk as w
    cross join lateral (
      select p.route_ring, p.task_queue, p.shard, p.visible_after as head
      from outbox.pending as p
      where p.ripe and p.ring = outbox.ring(walk_routes.namespace) and p.namespace = walk_routes.namespace
        and (p.route_ring, p.task_queue) > (w.route_ring, w.task_queue)
      order by p.route_ring, p.task_queue, p.shard, p.visible_after limit 1
    ) as x
  )
  select w.n, w.task_queue, w.shard, w.head from walk as w where w.n > 0;
end;
comment on function outbox.walk_routes is 'Routes of a namespace with ripe messages, by loose index scan';
revoke all on function outbox.walk_routes from public;
-- <<< sql/functions/walk_routes.sql

-- >>> sql/functions/unripe_due.sql
create or replace function outbox.unripe_due(namespace text, next_held int[], now timestamptz, cap int)
returns table (id bigint)
language sql stable
-- Up to cap messages of a namespace on held shards that have come due and that no claim has made
-- ripe yet, the oldest first. The bound within: those on other shards may be very many.
begin atomic
  select u.id
  from (select p.id, p.shard from outbox.pending as p
        where not p.ripe and p.ring = outbox.ring(unripe_due.namespace) and p.namespace = unripe_due.namespace
          and p.visible_after <= unripe_due.now
        order by p.visible_after, p.id limit 10000) as u
  where unripe_due.next_held[u.shard + 1] = u.shard limit unripe_due.cap;
end;
comment on function outbox.unripe_due is 'Messages of a namespace that have come due and are not ripe yet';
revoke all on function outbox.unripe_due from public;
-- <<< sql/functions/unripe_due.sql

-- >>> sql/functions/count_due.sql
-- requires: walk_routes.sql walk_lanes.sql unripe_due.sql
create or replace function outbox.count_due(namespace text, next_held int[], now timestamptz, cap int)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- How many messages of a namespace are due on held shards, those included that the next claim makes
-- ripe; counts no further than cap.
begin
  return (
    select count(*)
    from ((select
          from outbox.walk_routes(count_due.namespace) as r
          cross join lateral outbox.walk_lanes(count_due.namespace, r.task_queue, 0, count_due.next_held) as l
          cross join lateral (
            select from outbox.pending as p
            where p.ripe and p.ring = outbox.ring(count_due.namespace) and p.namespace = count_due.namespace
              and p.route_ring = outbox.ring(r.task_queue) and p.task_queue = r.task_queue and p.shard = l.shard
              and p.visible_after <= count_due.now
            limit count_due.cap
          ) as p
          limit count_due.cap)
          union all
          (select from outbox.unripe_due(count_due.namespace, count_due.next_held, count_due.now, count_due.cap))
          limit count_due.cap) as x
  );
end $$;
comment on function outbox.count_due is 'Due messages of a namespace on held shards, up to a cap';
revoke all on function outbox.count_due from public;
-- <<< sql/functions/count_due.sql

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

-- >>> sql/functions/unripe_namespaces.sql
create or replace function outbox.unripe_namespaces(size int)
returns table (namespace text)
language sql stable
-- Up to size namespaces with messages that are not ripe, in the order of the ring; size null for
-- all. A loose index scan: a descent of pending_unripe_namespace each. Lazy.
begin atomic
  with recursive walk(n, ring, namespace) as (
    select 0, -2147483648, ''::text collate "C"
    union all
    select w.n + 1, x.ring, x.namespace
    from walk as w
    cross join lateral (
      select p.ring, p.namespace from outbox.pending as p
      where not p.ripe and (p.ring, p.namespace) > (w.ring, w.namespace)
      order by p.ring, p.namespace, p.visible_after limit 1
    ) as x
    where (w.n < unripe_namespaces.size) is not false
  )
  select w.namespace from walk as w where w.n > 0;
end;
comment on function outbox.unripe_namespaces is 'Namespaces with messages that are not ripe, by loose index scan';
revoke all on function outbox.unripe_namespaces from public;
-- <<< sql/functions/unripe_namespaces.sql

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

-- >>> sql/functions/share_out.sql
-- requires: is_live.sql bound_transaction.sql lock_class.sql share_lock.sql
create or replace function outbox.share_out(now timestamptz)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_nestloop = off
set jit = off
as $$
-- Gives the shards to the live nodes that take what they are given: evenly, so that their
-- counts differ by at most one, moving as few as that allows. The shards that live nodes
-- name as theirs are left to those. Where all is well already, as it mostly is, it finds
-- that out without a lock. False: not now, another session is at it or the snapshot may be
-- old; the next heartbeat makes up for it.
--
-- A node keeps what it has, up to its part; the parts that are larger by one go to those
-- that have most. So no shard moves that could have stayed.
declare
  v_config  outbox.config;
  v_settled boolean;
begin
  select c.* into strict v_config from outbox.config as c;
  with live as materialized (
    select n.node, n.shards from outbox.node as n where outbox.is_live(n.heartbeat_at, share_out.now, v_config.node_lapse)
  ), fixed as materialized (
    select distinct s.shard from live as l cross join lateral unnest(l.shards) as s(shard)
    where s.shard between 0 and v_config.shard_count - 1
  ), part as (
    select count(s.shard) as has, count(s.shard) filter (where f.shard is not null or s.shard >= v_config.shard_count) as wrong
    from live as l
    left join outbox.shard as s on s.node = l.node
    left join fixed as f on f.shard = s.shard
    where l.shards is null
    group by l.node
  )
  select count(*) = 0 -- nobody to give any to
      or sum(p.has) = v_config.shard_count - (select count(*) from fixed) and sum(p.wrong) = 0 and max(p.has) - min(p.has) <= 1
  into v_settled from part as p;
  if v_settled then
    return true;
  end if;

  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted')
     or not pg_try_advisory_xact_lock(outbox.lock_class(), outbox.share_lock()) then
    return false;
  end if;
  perform outbox.bound_transaction(v_config.claim_idle_timeout); -- one left open would keep all others from this

  with live as materialized (
    select n.node, n.shards from outbox.node as n where outbox.is_live(n.heartbeat_at, share_out.now, v_config.node_lapse)
  ), free as materialized (
    select s.shard from generate_series(0, v_config.shard_count - 1) as s(shard)
    except
    select s.shard from live as l cross join lateral unnest(l.shards) as s(shard)
  ), kept as materialized (
    select o.shard, o.node, row_number() over (partition by o.node order by o.shard) as nth
    from outbox.shard as o
    join free as f on f.shard = o.shard
  ), part as materialized (
    select x.node, x.has, x.shards / x.nodes + (row_number() over (order by x.has desc, x.node) <= x.shards % x.nodes)::int as gets
    from (select l.node, coalesce(k.has, 0) as has, count(*) over () as nodes, (select count(*) from free) as shards
          from live as l
          left join (select k.node, count(*) as has from kept as k group by k.node) as k on k.node = l.node
          where l.shards is null) as x
  ), open as (
    select f.shard, row_number() over (order by f.shard) as nth
    from free as f
    left join (select k.shard from kept as k join part as p on p.node = k.node where k.nth <= p.gets) as s on s.shard = f.shard
    where s.shard is null
  ), wanted as (
    select p.node, row_number() over (order by p.node) as nth
    from part as p cross join lateral generate_series(p.has + 1, p.gets)
  ), gone as ( -- named by a live node, or no shard of this outbox
    delete from outbox.shard as o where not exists (select from free as f where f.shard = o.shard)
  )
  insert into outbox.shard as o (shard, node)
  select open.shard, w.node from open join wanted as w on w.nth = open.nth
  on conflict on constraint shard_pkey do update set node = excluded.node;
  return true;
end $$;
comment on function outbox.share_out is 'Gives the shards to the live nodes; false: not now';
revoke all on function outbox.share_out from public;
-- <<< sql/functions/share_out.sql

-- >>> sql/functions/heartbeat.sql
-- requires: bad_argument.sql check_key.sql is_live.sql share_out.sql pass_token.sql
create or replace function outbox.heartbeat(
  node text, shards int[] default null, paused text default null, in_flight_bytes bigint default 0,
  process text default null, seen_token bigint default null)
returns table (owned int[], again_in interval, shared_name boolean, went_back boolean)
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
--
-- seen_token is the largest claim token that the process has got. went_back says that the
-- database had not drawn it yet: it went back in time (see pass_token).
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
  went_back := outbox.pass_token(heartbeat.node, heartbeat.seen_token);
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
           and outbox.is_live(n.heartbeat_at, v_now, v_lapse)) is not true;

  if outbox.share_out(v_now) then
    select greatest(v_lapse - (v_now - coalesce(min(n.heartbeat_at), v_now)), '0') into again_in
    from outbox.node as n
    where n.node <> heartbeat.node and outbox.is_live(n.heartbeat_at, v_now, v_lapse);
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

-- >>> sql/functions/live_shards.sql
-- requires: is_live.sql
create or replace function outbox.live_shards(now timestamptz)
returns table (node text, shard int)
language sql stable
-- The shards that live nodes own: those that they name themselves, and those that they
-- were given.
begin atomic
  with live as materialized (
    select n.node, n.shards
    from outbox.config as g
    join outbox.node as n on outbox.is_live(n.heartbeat_at, live_shards.now, g.node_lapse)
  )
  select l.node, s.shard from live as l cross join lateral unnest(l.shards) as s(shard)
  union all
  select l.node, s.shard from live as l join outbox.shard as s on s.node = l.node where l.shards is null;
end;
comment on function outbox.live_shards is 'The shards that live nodes own';
revoke all on function outbox.live_shards from public;
-- <<< sql/functions/live_shards.sql

-- >>> sql/functions/node_processes.sql
-- requires: is_live.sql
create or replace function outbox.node_processes()
returns table (node text, process text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  -- The nodes whose heartbeat has not lapsed, and which process sent it: a node that starts
  -- looks here for those of its own machine that are gone, and leaves for them.
  select n.node, n.process
  from outbox.node as n
  cross join outbox.config as g
  cross join (select clock_timestamp() as now) as t
  where n.process is not null and outbox.is_live(n.heartbeat_at, t.now, g.node_lapse);
$$;
comment on function outbox.node_processes is 'Live nodes and the processes that sent their heartbeats';
revoke all on function outbox.node_processes from public;
-- <<< sql/functions/node_processes.sql

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

-- >>> sql/functions/queue_text.sql
-- requires: walk_start.sql walk_namespaces.sql ceil_div.sql
create or replace function outbox.queue_text(namespace text, shard int, node text, config outbox.config)
returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
-- How far the walk of a node (null: of the last one that claimed from the shard) has to go to a namespace
-- with ripe messages: past how many others, and in about how many claims (INV-18). Counts up to
-- config.count_cap.
declare
  v_cursor text;
  v_batch  int;
  v_before bigint;
begin
  select w.namespace into v_cursor from outbox.walk_start(coalesce(queue_text.node, ''), array[queue_text.shard]) as w;
  v_batch := coalesce((select w.batch from outbox.walk as w
                       where w.node = queue_text.node or w.namespace = v_cursor
                       order by w.node = queue_text.node desc, w.claimed_at desc limit 1), 100);
  select w.n - 1 into v_before
  from outbox.walk_namespaces(v_cursor, false, v_cursor, (queue_text.config).count_cap, null) as w
  where w.namespace = queue_text.namespace;
  return case when v_before is null then format('more than %s namespaces come before it in the walk', (queue_text.config).count_cap)
              when v_before = 0 then 'it comes next in the walk'
              else format('%s before it in the walk, about %s of %s messages',
                          case v_before when 1 then '1 namespace comes' else v_before || ' namespaces come' end,
                          case when v_before < v_batch then '1 claim' else v_before / v_batch + 1 || ' claims' end, v_batch) end;
end $$;
comment on function outbox.queue_text is 'How far a walk has to go to a namespace, as text';
revoke all on function outbox.queue_text from public;
-- <<< sql/functions/queue_text.sql

-- >>> sql/functions/set_quota.sql
-- requires: bad_argument.sql bound_transaction.sql check_key.sql lock_class.sql
create or replace function outbox.set_quota(namespace text, quota int, strict boolean default null)
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Sets how many messages of a namespace may be claimed at a time, cluster-wide, from the
-- next claim on; 0 holds everything. A null leaves that value as it is; clear_quota()
-- goes back to the default. strict: never above the quota, whoever claims; claims of
-- the namespace then exclude each other. Marking one strict waits for the claims under
-- way, which do not know of it, and keeps new ones off until this transaction ends.
begin
  perform outbox.check_key('set_quota', 'namespace', set_quota.namespace);
  if set_quota.quota < 0 then
    perform outbox.bad_argument('set_quota', 'quota', format('is %s', set_quota.quota), 'Give 0 or more.');
  end if;
  if set_quota.strict then
    perform outbox.bound_transaction(c.claim_idle_timeout) from outbox.config as c;
    perform pg_advisory_xact_lock(outbox.lock_class(), s.shard)
    from generate_series(0, (select c.shard_count - 1 from outbox.config as c)) as s(shard);
  end if;
  insert into outbox.namespace as n (namespace, quota, strict)
  values (set_quota.namespace, set_quota.quota, coalesce(set_quota.strict, false))
  on conflict on constraint namespace_pkey do update
    set quota = coalesce(set_quota.quota, n.quota), strict = coalesce(set_quota.strict, n.strict);
end $$;
comment on function outbox.set_quota is 'Sets a namespace''s quota and strictness; null leaves as it is';
revoke all on function outbox.set_quota from public;
-- <<< sql/functions/set_quota.sql

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

drop index outbox.pending_lane; -- no function that reads it is left

-- What the functions of before have written since the migration before the last: it waits for its time.
update outbox.pending set ripe = false where ripe and visible_after > clock_timestamp();

insert into outbox.migration (version) values (11);
