-- requires: bad_argument.sql lock_class.sql
create or replace function outbox.pass_token(node text, seen bigint)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Makes sure that the next claim draws a later token than this one, which the node has seen.
-- True: it was not so, the database had gone back in time: by a fail-over to a standby that had
-- not got all, a restore, a crash that lost asynchronous commits, or a sequence that was set.
-- That is noted for check().
declare
  v_drawn bigint := (select s.last_value from outbox.claim_token as s);
begin
  if pass_token.seen is null or pass_token.seen - v_drawn < 4194304 then -- the random part of the last one
    return false;
  elsif pass_token.seen - v_drawn > 1152921504606846976 then -- 2^60: 2^38 claims ahead
    perform outbox.bad_argument('heartbeat', 'seen_token', format('is %s, the last one drawn is %s', pass_token.seen, v_drawn),
      'Give the largest claim_token that this process has got from claim_fair, or null.');
  elsif not pg_try_advisory_xact_lock(outbox.lock_class(), 1026) then
    return false; -- another node does it
  end if;
  v_drawn := (select s.last_value from outbox.claim_token as s); -- under the lock, nobody sets it lower
  if pass_token.seen - v_drawn < 4194304 then
    return false;
  end if;
  -- With room for a thousand claims: those that draw meanwhile do not take the lock, and must
  -- not have come past the new value.
  perform setval('outbox.claim_token', pass_token.seen + 1000 * 4194304::bigint);
  insert into outbox.went_back (at, node, seen, drawn) values (clock_timestamp(), pass_token.node, pass_token.seen, v_drawn);
  return true;
end $$;
comment on function outbox.pass_token is 'Moves the claim tokens past one that was seen; true: the database had gone back';
revoke all on function outbox.pass_token from public;
