-- requires: bad_argument.sql check_key.sql
create or replace function outbox.heartbeat(
  node text, shards int[], paused text default null, in_flight_bytes bigint default 0)
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Says that a node lives, what it owns, and how it is. Only this makes a live node, and
-- only leave(), or config.node_lapse without it, ends one; a claim does neither.
begin
  perform outbox.check_key('heartbeat', 'node', heartbeat.node);
  if heartbeat.shards is null then
    perform outbox.bad_argument('heartbeat', 'shards', 'is null', 'Give the node''s shards; for none, ''{}''.');
  end if;
  insert into outbox.node as n (node, heartbeat_at, shards, paused, in_flight_bytes)
  values (heartbeat.node, clock_timestamp(), heartbeat.shards, left(heartbeat.paused, 1000),
          greatest(coalesce(heartbeat.in_flight_bytes, 0), 0))
  on conflict on constraint node_pkey do update
    set heartbeat_at = excluded.heartbeat_at, shards = excluded.shards, paused = excluded.paused,
        in_flight_bytes = excluded.in_flight_bytes;
end $$;
comment on function outbox.heartbeat is 'Says that a node lives, what it owns, and how it is';
revoke all on function outbox.heartbeat from public;
