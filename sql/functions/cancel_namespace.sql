-- requires: bad_argument.sql check_key.sql cancel_lock.sql
create or replace function outbox.cancel_namespace(namespace text, max int default null)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
-- Cancels a namespace's pending and claimed messages, up to max of them (null: all), as
-- cancel() does; returns how many. On a large backlog call it with a max until it
-- returns 0: each transaction is short then. pause() the namespace first where its
-- messages should not be served in between.
declare
  v_now  timestamptz := clock_timestamp();
  v_ids  bigint[];
  v_tids tid[];    -- of those locked
  v_last bigint := (select max(m.id) from outbox.message as m); -- what comes after this call stays
  v_done bigint := 0;
  v_some bigint;
begin
  perform outbox.check_key('cancel_namespace', 'namespace', cancel_namespace.namespace);
  if cancel_namespace.max < 1 then
    perform outbox.bad_argument('cancel_namespace', 'max', 'is below 1', 'Give the most messages to cancel, or null for all.');
  end if;
  perform outbox.cancel_lock();
  loop
    -- By lane, which is cheap; then locked by id. What moves in between is met in the
    -- next turn.
    v_ids := array(
      (select p.id from outbox.pending as p where p.namespace = cancel_namespace.namespace and p.id <= v_last
       order by p.task_queue, p.shard, p.visible_after, p.id limit cancel_namespace.max - v_done)
      union all
      (select c.id from outbox.claimed as c -- bounds of pairs, for no other index to come into question
       where (c.namespace, c.claim_token) >= (cancel_namespace.namespace, 0)
         and (c.namespace, c.claim_token) <= (cancel_namespace.namespace, 9223372036854775807) and c.id <= v_last
       order by c.namespace, c.claim_token limit cancel_namespace.max - v_done)
      limit cancel_namespace.max - v_done);
    v_tids := array( -- looked up as in cancel()
      select p.tid
      from (select u.id from unnest(v_ids) as u(id) order by u.id) as u
      cross join lateral (
        select p.ctid as tid from outbox.pending as p where p.id >= u.id and p.id <= u.id order by p.id limit 1 for update
      ) as p);
    with p as (
      delete from outbox.pending as d where d.ctid = any (v_tids)
      returning d.id, d.namespace, d.task_queue, d.shard, d.attempt
    )
    insert into outbox.settled (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
    select p.id, p.namespace, p.task_queue, p.shard, 'cancelled', p.attempt, v_now, session_user from p;
    get diagnostics v_some = row_count;
    v_done := v_done + v_some;
    v_tids := array(
      select c.tid
      from (select u.id from unnest(v_ids) as u(id) order by u.id) as u
      cross join lateral (select c.ctid as tid from outbox.claimed as c where c.id = u.id for update) as c);
    with c as (
      delete from outbox.claimed as d where d.ctid = any (v_tids)
      returning d.id, d.namespace, d.task_queue, d.shard, d.attempt
    )
    insert into outbox.settled (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
    select c.id, c.namespace, c.task_queue, c.shard, 'cancelled', c.attempt, v_now, session_user from c;
    get diagnostics v_some = row_count;
    v_done := v_done + v_some;
    exit when cardinality(v_ids) = 0 or v_done >= cancel_namespace.max;
  end loop;
  return v_done;
end $$;
comment on function outbox.cancel_namespace is 'Cancels a namespace''s pending and claimed messages; how many';
revoke all on function outbox.cancel_namespace from public;
