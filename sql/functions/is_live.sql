create or replace function outbox.is_live(heartbeat_at timestamptz, now timestamptz, lapse interval)
returns boolean
language sql stable parallel safe
-- Whether a node is alive at an instant: its last heartbeat is no more than the lapse away.
-- One from the future, of a server that was ahead before a failover, lapses too.
-- Give now as a variable or a column, not as clock_timestamp(): it is read twice.
begin atomic
  select coalesce(is_live.heartbeat_at between is_live.now - is_live.lapse and is_live.now + is_live.lapse, false);
end;
comment on function outbox.is_live is 'Whether a node with this last heartbeat is alive';
revoke all on function outbox.is_live from public;
