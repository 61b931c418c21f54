create or replace function outbox.share_lock()
returns int
language sql immutable parallel safe
-- The second key of the lock under which shards are given to nodes (see lock_class).
begin atomic
  select 1025;
end;
comment on function outbox.share_lock is 'The key of the lock under which shards are given to nodes';
revoke all on function outbox.share_lock from public;
