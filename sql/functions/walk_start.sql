create or replace function outbox.walk_start(node text, shards int[])
returns table (namespace text, round bigint, edge bigint, edge_shards int[])
language sql stable
-- Where a node's walk goes on. A node that has never claimed goes on where another is, so that
-- nodes that live for one sweep rotate too: where the last one that claimed from the same shards is,
-- else from some of them, else any. (Were it any at once, nodes with different shards that
-- take turns would each go on where the other is, and could pass over the same tenants for ever.)
-- The edge is the node's own: of others, it says nothing.
begin atomic
  (select w.namespace, w.round, w.edge, w.edge_shards
   from outbox.walk as w where w.node = walk_start.node)
  union all
  (select w.namespace, w.round, 0::bigint as edge, null::int[] as edge_shards
   from outbox.walk as w
   order by w.edge_shards = walk_start.shards desc, w.edge_shards && walk_start.shards desc, w.claimed_at desc limit 1)
  union all
  select '' as namespace, 0::bigint as round, 0::bigint as edge, null::int[] as edge_shards
  limit 1;
end;
comment on function outbox.walk_start is 'Where a node''s walk goes on';
revoke all on function outbox.walk_start from public;
