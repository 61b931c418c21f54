-- requires: bad_argument.sql cancel_lock.sql settle_cancelled.sql
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
  v_ids := array(
    select m.id
    from (select distinct u.dispatch_key collate "C" as dispatch_key from unnest(cancel.dispatch_keys) as u(dispatch_key)) as u
    cross join lateral (select m.id from outbox.message as m where m.dispatch_key = u.dispatch_key offset 0) as m
    order by m.id);
  loop
    return query
    select (select m.dispatch_key from outbox.message as m where m.id = s.id), s.was
    from outbox.settle_cancelled(v_ids, v_now) as s;
    -- One that went from claimed to pending meanwhile is met again.
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
