set local search_path = pg_catalog, pg_temp;
delete from outbox.migration where version = 11;

create index pending_lane on outbox.pending (namespace, task_queue, shard, visible_after, id);

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
    where p.pronamespace = 'outbox'::pg_catalog.regnamespace and p.proname in ('audit_claims', 'audit_schema', 'cancel', 'cancel_namespace', 'check', 'claim_fair', 'claim_walk', 'count_due', 'due_routes', 'explain_claim', 'heartbeat', 'hold_reason', 'leave', 'live_shards', 'node_processes', 'paused_routes', 'set_quota', 'share_out', 'unowned_shards', 'walk_namespaces', 'walk_routes', 'walk_start', 'why', null)
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

-- dropped: sql/functions/unowned_shards.sql
drop function outbox.unowned_shards();

-- dropped: sql/functions/set_quota.sql
drop function outbox.set_quota(namespace text, quota int, strict boolean);

-- dropped: sql/functions/queue_text.sql
drop function outbox.queue_text(namespace text, shard int, node text, config outbox.config);

-- dropped: sql/functions/node_processes.sql
drop function outbox.node_processes();

-- dropped: sql/functions/live_shards.sql
drop function outbox.live_shards(now timestamptz);

-- dropped: sql/functions/leave.sql
drop function outbox.leave(node text, process text);

-- dropped: sql/functions/heartbeat.sql
drop function outbox.heartbeat(node text, shards int[], paused text, in_flight_bytes bigint, process text, seen_token bigint);

-- dropped: sql/functions/share_out.sql
drop function outbox.share_out(now timestamptz);

-- dropped: sql/functions/explain_claim.sql
drop function outbox.explain_claim(node text, shards int[], batch int, max_bytes bigint, "only" text);

-- dropped: sql/functions/hold_reason.sql
drop function outbox.hold_reason(namespace text, verdict text, claimed int, ceiling int, quota int, next_held int[], now timestamptz);

-- dropped: sql/functions/paused_routes.sql
drop function outbox.paused_routes(namespace text, next_held int[], now timestamptz);

-- dropped: sql/functions/unripe_namespaces.sql
drop function outbox.unripe_namespaces(size int);

-- dropped: sql/functions/count_due.sql
drop function outbox.count_due(namespace text, next_held int[], now timestamptz, cap int);

-- dropped: sql/functions/unripe_due.sql
drop function outbox.unripe_due(namespace text, next_held int[], now timestamptz, cap int);

-- dropped: sql/functions/walk_routes.sql
drop function outbox.walk_routes(namespace text);

-- dropped: sql/functions/claim_fair.sql
drop function outbox.claim_fair(node text, shards int[], batch int, max_bytes bigint, payloads boolean);

-- dropped: sql/functions/claim_order.sql
drop function outbox.claim_order(candidates outbox.candidate[], wanted int[], slice int, batch int, max_bytes bigint, turn bigint, out picked outbox.candidate[], out passes int[], out left_out int);

-- dropped: sql/functions/claim_read.sql
drop function outbox.claim_read(node text, visits outbox.visit[], active int, width int, held int[], next_held int[], batch int, now timestamptz, for_claim boolean, config outbox.config, out candidates outbox.candidate[], out wanted int[], out rotating text[], out queues text[], out wading int, out pages bigint);

-- dropped: sql/functions/claim_lanes.sql
drop function outbox.claim_lanes(namespace text, task_queue text, first int, next_held int[], now timestamptz);

-- dropped: sql/functions/claim_walk.sql
drop function outbox.claim_walk(node text, next_held int[], held int, batch int, cursor text, round bigint, now timestamptz, oldest_token bigint, "only" text, for_claim boolean, config outbox.config, inout detours outbox.detour[], out visits outbox.visit[], out active int, out ended text, out width int, out several boolean);

-- dropped: sql/functions/namespace_paused.sql
drop function outbox.namespace_paused(namespace text);

-- dropped: sql/functions/route_start.sql
drop function outbox.route_start(namespace text, node text, next_held int[]);

