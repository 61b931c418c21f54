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
