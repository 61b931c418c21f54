-- requires: bad_argument.sql cancel_lock.sql
create or replace function outbox.cancel(dispatch_keys text[])
returns table (dispatch_key text, was text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
-- Settles messages as cancelled: pending ones, and claimed ones too, whose delivery may
-- go on, but whose settle is then lost. Returns the keys cancelled and what each was;
-- keys that do not exist or were settled already are left out.
declare
  v_ids  bigint[];
  v_tids tid[];    -- of those locked
  v_now  timestamptz := clock_timestamp();
begin
  if cancel.dispatch_keys is null then
    perform outbox.bad_argument('cancel', 'dispatch_keys', 'is null', 'Give the keys of the messages to cancel.');
  end if;
  perform outbox.cancel_lock();
  v_ids := array(
    select m.id
    from (select distinct u.dispatch_key from unnest(cancel.dispatch_keys) as u(dispatch_key)) as u
    cross join lateral (select m.id from outbox.message as m where m.dispatch_key = u.dispatch_key offset 0) as m
    order by m.id);
  loop
    -- Look-ups one by one, in the order of the ids: a join could read every message there
    -- is. Those in pending by range and order, which pending_lane does not have: it holds
    -- the id too, and could come into question.
    v_tids := array(
      select p.tid
      from unnest(v_ids) as u(id)
      cross join lateral (
        select p.ctid as tid from outbox.pending as p where p.id >= u.id and p.id <= u.id order by p.id limit 1 for update
      ) as p);
    return query
    with p as (
      delete from outbox.pending as d where d.ctid = any (v_tids)
      returning d.id, d.namespace, d.task_queue, d.shard, d.attempt, 'pending' as was
    ), s as (
      insert into outbox.settled (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
      select p.id, p.namespace, p.task_queue, p.shard, 'cancelled', p.attempt, v_now, session_user from p
    )
    select (select m.dispatch_key from outbox.message as m where m.id = p.id), p.was from p;
    v_tids := array(
      select c.tid
      from unnest(v_ids) as u(id)
      cross join lateral (select c.ctid as tid from outbox.claimed as c where c.id = u.id for update) as c);
    return query
    with c as (
      delete from outbox.claimed as d where d.ctid = any (v_tids)
      returning d.id, d.namespace, d.task_queue, d.shard, d.attempt, 'claimed' as was
    ), s as (
      insert into outbox.settled (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
      select c.id, c.namespace, c.task_queue, c.shard, 'cancelled', c.attempt, v_now, session_user from c
    )
    select (select m.dispatch_key from outbox.message as m where m.id = c.id), c.was from c;
    -- One that went from claimed to pending between the two statements is met again.
    exit when not exists (
            select from unnest(v_ids) as u(id)
            cross join lateral (
              select p.id from outbox.pending as p where p.id >= u.id and p.id <= u.id order by p.id limit 1
            ) as p)
          and not exists (
            select from unnest(v_ids) as u(id)
            cross join lateral (select c.id from outbox.claimed as c where c.id = u.id offset 0) as c);
  end loop;
end $$;
comment on function outbox.cancel is 'Cancels pending and claimed messages; the keys cancelled and what each was';
revoke all on function outbox.cancel from public;
