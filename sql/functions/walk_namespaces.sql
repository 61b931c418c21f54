create or replace function outbox.walk_namespaces(after text, wrapped boolean, until text, size int, detours outbox.detour[])
returns table (n int, namespace text, wrapped boolean, task_queue text, shard int, head timestamptz, sole boolean,
               pages bigint, pages_within bigint, detoured boolean,
               task_queues text[], shard_2 int, head_2 timestamptz, shard_3 int, head_3 timestamptz)
language sql stable
-- Up to size namespaces that have ripe messages, in the order of the ring, from behind
-- "after" on and, unless already wrapped, once around to "until"; with the head of the
-- first lane of each. A loose index scan: a step goes to the next route, and from a
-- fourth route of the same namespace to the next namespace. So a namespace costs as many
-- descents of pending_ripe as it has routes (one: sole), four at most, however many messages it has.
-- Where it has two or three, task_queues are all of them, and shard_2 to head_3 are the first lanes of the others.
-- With more, some of the four are in vain: where most namespaces have more, two are enough to know.
-- Detours, null for none, are taken: behind the namespace "after" of one, the
-- walk goes on at "upto". pages is how many pages of the table the step to the namespace read,
-- pages_within the longest step to another of its routes, and detoured whether the former took a detour. (No
-- set clause: it would forbid inlining.)
begin atomic
  with recursive walk(n, nth, most, vain, ring, namespace, wrapped, route_ring, last_queue, task_queue, shard, head,
                      task_queue_2, shard_2, head_2, task_queue_3, shard_3, head_3, read, pages, pages_within, upto, detoured) as (
    select 0, 4, 4, 0, outbox.ring(walk_namespaces.after), walk_namespaces.after collate "C", walk_namespaces.wrapped, null::int, null::text collate "C",
           null::text collate "C", null::int, null::timestamptz, null::text collate "C", null::int, null::timestamptz,
           null::text collate "C", null::int, null::timestamptz, pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass), 0::bigint, 0::bigint,
           case when walk_namespaces.detours is not null then (
             select d.upto collate "C" from unnest(walk_namespaces.detours) as d where d.after = walk_namespaces.after order by d.claims desc limit 1) end,
           false
    union all
    select w.n + x.is_next::int, case when x.is_next then 1 else w.nth + 1 end,
           case when not x.is_next then w.most when w.vain > 3 then 2 else 4 end,
           case when x.is_next then w.vain - (w.nth between 2 and w.most - 1)::int else w.vain + (w.nth = 3)::int end,
           x.ring, x.namespace, x.wrapped, x.route_ring, x.task_queue,
           case when x.is_next then x.task_queue else w.task_queue end, case when x.is_next then x.shard else w.shard end,
           case when x.is_next then x.head else w.head end,
           case when not x.is_next and w.nth = 1 then x.task_queue else w.task_queue_2 end,
           case when not x.is_next and w.nth = 1 then x.shard else w.shard_2 end,
           case when not x.is_next and w.nth = 1 then x.head else w.head_2 end,
           case when not x.is_next and w.nth = 2 then x.task_queue else w.task_queue_3 end,
           case when not x.is_next and w.nth = 2 then x.shard else w.shard_3 end,
           case when not x.is_next and w.nth = 2 then x.head else w.head_3 end,
           pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass),
           case when x.is_next then pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) - w.read else w.pages end,
           case when x.is_next then 0 else greatest(pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) - w.read, w.pages_within) end,
           case when walk_namespaces.detours is null then null when not x.is_next then w.upto else (
             select d.upto collate "C" from unnest(walk_namespaces.detours) as d where d.after = x.namespace order by d.claims desc limit 1) end,
           case when x.is_next then w.upto is not null else w.detoured end
    from walk as w
    cross join lateral (
      (select p.ring, p.namespace, w.wrapped, p.route_ring, p.task_queue, p.shard, p.visible_after as head, false as is_next
       from outbox.pending as p -- before a detour, another route
       where w.upto is not null and w.nth < w.most and p.ripe and p.ring = w.ring and p.namespace = w.namespace
         and (p.route_ring, p.task_queue) > (w.route_ring, w.last_queue)
       order by p.route_ring, p.task_queue, p.shard, p.visible_after limit 1)
      union all
      (select p.ring, p.namespace, w.wrapped, p.route_ring, p.task_queue, p.shard, p.visible_after as head,
              w.n = 0 or p.namespace <> w.namespace as is_next
       from outbox.pending as p
       where (w.upto is null or (outbox.ring(w.upto), w.upto) > (w.ring, w.namespace))
         and p.ripe and (p.ring, p.namespace, p.route_ring, p.task_queue) -- or past every route that there can be
             > (case when w.upto is null then w.ring else outbox.ring(w.upto) end, coalesce(w.upto, w.namespace),
                case when w.upto is not null then -2147483648 when w.nth < w.most then w.route_ring else 2147483647 end,
                case when w.upto is not null then '' when w.nth < w.most then w.last_queue else repeat(chr(1114111), 129) end)
       order by p.ring, p.namespace, p.route_ring, p.task_queue, p.shard, p.visible_after limit 1)
      union all
      (select p.ring, p.namespace, true, p.route_ring, p.task_queue, p.shard, p.visible_after, true
       from outbox.pending as p
       where p.ripe and not w.wrapped
         and (p.ring, p.namespace) >= (case when (outbox.ring(w.upto), w.upto) <= (w.ring, w.namespace) then outbox.ring(w.upto) else -2147483648 end,
                                       case when (outbox.ring(w.upto), w.upto) <= (w.ring, w.namespace) then w.upto else '' end)
       order by p.ring, p.namespace, p.route_ring, p.task_queue, p.shard, p.visible_after limit 1)
      limit 1
    ) as x
    where w.n <= walk_namespaces.size
      and not (x.wrapped and (x.ring, x.namespace) > (outbox.ring(walk_namespaces.until), walk_namespaces.until collate "C"))
  )
  select w.n, w.namespace, w.wrapped, w.task_queue, w.shard, w.head, w.nth = 1, w.pages, w.pages_within, w.detoured,
         case when w.most = 4 then case w.nth when 2 then array[w.task_queue, w.task_queue_2] when 3 then array[w.task_queue, w.task_queue_2, w.task_queue_3] end end,
         w.shard_2, w.head_2, w.shard_3, w.head_3
  from (select w.*, lead(w.nth, 1, 1) over (order by w.n, w.nth) = 1 as is_last from walk as w) as w
  where w.is_last and w.n between 1 and walk_namespaces.size; -- the last of a namespace has all of it
end;
comment on function outbox.walk_namespaces is 'Namespaces with ripe messages, by loose index scan';
revoke all on function outbox.walk_namespaces from public;
