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
       exists (select from outbox.pause as p where p.namespace = w.namespace and p.task_queue is null and coalesce(p.until > statement_timestamp(), true))
         or exists (select from outbox.pause as p where p.namespace is null and p.task_queue is null and coalesce(p.until > statement_timestamp(), true)) as paused,
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
select p.namespace, p.task_queue, p.since, p.by, p.note, p.until from outbox.pause as p
where coalesce(p.until > statement_timestamp(), true);
comment on view outbox.pauses is 'What is paused; a null namespace or task queue stands for any';
revoke all on outbox.pauses from public;

create or replace view outbox.holds as
select d.namespace, d.task_queue,
       case when d.state = 'recovering' then 'recovering' when d.held_until > clock_timestamp() then 'held' else 'probing' end::text as state,
       d.held_since as since, d.held_until as until, cardinality(d.failed) as failures, d.step, d.held_by as by, d.reason,
       c.id as probe_id, c.claimed_by as probed_by, d.lifted_at
from outbox.destination as d
left join lateral (
  select c.id, c.claimed_by from outbox.claimed as c where c.id = d.probe_id and c.claim_token + 0 = d.probe_token offset 0
) as c on d.state = 'held'
where d.state = 'held' or d.state = 'recovering' and d.lifted_at > clock_timestamp() - interval '10 s';
comment on view outbox.holds is 'Destinations that are held, or are coming back; a null namespace stands for any, until infinity: until it is lifted';
revoke all on outbox.holds from public;
