create or replace function outbox.node_lock(node text)
returns int
language sql immutable parallel safe
-- The second key of a node's advisory lock: negative, so that it is no shard's. Two
-- names that collide cost one of them an empty claim now and then, nothing else.
begin atomic
  select (-1 - (hashtextextended(node_lock.node collate "C", 0::bigint) & 2147483647::bigint))::int;
end;
comment on function outbox.node_lock is 'The key of a node''s advisory lock';
revoke all on function outbox.node_lock from public;
