-- requires: prepared_locks.sql
create or replace function outbox.stray_keys(keys int[])
returns int[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Which of these locks of claims are held by somebody who is not claiming: any role can take an
-- advisory lock. Claims, heartbeats and cancels read outbox.config before they lock anything, so
-- their transactions have a lock on that table. Strangers have none, unless they want to pose as
-- a claim. A transaction that was prepared with a claim in it is a stranger from
-- config.claim_idle_timeout on: nobody may ever end it.
--
-- One look at pg_locks is not of one moment: it may find the advisory lock of a claim and not
-- its lock on the table, as a claim begins or ends; and a claim that ends gives the lock on the table
-- back first, and may not get a processor for the rest at once. Hence several looks, 10 ms apart and then
-- more, 0.6 s in all: a stranger has the lock in each of them, in the same transaction or in none.
declare
  v_locks  text[];  -- key and holder
  v_claims text[];  -- holders that claim
begin
  for look in 0 .. 6 loop
    with l as materialized (
      select l.* from pg_locks as l
      where l.granted and l.database = (select d.oid from pg_database as d where d.datname = current_database())
    )
    select array(select l.objid::bigint::bit(32)::int || ' ' || l.virtualtransaction from l
                 where l.locktype = 'advisory' and l.classid = 'outbox.pending'::regclass and l.objsubid = 2
                   and l.objid::bigint::bit(32)::int = any (stray_keys.keys)
                   and (look = 0 or l.objid::bigint::bit(32)::int || ' ' || l.virtualtransaction = any (v_locks))),
           array(select l.virtualtransaction from l
                 where l.locktype = 'relation' and l.relation = 'outbox.config'::regclass
                   and (l.pid is not null
                        or exists (select from outbox.prepared_locks() as p
                                   where p.virtualtransaction = l.virtualtransaction
                                     and p.prepared > clock_timestamp() - (select c.claim_idle_timeout from outbox.config as c))))
    into v_locks, v_claims;
    v_locks := array(select u.lock from unnest(v_locks) as u(lock) where split_part(u.lock, ' ', 2) <> all (v_claims));
    exit when v_locks = '{}';
    if look < 6 then
      perform pg_sleep(0.01 * 2 ^ look);
    end if;
  end loop;
  return array(select distinct split_part(u.lock, ' ', 1)::int from unnest(v_locks) as u(lock) order by 1);
end $$;
comment on function outbox.stray_keys is 'Which locks of claims are held by somebody who is not claiming';
revoke all on function outbox.stray_keys from public;
