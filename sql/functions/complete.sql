-- requires: check_settle.sql lock_claimed.sql
create or replace function outbox.complete(ids bigint[], tokens bigint[])
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
-- Settles delivered messages as done, in the caller's transaction: a consumer that does
-- its work in the same one has exactly-once effects. Returns the ids settled; the rest
-- were lost: claimed anew, cancelled, or settled already.
declare
  v_ids bigint[];
  v_now timestamptz;
begin
  perform outbox.check_settle('complete', complete.ids, complete.tokens);
  v_ids := outbox.lock_claimed(complete.ids, complete.tokens);
  v_now := clock_timestamp();
  return query
  with c as (
    delete from outbox.claimed as d where d.id = any (v_ids)
    returning d.id, d.namespace, d.task_queue, d.shard, d.attempt, d.claimed_by
  )
  insert into outbox.settled as s (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
  select c.id, c.namespace, c.task_queue, c.shard, 'done', c.attempt, v_now, c.claimed_by
  from c
  returning s.id;
end $$;
comment on function outbox.complete is 'Settles delivered messages as done; the ids settled, the rest were lost';
revoke all on function outbox.complete from public;
