create or replace function outbox.settle_cancelled(ids bigint[], now timestamptz)
returns table (id bigint, was text)
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
-- Settles messages as cancelled, those of ids that are pending and then those that are
-- claimed; returns which, and what each was. The caller holds cancel_lock(). A message that
-- goes from claimed to pending between the two statements is in neither: the caller looks
-- for it again.
declare
  v_tids tid[]; -- of those locked
begin
  -- Look-ups one by one, in the order of the ids: a join could read every message there
  -- is.
  v_tids := array(
    select p.tid
    from (select u.id from unnest(settle_cancelled.ids) as u(id) order by u.id) as u
    cross join lateral (
      select p.ctid as tid from outbox.pending as p where p.id = u.id for update
    ) as p);
  return query
  with p as (
    delete from outbox.pending as d where d.ctid = any (v_tids)
    returning d.id, d.namespace, d.task_queue, d.shard, d.attempt
  )
  insert into outbox.settled as s (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
  select p.id, p.namespace, p.task_queue, p.shard, 'cancelled', p.attempt, settle_cancelled.now, session_user from p
  returning s.id, 'pending';
  v_tids := array(
    select c.tid
    from (select u.id from unnest(settle_cancelled.ids) as u(id) order by u.id) as u
    cross join lateral (select c.ctid as tid from outbox.claimed as c where c.id = u.id for update) as c);
  return query
  with c as (
    delete from outbox.claimed as d where d.ctid = any (v_tids)
    returning d.id, d.namespace, d.task_queue, d.shard, d.attempt
  )
  insert into outbox.settled as s (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
  select c.id, c.namespace, c.task_queue, c.shard, 'cancelled', c.attempt, settle_cancelled.now, session_user from c
  returning s.id, 'claimed';
end $$;
comment on function outbox.settle_cancelled is 'Settles pending and claimed messages as cancelled; which, and what each was';
revoke all on function outbox.settle_cancelled from public;
