-- requires: bad_argument.sql
create or replace function outbox.count_expired(max int default 1000)
returns bigint
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
-- How many claimed messages have an expired lease, which the next rescue() takes back;
-- counts no further than max.
declare
  v_now timestamptz := clock_timestamp();
begin
  if coalesce(count_expired.max, 0) < 1 then
    perform outbox.bad_argument('count_expired', 'max', 'is null or below 1', 'Give how far to count.');
  end if;
  return (select count(*) from (select from outbox.claimed as c where c.lease_until < v_now
                                order by c.lease_until limit count_expired.max) as x);
end $$;
comment on function outbox.count_expired is 'How many claimed messages have an expired lease, up to a cap';
revoke all on function outbox.count_expired from public;
