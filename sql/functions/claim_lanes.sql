-- requires: walk_lanes.sql
create or replace function outbox.claim_lanes(namespace text, task_queue text, first int, next_held int[], now timestamptz)
returns table (shard int)
language sql stable
-- The lanes of a route that a claim reads, in their order: the first one, whatever it holds,
-- then those that have due messages, which costs a descent each to find out. Lazy.
begin atomic
  select claim_lanes.first as shard
  union all
  select l.shard
  from outbox.walk_lanes(claim_lanes.namespace, claim_lanes.task_queue, claim_lanes.first + 1, claim_lanes.next_held) as l
  where l.head <= claim_lanes.now and l.shard <> claim_lanes.first;
end;
comment on function outbox.claim_lanes is 'Lanes of a route that a claim reads, in order';
revoke all on function outbox.claim_lanes from public;
