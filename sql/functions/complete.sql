-- requires: check_settle.sql lock_claimed.sql report_up.sql
create or replace function outbox.complete(ids bigint[], tokens bigint[])
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan -- told how many pairs there are, it may find them too many to hash
as $$
-- Settles delivered messages as done, in the caller's transaction: a consumer that does
-- its work in the same one has exactly-once effects. Returns the ids settled; the rest
-- were lost: claimed anew, cancelled, or settled already.
declare
  v_now timestamptz;
begin
  perform outbox.check_settle('complete', complete.ids, complete.tokens);
  if exists (select from outbox.destination as t where t.state <> 'well')
     or exists (select from outbox.report as r where r.id >= (select e.last_value from outbox.report_edge as e)) then
    perform outbox.report_up(outbox.lock_claimed(complete.ids, complete.tokens), clock_timestamp());
  end if;
  v_now := clock_timestamp();
  -- One pass deletes what still has its claim token (INV-9): the index gives the rows in the order of their
  -- ids, so that settles never deadlock, and the pairs are a filter, in a hash table. "is true" keeps
  -- the planner from a join instead, in an order of its own.
  return query
  with c as (
    delete from outbox.claimed as d
    where d.id = any (complete.ids)
      and ((d.id, d.claim_token) in (select u.id, u.token from unnest(complete.ids, complete.tokens) as u(id, token)
                                        where (u.id, u.token) is not null)) is true
    returning d.id, d.namespace, d.task_queue, d.shard, d.attempt, d.claimed_by
  )
  insert into outbox.settled as s (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
  select c.id, c.namespace, c.task_queue, c.shard, 'done', c.attempt, v_now, c.claimed_by
  from c
  returning s.id;
end $$;
comment on function outbox.complete is 'Settles delivered messages as done; the ids settled, the rest were lost';
revoke all on function outbox.complete from public;
