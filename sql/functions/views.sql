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
