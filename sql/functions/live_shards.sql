-- requires: is_live.sql
create or replace function outbox.live_shards(now timestamptz)
returns table (node text, shard int)
language sql stable
-- The shards that live nodes own: those that they name themselves, and those that they
-- were given.
begin atomic
  with live as materialized (
    select n.node, n.shards
    from outbox.config as g
    join outbox.node as n on outbox.is_live(n.heartbeat_at, live_shards.now, g.node_lapse)
  )
  select l.node, s.shard from live as l cross join lateral unnest(l.shards) as s(shard)
  union all
  select l.node, s.shard from live as l join outbox.shard as s on s.node = l.node where l.shards is null;
end;
comment on function outbox.live_shards is 'The shards that live nodes own';
revoke all on function outbox.live_shards from public;
