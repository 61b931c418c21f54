-- requires: bad_argument.sql check_key.sql
create or replace function outbox.pause(
  namespace text default null, task_queue text default null, note text default null,
  until timestamptz default null, everything boolean default false)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Holds a namespace, one of its routes, a route of all namespaces (namespace null), or everything
-- (everything => true, and neither of them: a null that was not meant pauses nothing), from the next
-- claim on; what is claimed goes on. The note tells the next one on duty why.
--
-- The pause ends at the instant until by itself; without one, when resume() is called with the same
-- arguments. False: it was paused already. Then the last call counts: until is what this call says
-- (none: no end), and so is the note, where there is one.
declare
  v_now   timestamptz := clock_timestamp();
  v_since timestamptz;
begin
  if pause.namespace is not null then
    perform outbox.check_key('pause', 'namespace', pause.namespace);
  end if;
  if pause.task_queue is not null then
    perform outbox.check_key('pause', 'task_queue', pause.task_queue);
  end if;
  if pause.namespace is null and pause.task_queue is null and pause.everything is not true then
    perform outbox.bad_argument('pause', 'namespace', 'and task_queue are null, which would be everything',
      'Name what to pause; to pause everything on purpose: outbox.pause(everything => true).');
  elsif pause.everything and (pause.namespace is not null or pause.task_queue is not null) then
    perform outbox.bad_argument('pause', 'everything', 'goes with neither namespace nor task_queue', 'Leave it out, or them.');
  elsif pause.until <= v_now then
    perform outbox.bad_argument('pause', 'until', format('is over: it is %s now', v_now), 'Give an instant to come; without until, the pause lasts until resume().');
  elsif pause.until > v_now + interval '38000 days' then
    perform outbox.bad_argument('pause', 'until', 'is more than 38000 days away', 'Without until, the pause lasts until resume().');
  end if;
  insert into outbox.pause as p (namespace, task_queue, since, by, note, until)
  values (pause.namespace, pause.task_queue, v_now, session_user, left(pause.note, 1000), pause.until)
  on conflict on constraint pause_key do update
    set since = case when p.until <= v_now then excluded.since else p.since end, -- one that is over is none
        by = case when p.until <= v_now then excluded.by else p.by end,
        note = case when p.until <= v_now then excluded.note else coalesce(excluded.note, p.note) end,
        until = excluded.until
  returning p.since into v_since;
  return v_since = v_now;
end $$;
comment on function outbox.pause is 'Holds a namespace, a route of it, a route of all, or all';
revoke all on function outbox.pause from public;
