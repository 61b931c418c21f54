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
