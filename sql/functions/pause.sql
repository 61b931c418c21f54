-- requires: check_key.sql
create or replace function outbox.pause(namespace text, task_queue text default null, note text default null)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Holds a namespace, one of its routes, a route of all namespaces (namespace null), or
-- everything (both null), from the next claim on; what is claimed goes on. The note
-- tells the next one on duty why. False: it was paused already, and got the new note.
begin
  if pause.namespace is not null then
    perform outbox.check_key('pause', 'namespace', pause.namespace);
  end if;
  if pause.task_queue is not null then
    perform outbox.check_key('pause', 'task_queue', pause.task_queue);
  end if;
  update outbox.pause as p set note = coalesce(left(pause.note, 1000), p.note)
  where p.namespace is not distinct from pause.namespace and p.task_queue is not distinct from pause.task_queue;
  if found then
    return false;
  end if;
  insert into outbox.pause (namespace, task_queue, since, by, note)
  values (pause.namespace, pause.task_queue, clock_timestamp(), session_user, left(pause.note, 1000))
  on conflict on constraint pause_key do nothing;
  return found;
end $$;
comment on function outbox.pause is 'Holds a namespace, a route of it, a route of all, or all';
revoke all on function outbox.pause from public;
