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
  v_ids bigint[];
  v_now timestamptz := clock_timestamp();
begin
  if cancel.dispatch_keys is null then
    perform outbox.bad_argument('cancel', 'dispatch_keys', 'is null', 'Give the keys of the messages to cancel.');
  end if;
  perform outbox.cancel_lock();
  v_ids := array(select m.id from outbox.message as m where m.dispatch_key = any (cancel.dispatch_keys) order by m.id);
  loop
    return query
    with p as (
      delete from outbox.pending as d
      where d.id = any (array(select p.id from outbox.pending as p where p.id = any (v_ids) order by p.id for update))
      returning d.id, d.namespace, d.task_queue, d.shard, d.attempt, 'pending' as was
    ), s as (
      insert into outbox.settled (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
      select p.id, p.namespace, p.task_queue, p.shard, 'cancelled', p.attempt, v_now, session_user from p
    )
    select (select m.dispatch_key from outbox.message as m where m.id = p.id), p.was from p;
    return query
    with c as (
      delete from outbox.claimed as d
      where d.id = any (array(select c.id from outbox.claimed as c where c.id = any (v_ids) order by c.id for update))
      returning d.id, d.namespace, d.task_queue, d.shard, d.attempt, 'claimed' as was
    ), s as (
      insert into outbox.settled (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
      select c.id, c.namespace, c.task_queue, c.shard, 'cancelled', c.attempt, v_now, session_user from c
    )
    select (select m.dispatch_key from outbox.message as m where m.id = c.id), c.was from c;
    -- One that went from claimed to pending between the two statements is met again.
    exit when not exists (select from outbox.pending as p where p.id = any (v_ids))
          and not exists (select from outbox.claimed as c where c.id = any (v_ids));
  end loop;
end $$;
comment on function outbox.cancel is 'Cancels pending and claimed messages; the keys cancelled and what each was';
revoke all on function outbox.cancel from public;
