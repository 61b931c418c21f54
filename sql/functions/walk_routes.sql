create or replace function outbox.walk_routes(namespace text, after text)
returns table (n int, task_queue text)
language sql stable
-- The task queues of a namespace that have pending messages, from behind "after" on
-- and once around ('' for all, by name). One descent of pending_lane each; lazy.
begin atomic
  with recursive walk(n, task_queue, wrapped) as (
    select 0, walk_routes.after collate "C", walk_routes.after = ''
    union all
    select w.n + 1, x.task_queue, x.wrapped
    from walk as w
    cross join lateral (
      (select p.task_queue, w.wrapped from outbox.pending as p
       where p.namespace = walk_routes.namespace and p.task_queue > w.task_queue
       order by p.task_queue limit 1)
      union all
      (select p.task_queue, true from outbox.pending as p
       where not w.wrapped and p.namespace = walk_routes.namespace
       order by p.task_queue limit 1)
      limit 1
    ) as x
    where walk_routes.after = '' or not (x.wrapped and x.task_queue > walk_routes.after)
  )
  select w.n, w.task_queue from walk as w where w.n > 0;
end;
comment on function outbox.walk_routes is 'Routes of a namespace with pending messages, by loose index scan';
revoke all on function outbox.walk_routes from public;
