create or replace function outbox.fold_lock()
returns int
language sql immutable parallel safe
-- The second key of the lock under which outbox.destination is written (see lock_class). Claims only try
-- for it.
begin atomic
  select 1027;
end;
comment on function outbox.fold_lock is 'The key of the lock under which outbox.destination is written';
revoke all on function outbox.fold_lock from public;
