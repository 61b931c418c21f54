-- requires: bad_argument.sql failed_attempts.sql
create or replace function outbox.rescue(max int default 1000)
returns table (id bigint, state text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
-- Takes up to max messages whose lease has run out from a node that is dead or stuck:
-- due again at once, or failed where their attempts are used up. The attempt stays
-- charged, so a message that kills its workers ends as failed (INV-10). Any node may
-- call it; two that do share the work, and a settle under way wins.
declare
  v_now timestamptz := clock_timestamp();
  v_ids bigint[];
  v_tokens bigint[];
begin
  if coalesce(rescue.max, 0) < 1 then
    perform outbox.bad_argument('rescue', 'max', 'is null or below 1', 'Give the most messages to take.');
  end if;
  select array_agg(x.id), array_agg(x.claim_token) into v_ids, v_tokens
  from (select c.id, c.claim_token from outbox.claimed as c
        where c.lease_until <= v_now
        order by c.lease_until limit rescue.max
        for update skip locked) as x;
  if v_ids is null then
    return;
  end if;
  return query
  select f.id, f.state
  from outbox.failed_attempts(v_ids, v_ids, v_tokens,
         array_fill('lease expired: its node died, or it outlived --delivery-timeout'::text, array[cardinality(v_ids)]),
         array_fill('0'::interval, array[cardinality(v_ids)]), false) as f;
end $$;
comment on function outbox.rescue is 'Takes messages back whose lease has run out; what became of each';
revoke all on function outbox.rescue from public;
