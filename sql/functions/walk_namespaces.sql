create or replace function outbox.walk_namespaces(after text, wrapped boolean, until text)
returns table (n int, namespace text, wrapped boolean, task_queue text, shard int, head timestamptz, sole boolean)
language sql stable
-- The namespaces that have pending messages, in the order of their names, from behind
-- "after" on and, unless already wrapped, once around to "until". A loose index scan:
-- one descent of pending_lane a namespace, however many messages it has; the row it
-- lands on is the head of the namespace's first lane. A second one looks for the next
-- route: where that is another namespace's, this one has a sole route, and the step to the
-- next is done already. Lazy: the caller's LIMIT says how far it walks. (No set clause: it would forbid inlining. So would a sub-select among
-- the arguments.)
begin atomic
  with recursive walk(n, namespace, wrapped, task_queue, shard, head,
                      next_namespace, next_task_queue, next_shard, next_head) as (
    select 0, walk_namespaces.after collate "C", walk_namespaces.wrapped, null::text collate "C", null::int,
           null::timestamptz, null::text collate "C", null::text collate "C", null::int, null::timestamptz
    union all
    select w.n + 1, x.namespace, x.wrapped, x.task_queue, x.shard, x.head,
           y.namespace, y.task_queue, y.shard, y.head
    from walk as w
    cross join lateral (
      (select w.next_namespace as namespace, w.wrapped, w.next_task_queue as task_queue, w.next_shard as shard,
              w.next_head as head
       where w.next_namespace <> w.namespace)
      union all
      (select p.namespace, w.wrapped, p.task_queue, p.shard, p.visible_after
       from outbox.pending as p
       where p.namespace > w.namespace and (w.n = 0 or w.next_namespace = w.namespace)
       order by p.namespace, p.task_queue, p.shard, p.visible_after limit 1)
      union all
      (select p.namespace, true, p.task_queue, p.shard, p.visible_after
       from outbox.pending as p
       where not w.wrapped
       order by p.namespace, p.task_queue, p.shard, p.visible_after limit 1)
      limit 1
    ) as x
    left join lateral (
      select p.namespace, p.task_queue, p.shard, p.visible_after as head
      from outbox.pending as p
      where (p.namespace, p.task_queue) > (x.namespace, x.task_queue)
      order by p.namespace, p.task_queue, p.shard, p.visible_after limit 1
    ) as y on true
    where not (x.wrapped and x.namespace > walk_namespaces.until)
  )
  select w.n, w.namespace, w.wrapped, w.task_queue, w.shard, w.head, w.next_namespace is distinct from w.namespace
  from walk as w where w.n > 0;
end;
comment on function outbox.walk_namespaces is 'Namespaces with pending messages, by loose index scan';
revoke all on function outbox.walk_namespaces from public;
