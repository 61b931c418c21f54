-- requires: walk_routes.sql walk_lanes.sql unripe_due.sql
create or replace function outbox.count_due(namespace text, next_held int[], now timestamptz, cap int)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- How many messages of a namespace are due on held shards, those included that the next claim makes
-- ripe; counts no further than cap.
begin
  return (
    select count(*)
    from ((select
          from outbox.walk_routes(count_due.namespace) as r
          cross join lateral outbox.walk_lanes(count_due.namespace, r.task_queue, 0, count_due.next_held) as l
          cross join lateral (
            select from outbox.pending as p
            where p.ripe and p.ring = outbox.ring(count_due.namespace) and p.namespace = count_due.namespace
              and p.route_ring = outbox.ring(r.task_queue) and p.task_queue = r.task_queue and p.shard = l.shard
              and p.visible_after <= count_due.now
            limit count_due.cap
          ) as p
          limit count_due.cap)
          union all
          (select from outbox.unripe_due(count_due.namespace, count_due.next_held, count_due.now, count_due.cap))
          limit count_due.cap) as x
  );
end $$;
comment on function outbox.count_due is 'Due messages of a namespace on held shards, up to a cap';
revoke all on function outbox.count_due from public;
