-- requires: walk_routes.sql walk_lanes.sql
create or replace function outbox.due_routes(namespace text, node text, next_held int[], now timestamptz, max_routes int)
returns table (n int, task_queue text, due boolean)
language sql stable
-- The routes of a namespace that have due messages on held shards and are not paused,
-- out of the first max_routes from behind the one that the node served last (where it never did,
-- that another node did, best one whose first shard is the same: see walk_start). The last of
-- max_routes is here even if it is not due: so far has the claim looked. Lazy: the caller's
-- LIMIT says how many it needs.
begin atomic
  select r.n, r.task_queue, y.due
  from (select coalesce(
          (select t.task_queue from outbox.route as t
           where t.namespace = due_routes.namespace and t.node = due_routes.node),
          (select t.task_queue from outbox.route as t
           where t.namespace = due_routes.namespace
           order by t.shard is not distinct from due_routes.next_held[1] desc, t.served_at desc limit 1), '') as after
        offset 0) as s -- apart, for the next call to be inlined
  cross join lateral (
    select x.* from outbox.walk_routes(due_routes.namespace, s.after) as x
    limit due_routes.max_routes
  ) as r
  cross join lateral (
    select not exists (select from outbox.pause as p
                       where p.namespace = due_routes.namespace and p.task_queue = r.task_queue)
       and not exists (select from outbox.pause as p
                       where p.namespace is null and p.task_queue = r.task_queue)
       and (due_routes.next_held[r.shard + 1] = r.shard and r.head <= due_routes.now
            or exists (select from outbox.walk_lanes(due_routes.namespace, r.task_queue, 0, due_routes.next_held) as l
                       where l.head <= due_routes.now)) as due
    offset 0 -- evaluate it once
  ) as y
  where y.due or r.n = due_routes.max_routes;
end;
comment on function outbox.due_routes is 'Routes of a namespace that a claim may serve, in turn';
revoke all on function outbox.due_routes from public;
