-- requires: node_lock.sql claim_locks.sql
create or replace function outbox.lock_holders(node text)
returns table (shard int, pid int, session text)
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
  -- Who holds locks of this outbox, other than this session: those of shards, and that of
  -- the node (shard null).
  select case when l.key >= 0 then l.key end, l.pid, l.session
  from outbox.claim_locks() as l
  where l.key between 0 and 1023 or l.key = outbox.node_lock(lock_holders.node);
$$;
comment on function outbox.lock_holders is 'Other sessions that hold shards, or this node''s lock';
revoke all on function outbox.lock_holders from public;
