-- requires: lock_class.sql
create or replace function outbox.cancel_lock()
returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
  -- Cancels wait for each other: each locks two lists of messages, pending and claimed, and
  -- may have to begin again, so that no order of ids keeps two from a deadlock. The key is
  -- behind those of shards. The read of outbox.config tells a cancel from a stranger (see stray_keys).
  select c.shard_count from outbox.config as c;
  select pg_advisory_xact_lock(outbox.lock_class(), 1024);
$$;
comment on function outbox.cancel_lock is 'Makes cancels wait for each other';
revoke all on function outbox.cancel_lock from public;
