-- requires: route_paused.sql route_gate.sql
create or replace function outbox.due_routes(
  namespace text, start text, next_held int[], now timestamptz, max_routes int, budget int, gates int)
returns table (n int, task_queue text, due boolean, vain int, own int, common int)
language sql stable
-- The routes of a namespace that a claim may serve: they have due messages on held shards, and
-- are neither paused nor held (own and common: their gates, see route_gate; gates is that of claim_walk).
-- In the order of the ring, from behind the route "start" (see route_start; null:
-- from the beginning) on, once around. One row a route; then, if LIMIT has not ended the search, one
-- last row that is not due: its task_queue is null if the search went all around, else the last
-- route that was looked at. Before a new route the search is cut if it has looked at max_routes of
-- them, or if as many descents as budget says were vain. Lazy: LIMIT says how many are needed.
--
-- A loose index scan of pending_ripe, one descent for each row of the recursion. From a lane
-- without due messages it goes to the next held shard of the route; from a route that is due,
-- paused or held, to the next route (no shard has the number 2147483647). A descent that finds no
-- due route is vain.
begin atomic
  with recursive look(n, routes, route_ring, task_queue, shard, wrapped, due, vain, ended, start_ring, start_queue, own, common) as (
    select 0, 0, coalesce(outbox.ring(due_routes.start), -2147483648), coalesce(due_routes.start, '') collate "C", 2147483647,
           due_routes.start is null, false, 0, false, coalesce(outbox.ring(due_routes.start), 2147483647),
           due_routes.start collate "C", null::int, null::int
    union all
    select l.n + 1, l.routes + z.is_next::int, x.route_ring,
           case when z.around then null when z.ended then l.task_queue else x.task_queue end,
           case when v.due or z.stopped then 2147483647 else coalesce(due_routes.next_held[x.shard + 2], 2147483647) end,
           x.wrapped, v.due, l.vain + (not v.due)::int, z.ended, l.start_ring, l.start_queue,
           case when z.is_next then z.own else l.own end, case when z.is_next then z.common else l.common end
    from look as l
    left join lateral (
      (select p.route_ring, p.task_queue, p.shard, p.visible_after as head, l.wrapped
       from outbox.pending as p
       where p.ripe and p.ring = outbox.ring(due_routes.namespace) and p.namespace = due_routes.namespace
         and (p.route_ring, p.task_queue, p.shard) >= (l.route_ring, l.task_queue, l.shard)
       order by p.route_ring, p.task_queue, p.shard, p.visible_after limit 1)
      union all
      (select p.route_ring, p.task_queue, p.shard, p.visible_after, true
       from outbox.pending as p
       where not l.wrapped and p.ripe and p.ring = outbox.ring(due_routes.namespace) and p.namespace = due_routes.namespace
       order by p.route_ring, p.task_queue, p.shard, p.visible_after limit 1)
      limit 1
    ) as x on true
    cross join lateral (
      select y.*, y.around or y.is_next and (l.routes >= due_routes.max_routes or l.vain >= due_routes.budget) as ended,
             y.is_next and (least(g.own, g.common) = 0
                            or (select r.paused from outbox.route_paused(due_routes.namespace, x.task_queue, due_routes.now) as r)) is true as stopped,
             g.own, g.common
      from (select x.task_queue is null
                   or (x.wrapped and (x.route_ring, x.task_queue) > (l.start_ring, l.start_queue)) is true as around,
                   l.n = 0 or x.task_queue is distinct from l.task_queue as is_next
            offset 0) as y
      left join lateral (
        select r.* from outbox.route_gate(due_routes.namespace, x.task_queue, due_routes.now, due_routes.gates) as r
        where due_routes.gates > 0 and y.is_next
      ) as g on true
      offset 0
    ) as z
    cross join lateral (
      select (not z.ended and not z.stopped and due_routes.next_held[x.shard + 1] = x.shard and x.head <= due_routes.now) is true as due
      offset 0
    ) as v
    where not l.ended
  )
  select l.n, l.task_queue, l.due, l.vain, l.own, l.common from look as l where l.due or l.ended;
end;
comment on function outbox.due_routes is 'Routes of a namespace that a claim may serve, in turn';
revoke all on function outbox.due_routes from public;
