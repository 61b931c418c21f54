create or replace function outbox.walk_start(node text, shards int[])
returns table (namespace text, round bigint, edge bigint, edge_shards int[],
               unripe_from timestamptz, unripe_from_id bigint, unripe_all_at timestamptz, unripe_namespace text, unripe_rest int,
               detours outbox.detour[])
language sql stable
-- Where a node's walk goes on. A node that has never claimed goes on where another is, so that
-- nodes that live for one sweep rotate too: where the last one that claimed from the same shards is,
-- else from some of them, else any. (The same shards first: two nodes with different shards that take
-- turns would go on from each other's cursor, and could skip the same tenants for ever.) The edges
-- and detours of others it does not take over.
begin atomic
  (select w.namespace, w.round, w.edge, w.edge_shards, w.unripe_from, w.unripe_from_id, w.unripe_all_at, w.unripe_namespace, w.unripe_rest, w.detours
   from outbox.walk as w where w.node = walk_start.node)
  union all
  (select w.namespace, w.round, 0::bigint as edge, null::int[] as edge_shards, '-infinity'::timestamptz as unripe_from,
          0::bigint as unripe_from_id, '-infinity'::timestamptz as unripe_all_at, w.unripe_namespace, 0 as unripe_rest, null::outbox.detour[] as detours
   from outbox.walk as w
   order by w.edge_shards = walk_start.shards desc, w.edge_shards && walk_start.shards desc, w.claimed_at desc limit 1)
  union all
  select '' as namespace, 0::bigint as round, 0::bigint as edge, null::int[] as edge_shards, '-infinity'::timestamptz as unripe_from,
         0::bigint as unripe_from_id, '-infinity'::timestamptz as unripe_all_at, '' as unripe_namespace, 0 as unripe_rest, null::outbox.detour[] as detours
  limit 1;
end;
comment on function outbox.walk_start is 'Where a node''s walk goes on';
revoke all on function outbox.walk_start from public;
