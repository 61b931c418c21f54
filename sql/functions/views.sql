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
