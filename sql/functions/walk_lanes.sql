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