-- dropped: sql/functions/due_routes.sql
drop function outbox.due_routes(namespace text, start text, next_held int[], now timestamptz, max_routes int, budget int);

-- dropped: sql/functions/route_paused.sql
drop function outbox.route_paused(namespace text, task_queue text);

-- dropped: sql/functions/walk_namespaces.sql
drop function outbox.walk_namespaces(after text, wrapped boolean, until text, size int, detours outbox.detour[]);

-- dropped: sql/functions/walk_detour.sql
drop function outbox.walk_detour(after text, landed text, pages bigint, is_its_own boolean);

-- dropped: sql/functions/ripen.sql
drop function outbox.ripen(held int[], next_held int[], now timestamptz, inout unripe_from timestamptz, inout unripe_from_id bigint, inout unripe_all_at timestamptz, inout unripe_namespace text, inout unripe_rest int, out ripened int, out again boolean);

-- dropped: sql/functions/walk_start.sql
drop function outbox.walk_start(node text, shards int[]);

-- dropped: sql/functions/check.sql
drop function outbox.check(newest bigint, max int);

-- dropped: sql/functions/ceil_div.sql
drop function outbox.ceil_div(a int, b int);

-- dropped: sql/functions/cancel_namespace.sql
drop function outbox.cancel_namespace(namespace text, max int);

-- dropped: sql/functions/cancel.sql
drop function outbox.cancel(dispatch_keys text[]);

-- dropped: sql/functions/settle_cancelled.sql
drop function outbox.settle_cancelled(ids bigint[], now timestamptz);

-- dropped: sql/functions/bound_transaction.sql
drop function outbox.bound_transaction(longest interval);

-- dropped: sql/functions/audit_schema.sql
drop function outbox.audit_schema();

-- dropped: sql/functions/audit_claims.sql
drop function outbox.audit_claims();

