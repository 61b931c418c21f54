-- requires: stray_keys.sql time_text.sql
create or replace function outbox.claim_locks()
returns table (key int, pid int, session text, stray boolean, remedy text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
-- Who holds advisory locks of this outbox, other than this session: key is a shard, below 0
-- a node, or above 1023 another of lock_class(). stray: the holder is not claiming, or was prepared
-- and forgotten. remedy is the SQL that ends the holder's session or transaction.
declare
  v_keys  int[];
  v_stray int[];
begin
  select array_agg(distinct l.objid::bigint::bit(32)::int) into v_keys
  from pg_locks as l
  where l.locktype = 'advisory' and l.classid = 'outbox.pending'::regclass and l.objsubid = 2 and l.granted
    and l.database = (select d.oid from pg_database as d where d.datname = current_database())
    and l.pid is distinct from pg_backend_pid();
  if v_keys is null then
    return;
  end if;
  v_stray := outbox.stray_keys(v_keys);
  return query
  select x.key, x.pid,
         case when x.pid is not null
              then format('pid %s%s', x.pid, ' (' || nullif(concat_ws(', ', nullif(a.application_name, ''), a.usename), '') || ')')
              else format('transaction %s, prepared by %s at %s', quote_literal(t.gid), t.owner, outbox.time_text(t.prepared, clock_timestamp())) end,
         x.key = any (v_stray),
         case when x.pid is not null then format('select pg_terminate_backend(%s)', x.pid)
              else format('rollback prepared %s', quote_literal(t.gid)) end
  from (select l.objid::bigint::bit(32)::int as key, l.pid, l.virtualtransaction
        from pg_locks as l
        where l.locktype = 'advisory' and l.classid = 'outbox.pending'::regclass and l.objsubid = 2 and l.granted
          and l.database = (select d.oid from pg_database as d where d.datname = current_database())
          and l.pid is distinct from pg_backend_pid()) as x
  left join pg_stat_activity as a on a.pid = x.pid
  left join outbox.prepared_locks() as t on x.pid is null and t.virtualtransaction = x.virtualtransaction
  order by x.key;
end $$;
comment on function outbox.claim_locks is 'Other sessions that hold advisory locks of this outbox';
revoke all on function outbox.claim_locks from public;
