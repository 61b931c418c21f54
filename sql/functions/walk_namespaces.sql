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
