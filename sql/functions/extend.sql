-- requires: bad_argument.sql check_settle.sql span.sql
create or replace function outbox.extend(ids bigint[], tokens bigint[], lease interval default null)
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
-- Lets claims run on for a lease from now (null: config.lease). Returns the ids that are
-- still this claim's; the rest were lost, and whoever works on them should stop. It never
-- waits: a row that somebody has locked, to settle it perhaps, is not extended and not
-- lost either, and keeps nobody from extending the others.
declare
  v_tids  tid[]; -- of those locked
  v_ids   bigint[];
  v_lease interval := coalesce(extend.lease, (select c.lease from outbox.config as c));
begin
  perform outbox.check_settle('extend', extend.ids, extend.tokens);
  if outbox.span(v_lease) not between '1 ms' and '1 day' then -- the span: '-10 years 3651 days' compares as 51 days
    perform outbox.bad_argument('extend', 'lease', format('is %s', v_lease), 'Give up to a day, or null for config.lease.');
  end if;
  v_tids := array(
    select c.tid
    from (select distinct u.id, u.token from unnest(extend.ids, extend.tokens) as u(id, token)) as u
    cross join lateral (
      select c.ctid as tid from outbox.claimed as c where c.id = u.id and c.claim_token + 0 = u.token for update skip locked
    ) as c);
  with c as (
    update outbox.claimed as c set lease_until = clock_timestamp() + outbox.span(v_lease)
    where c.ctid = any (v_tids)
    returning c.id
  )
  select coalesce(array_agg(c.id), '{}') into v_ids from c;
  return query
  select i.id from unnest(v_ids) as i(id);
  return query -- and those that somebody has locked
  select c.id
  from (select distinct u.id, u.token from unnest(extend.ids, extend.tokens) as u(id, token)
        where (u.id in (select i.id from unnest(v_ids) as i(id))) is not true) as u
  cross join lateral (
    select c.id from outbox.claimed as c where c.id = u.id and c.claim_token + 0 = u.token offset 0
  ) as c;
end $$;
comment on function outbox.extend is 'Lets claims run on; the ids that are still ours, the rest were lost';
revoke all on function outbox.extend from public;
