create or replace function outbox.lock_class()
returns int
language sql stable parallel safe
-- The class of this outbox's advisory locks: the oid of outbox.pending (an oid is
-- unsigned, hence the wrap), so that an application's own locks cannot collide.
-- Keys 0 to 1023 are shards, negative ones are nodes (see node_lock), 1024 is cancel_lock, 1025 share_lock,
-- 1026 pass_token, 1027 fold_lock, 1028 hold_events.
begin atomic
  select 'outbox.pending'::regclass::oid::bigint::bit(32)::int;
end;
comment on function outbox.lock_class is 'The class (first key) of the outbox''s advisory locks';
revoke all on function outbox.lock_class from public;
