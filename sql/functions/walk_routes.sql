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
