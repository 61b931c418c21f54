create or replace function outbox.shard_of(dispatch_key text, shard_count int)
returns int
language sql immutable parallel safe
-- The shard of a dispatch key: 0 to shard_count - 1, evenly spread. It is computed
-- once, at enqueue, and stored, so that a restore on another platform moves nothing.
-- The "C" collation keeps the hash apart from the database's own.
begin atomic
  select ((hashtextextended(shard_of.dispatch_key collate "C", 0::bigint) & 9223372036854775807) % shard_of.shard_count::bigint)::int;
end;
comment on function outbox.shard_of is 'The shard that a dispatch key hashes to';
revoke all on function outbox.shard_of from public;
