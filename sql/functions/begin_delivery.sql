-- requires: bad_argument.sql check_settle.sql
create or replace function outbox.begin_delivery(ids bigint[], tokens bigint[], together int)
returns table (id bigint, claim_token bigint)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- Tells the outbox, before it is done, that the delivery of suspect messages begins (claim_fair's
-- column suspect is above 0), and how many such messages the caller has under way together at
-- most. If the caller's node dies, rescue() knows then which of them may have killed it. Commit
-- it before the payloads are read. Returns those noted; the others were lost, or somebody has
-- them locked: begin none of them. It never waits.
begin
  perform outbox.check_settle('begin_delivery', begin_delivery.ids, begin_delivery.tokens);
  if coalesce(begin_delivery.together, 0) < 1 then
    perform outbox.bad_argument('begin_delivery', 'together', 'is null or below 1',
      'Give how many suspect messages are under way at a time, 1 if it is one by one.');
  end if;
  return query
  update outbox.claimed as d set begun = least(begin_delivery.together, 32767)
  where d.id = any (array(
    select c.id
    from (select distinct u.id, u.token from unnest(begin_delivery.ids, begin_delivery.tokens) as u(id, token)) as u
    cross join lateral (
      select c.id, c.claim_token + 0 as token from outbox.claimed as c where c.id = u.id for update skip locked
    ) as c
    where c.token = u.token))
  returning d.id, d.claim_token;
end $$;
comment on function outbox.begin_delivery is 'Notes that suspect messages are about to be delivered, and how many together';
revoke all on function outbox.begin_delivery from public;
