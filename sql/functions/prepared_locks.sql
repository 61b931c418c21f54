create or replace function outbox.prepared_locks()
returns table (virtualtransaction text, gid text, owner name, prepared timestamptz)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  -- The prepared transactions of this database, by what pg_locks calls each: it names no session,
  -- and only the lock on the transaction's own number tells which one it is.
  select l.virtualtransaction, x.gid, x.owner, x.prepared
  from pg_prepared_xacts as x
  join pg_locks as l on l.locktype = 'transactionid' and l.transactionid = x.transaction and l.mode = 'ExclusiveLock' and l.pid is null
  where x.database = current_database();
$$;
comment on function outbox.prepared_locks is 'Prepared transactions of this database, as pg_locks names them';
revoke all on function outbox.prepared_locks from public;
