-- requires: node_lock.sql
create or replace function outbox.lock_holders(node text)
returns table (shard int, pid int, session text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Who holds locks of this outbox, other than this session: those of shards, and that of
-- the node (shard null).
begin
  return query
  select case when l.objid < 2147483648 then l.objid::bigint::int end, l.pid,
         coalesce(format('pid %s', l.pid) || ' (' || concat_ws(', ', nullif(a.application_name, ''), a.usename) || ')',
                  'a prepared transaction (see pg_prepared_xacts)')
  from pg_locks as l
  left join pg_stat_activity as a on a.pid = l.pid
  where l.locktype = 'advisory' and l.classid = 'outbox.pending'::regclass and l.objsubid = 2 and l.granted
    and l.database = (select d.oid from pg_database as d where d.datname = current_database())
    and l.pid is distinct from pg_backend_pid()
    and (l.objid < 1024 or l.objid::bigint = outbox.node_lock(lock_holders.node)::bigint + 4294967296);
end $$;
comment on function outbox.lock_holders is 'Other sessions that hold shards, or this node''s lock';
revoke all on function outbox.lock_holders from public;
