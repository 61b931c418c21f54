create or replace function outbox.route_start(namespace text, node text, next_held int[])
returns table (task_queue text)
language sql stable
-- The route of a namespace behind which a node's next search begins: the one that the node served
-- last. Where the node never served the namespace, the one that another node served last, best one whose
-- first shard is the same, for the reason that walk_start() gives. Null: from the beginning.
begin atomic
  select coalesce(
    (select t.task_queue from outbox.route as t
     where t.namespace = route_start.namespace and t.node = route_start.node),
    (select t.task_queue from outbox.route as t
     where t.namespace = route_start.namespace
     order by t.shard is not distinct from route_start.next_held[1] desc, t.served_at desc limit 1));
end;
comment on function outbox.route_start is 'The route behind which a node''s next search in a namespace begins';
revoke all on function outbox.route_start from public;