-- dropped: sql/functions/is_live.sql
drop function outbox.is_live(heartbeat_at timestamptz, now timestamptz, lapse interval);

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
    and exists (select from outbox.node as n where n.heartbeat_at > v_now - v_config.node_lapse);

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
               ('INV-14', 'pending_lane', false), ('INV-1', 'claimed_pkey', true), ('INV-14', 'claimed_namespace', false),
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
    select 'pending_lane', (select count(*) from (select from outbox.pending as p
                             order by p.namespace, p.task_queue, p.shard, p.visible_after, p.id offset 0) as x),
           (select count(*) from outbox.pending as p where p.ctid >= '(0,0)') where audit_indexes.is_full
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
  v_ids  bigint[];
  v_tids tid[];    -- of those locked
  v_now  timestamptz := clock_timestamp();
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
    -- Look-ups one by one, in the order of the ids: a join could read every message there
    -- is. Those in pending by range and order, which pending_lane does not have: it holds
    -- the id too, and could come into question.
    v_tids := array(
      select p.tid
      from unnest(v_ids) as u(id)
      cross join lateral (
        select p.ctid as tid from outbox.pending as p where p.id >= u.id and p.id <= u.id order by p.id limit 1 for update
      ) as p);
    return query
    with p as (
      delete from outbox.pending as d where d.ctid = any (v_tids)
      returning d.id, d.namespace, d.task_queue, d.shard, d.attempt, 'pending' as was
    ), s as (
      insert into outbox.settled (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
      select p.id, p.namespace, p.task_queue, p.shard, 'cancelled', p.attempt, v_now, session_user from p
    )
    select (select m.dispatch_key from outbox.message as m where m.id = p.id), p.was from p;
    v_tids := array(
      select c.tid
      from unnest(v_ids) as u(id)
      cross join lateral (select c.ctid as tid from outbox.claimed as c where c.id = u.id for update) as c);
    return query
    with c as (
      delete from outbox.claimed as d where d.ctid = any (v_tids)
      returning d.id, d.namespace, d.task_queue, d.shard, d.attempt, 'claimed' as was
    ), s as (
      insert into outbox.settled (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
      select c.id, c.namespace, c.task_queue, c.shard, 'cancelled', c.attempt, v_now, session_user from c
    )
    select (select m.dispatch_key from outbox.message as m where m.id = c.id), c.was from c;
    -- One that went from claimed to pending between the two statements is met again.
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
-- requires: bad_argument.sql check_key.sql cancel_lock.sql
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
  v_tids tid[];    -- of those locked
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
      (select c.id from outbox.claimed as c -- bounds of pairs, for no other index to come into question
       where (c.namespace, c.claim_token) >= (cancel_namespace.namespace, 0)
         and (c.namespace, c.claim_token) <= (cancel_namespace.namespace, 9223372036854775807) and c.id <= v_last
       order by c.namespace, c.claim_token limit cancel_namespace.max - v_done)
      limit cancel_namespace.max - v_done);
    v_tids := array( -- looked up as in cancel()
      select p.tid
      from (select u.id from unnest(v_ids) as u(id) order by u.id) as u
      cross join lateral (
        select p.ctid as tid from outbox.pending as p where p.id >= u.id and p.id <= u.id order by p.id limit 1 for update
      ) as p);
    with p as (
      delete from outbox.pending as d where d.ctid = any (v_tids)
      returning d.id, d.namespace, d.task_queue, d.shard, d.attempt
    )
    insert into outbox.settled (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
    select p.id, p.namespace, p.task_queue, p.shard, 'cancelled', p.attempt, v_now, session_user from p;
    get diagnostics v_some = row_count;
    v_done := v_done + v_some;
    v_tids := array(
      select c.tid
      from (select u.id from unnest(v_ids) as u(id) order by u.id) as u
      cross join lateral (select c.ctid as tid from outbox.claimed as c where c.id = u.id for update) as c);
    with c as (
      delete from outbox.claimed as d where d.ctid = any (v_tids)
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

-- >>> sql/functions/next_held.sql
create or replace function outbox.next_held(held int[], total int)
returns int[]
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
-- For each shard s of total, at s + 1: the first held shard from s on, null behind
-- the last. A shard is held where it is its own next. held is sorted.
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

-- >>> sql/functions/walk_namespaces.sql
create or replace function outbox.walk_namespaces(after text, wrapped boolean, until text, size int)
returns table (n int, namespace text, wrapped boolean, task_queue text, shard int, head timestamptz, sole boolean)
language sql stable
-- Up to size namespaces that have pending messages, in the order of their names, from
-- behind "after" on and, unless already wrapped, once around to "until"; with the head
-- of the first lane of each. A loose index scan: a step goes to the next route, and
-- from a second route of the same namespace to the next namespace. So a namespace costs
-- one descent of pending_lane if it has a sole route, and two otherwise, however many
-- messages it has. (No set clause: it would forbid inlining.)
begin atomic
  with recursive walk(n, nth, namespace, wrapped, task_queue, shard, head) as (
    select 0, 0, walk_namespaces.after collate "C", walk_namespaces.wrapped, null::text collate "C", null::int,
           null::timestamptz
    union all
    select w.n + x.is_next::int, case when x.is_next then 1 else 2 end, x.namespace, x.wrapped, x.task_queue, x.shard, x.head
    from walk as w
    cross join lateral (
      (select p.namespace, w.wrapped, p.task_queue, p.shard, p.visible_after as head,
              w.n = 0 or p.namespace <> w.namespace as is_next
       from outbox.pending as p
       where (p.namespace, p.task_queue) -- or behind any that a name can have
             > (w.namespace, case when w.nth = 1 then w.task_queue else repeat(chr(1114111), 129) end)
       order by p.namespace, p.task_queue, p.shard, p.visible_after limit 1)
      union all
      (select p.namespace, true, p.task_queue, p.shard, p.visible_after, true
       from outbox.pending as p
       where not w.wrapped
       order by p.namespace, p.task_queue, p.shard, p.visible_after limit 1)
      limit 1
    ) as x
    where w.n <= walk_namespaces.size and not (x.wrapped and x.namespace > walk_namespaces.until)
  )
  select w.n, w.namespace, w.wrapped, w.task_queue, w.shard, w.head, w.sole
  from (select w.*, lead(w.nth, 1, 1) over (order by w.n, w.nth) = 1 as sole from walk as w) as w
  where w.nth = 1 and w.n <= walk_namespaces.size;
end;
comment on function outbox.walk_namespaces is 'Namespaces with pending messages, by loose index scan';
revoke all on function outbox.walk_namespaces from public;
-- <<< sql/functions/walk_namespaces.sql

-- >>> sql/functions/walk_routes.sql
create or replace function outbox.walk_routes(namespace text, after text)
returns table (n int, task_queue text, shard int, head timestamptz)
language sql stable
-- The task queues of a namespace that have pending messages, from behind "after" on
-- and once around ('' for all, by name). One descent of pending_lane each; the row it
-- lands on is the head of the route's first lane. Lazy.
begin atomic
  with recursive walk(n, task_queue, wrapped, shard, head) as (
    select 0, walk_routes.after collate "C", walk_routes.after = '', null::int, null::timestamptz
    union all
    select w.n + 1, x.task_queue, x.wrapped, x.shard, x.head
    from walk as w
    cross join lateral (
      (select p.task_queue, w.wrapped, p.shard, p.visible_after as head
       from outbox.pending as p
       where p.namespace = walk_routes.namespace and p.task_queue > w.task_queue
       order by p.task_queue, p.shard, p.visible_after limit 1)
      union all
      (select p.task_queue, true, p.shard, p.visible_after
       from outbox.pending as p
       where not w.wrapped and p.namespace = walk_routes.namespace
       order by p.task_queue, p.shard, p.visible_after limit 1)
      limit 1
    ) as x
    where walk_routes.after = '' or not (x.wrapped and x.task_queue > walk_routes.after)
  )
  select w.n, w.task_queue, w.shard, w.head from walk as w where w.n > 0;
end;
comment on function outbox.walk_routes is 'Routes of a namespace with pending messages, by loose index scan';
revoke all on function outbox.walk_routes from public;
-- <<< sql/functions/walk_routes.sql

-- >>> sql/functions/walk_lanes.sql
create or replace function outbox.walk_lanes(namespace text, task_queue text, start int, next_held int[])
returns table (n int, shard int, head timestamptz)
language sql stable
-- The lanes of a route on held shards that have messages, from shard "start" on and
-- once around, each with the time at which its oldest message is due. One descent of
-- pending_lane each, and one for a run of shards that are not held: next_held[s + 1]
-- is the first held shard from s on (see next_held). Lazy.
begin atomic
  with recursive walk(n, shard, head, wrapped) as (
    select 0, walk_lanes.start - 1, null::timestamptz, false
    union all
    select w.n + 1, x.shard, x.head, x.wrapped
    from walk as w
    cross join lateral (
      (select p.shard, p.visible_after as head, w.wrapped from outbox.pending as p
       where p.namespace = walk_lanes.namespace and p.task_queue = walk_lanes.task_queue
         and p.shard >= walk_lanes.next_held[w.shard + 2]
       order by p.shard, p.visible_after limit 1)
      union all
      (select p.shard, p.visible_after, true from outbox.pending as p
       where not w.wrapped and walk_lanes.start > walk_lanes.next_held[1]
         and p.namespace = walk_lanes.namespace and p.task_queue = walk_lanes.task_queue
         and p.shard >= walk_lanes.next_held[1]
       order by p.shard, p.visible_after limit 1)
      limit 1
    ) as x
    where not (x.wrapped and x.shard >= walk_lanes.start)
  )
  select w.n, w.shard, w.head from walk as w
  where w.n > 0 and walk_lanes.next_held[w.shard + 1] = w.shard;
end;
comment on function outbox.walk_lanes is 'Lanes of a route with pending messages on held shards, by loose index scan';
revoke all on function outbox.walk_lanes from public;
-- <<< sql/functions/walk_lanes.sql

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
  -- Half of what the statement may take is left to the rest of the claim.
  v_deadline  timestamptz := least(claim_walk.now + interval '2 s',
                                   statement_timestamp() + nullif(current_setting('statement_timeout')::interval, '0') / 2);
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
  v_stricts   boolean[]; -- whether each is strict
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
           array_agg(x.n) filter (where x.verdict is null), array_agg(x.is_strict),
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
      if v_stricts[i] then
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

-- >>> sql/functions/count_due.sql
-- requires: walk_routes.sql walk_lanes.sql
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
-- How many messages of a namespace are due on held shards; counts no further than cap.
begin
  return (
    select count(*)
    from (select
          from outbox.walk_routes(count_due.namespace, '') as r
          cross join lateral outbox.walk_lanes(count_due.namespace, r.task_queue, 0, count_due.next_held) as l
          cross join lateral (
            select from outbox.pending as p
            where p.namespace = count_due.namespace and p.task_queue = r.task_queue and p.shard = l.shard
              and p.visible_after <= count_due.now
            limit count_due.cap
          ) as p
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
    insert into outbox.pending as p (id, namespace, task_queue, shard, visible_after, payload_bytes)
    select m.id, enqueue.namespace, enqueue.task_queue,
           outbox.shard_of(enqueue.dispatch_key, (select c.shard_count from outbox.config as c)), v_due,
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
        insert into outbox.pending as q (id, namespace, task_queue, shard, visible_after, payload_bytes)
        select m.id, m.namespace, m.task_queue, outbox.shard_of(m.dispatch_key, (select c.shard_count from outbox.config as c)),
               v_now + coalesce(outbox.span(u.delay), '0'), m.bytes
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
    from outbox.walk_routes(paused_routes.namespace, '') as r
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
  v_next timestamptz;
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
    from outbox.walk_routes(hold_reason.namespace, '') as r
    cross join lateral outbox.walk_lanes(hold_reason.namespace, r.task_queue, 0, hold_reason.next_held) as l
    where not exists (select from outbox.pause as p
                      where p.task_queue = r.task_queue and (p.namespace = hold_reason.namespace or p.namespace is null));
    return case when v_next <= hold_reason.now
                then 'due only on routes that this sweep does not come to (config.max_routes)'
                else coalesce(outbox.paused_routes(hold_reason.namespace, hold_reason.next_held, hold_reason.now),
                              'nothing due until ' || outbox.time_text(v_next, hold_reason.now),
                              'nothing pending on these shards') end;
  end if;
  return null;
end $$;
comment on function outbox.hold_reason is 'Why a claim takes nothing from a namespace';
revoke all on function outbox.hold_reason from public;
-- <<< sql/functions/hold_reason.sql

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

-- >>> sql/functions/share_out.sql
-- requires: lock_class.sql share_lock.sql
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
  v_from    timestamptz; -- live nodes have a heartbeat from there
  v_to      timestamptz; -- to there: one from the future, of a server that was ahead before a failover, lapses too
  v_settled boolean;
begin
  select c.* into strict v_config from outbox.config as c;
  v_from := share_out.now - v_config.node_lapse;
  v_to := share_out.now + v_config.node_lapse;
  with live as materialized (
    select n.node, n.shards from outbox.node as n where n.heartbeat_at between v_from and v_to
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
  if current_setting('idle_in_transaction_session_timeout')::interval not between '1 ms' and v_config.claim_idle_timeout then
    -- A heartbeat left open would keep all others from this: it may not stay open for long.
    perform set_config('idle_in_transaction_session_timeout',
                       (extract(epoch from v_config.claim_idle_timeout) * 1000)::bigint::text, true);
  end if;

  with live as materialized (
    select n.node, n.shards from outbox.node as n where n.heartbeat_at between v_from and v_to
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
-- requires: bad_argument.sql check_key.sql share_out.sql pass_token.sql
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

-- >>> sql/functions/leave.sql
-- requires: check_key.sql share_out.sql
create or replace function outbox.leave(node text, process text default null)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Ends a node that stops cleanly, and gives its shards to others. What it has claimed
-- stays claimed. False: no such node, or another process has the name by now.
declare
  v_left boolean;
begin
  perform outbox.check_key('leave', 'node', leave.node);
  delete from outbox.node as n where n.node = leave.node and (n.process = leave.process or leave.process is null or n.process is null);
  v_left := found;
  perform outbox.share_out(clock_timestamp());
  return v_left;
end $$;
comment on function outbox.leave is 'Ends a live node';
revoke all on function outbox.leave from public;
-- <<< sql/functions/leave.sql

-- >>> sql/functions/live_shards.sql
create or replace function outbox.live_shards(now timestamptz)
returns table (node text, shard int)
language sql stable
-- The shards that live nodes own: those that they name themselves, and those that they
-- were given.
begin atomic
  with live as materialized (
    select n.node, n.shards
    from outbox.config as g
    join outbox.node as n on n.heartbeat_at between live_shards.now - g.node_lapse and live_shards.now + g.node_lapse
  )
  select l.node, s.shard from live as l cross join lateral unnest(l.shards) as s(shard)
  union all
  select l.node, s.shard from live as l join outbox.shard as s on s.node = l.node where l.shards is null;
end;
comment on function outbox.live_shards is 'The shards that live nodes own';
revoke all on function outbox.live_shards from public;
-- <<< sql/functions/live_shards.sql

-- >>> sql/functions/node_processes.sql
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
  where n.process is not null and n.heartbeat_at > clock_timestamp() - g.node_lapse;
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
  for v_node in
    select w.node from outbox.walk as w
    where w.claimed_at < clock_timestamp() - interval '1 hour'
      and exists (select from outbox.walk as l where l.claimed_at > w.claimed_at)
    order by random() limit 100 -- so that those that stay, for the sake of a route, are in nobody's way
  loop
    if pg_try_advisory_xact_lock(outbox.lock_class(), outbox.node_lock(v_node)) then
      delete from outbox.route as r
      where r.ctid = any (array( -- ordered, which the primary key, that holds the node too, is not
              select x.ctid from outbox.route as x where x.node >= v_node and x.node <= v_node order by x.node limit 1000))
        and (r.served_at < clock_timestamp() - interval '30 days'
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

-- >>> sql/functions/set_quota.sql
-- requires: bad_argument.sql check_key.sql lock_class.sql
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
    perform set_config('idle_in_transaction_session_timeout', '10s', true);
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

-- >>> sql/functions/unowned_shards.sql
-- requires: live_shards.sql
create or replace function outbox.unowned_shards()
returns int[]
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
-- The shards that no live node owns: no sweep run claims from them. Where only sweep once
-- works, from cron, these are all.
begin
  return array(
    select s.shard from outbox.config as g cross join lateral generate_series(0, g.shard_count - 1) as s(shard)
    except
    select o.shard from outbox.live_shards(clock_timestamp()) as o
    order by 1);
end $$;
comment on function outbox.unowned_shards is 'The shards that no live node owns';
revoke all on function outbox.unowned_shards from public;
-- <<< sql/functions/unowned_shards.sql

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
left join lateral ( -- by range and order, which pending_lane does not have: it holds the id too
  select p.id, p.shard, p.attempt, p.visible_after from outbox.pending as p
  where p.id >= m.id and p.id <= m.id order by p.id limit 1
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

-- Names by a loose scan over five indexes, counts no further than config.count_cap:
-- the work is bounded by what is shown, not by the backlog. What is counted is ordered as
-- an index is, and in bounds that no other one serves.
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
       (select count(*) from (select from outbox.pending as p where p.namespace = w.namespace
                              order by p.task_queue, p.shard, p.visible_after limit g.count_cap) as x) as pending,
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
