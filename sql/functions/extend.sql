-- requires: check_settle.sql lock_claimed.sql span.sql
create or replace function outbox.extend(ids bigint[], tokens bigint[], lease interval default null)
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
-- Lets claims run on for a lease from now (null: config.lease). Returns the ids
-- extended; the rest were lost, and whoever works on them should stop.
declare
  v_ids   bigint[];
  v_lease interval := coalesce(extend.lease, (select c.lease from outbox.config as c));
begin
  perform outbox.check_settle('extend', extend.ids, extend.tokens);
  if v_lease not between '1 ms' and '1 day' then
    perform outbox.bad_argument('extend', 'lease', format('is %s', v_lease), 'Give up to a day, or null for config.lease.');
  end if;
  v_ids := outbox.lock_claimed(extend.ids, extend.tokens);
  return query
  update outbox.claimed as c set lease_until = clock_timestamp() + outbox.span(v_lease)
  where c.id = any (v_ids)
  returning c.id;
end $$;
comment on function outbox.extend is 'Lets claims run on; the ids extended, the rest were lost';
revoke all on function outbox.extend from public;
