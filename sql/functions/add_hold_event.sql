create or replace function outbox.add_hold_event(event text, destination outbox.destination, now timestamptz, by text)
returns void
language sql
-- Notes what became of a hold, for hold_events(). The caller has the lock fold_lock(). destination is
-- as it is while it is held.
begin atomic
  insert into outbox.hold_event (at, event, namespace, task_queue, since, by, reason)
  values (add_hold_event.now, add_hold_event.event, (add_hold_event.destination).namespace, (add_hold_event.destination).task_queue,
          coalesce((add_hold_event.destination).held_since, add_hold_event.now), add_hold_event.by, (add_hold_event.destination).reason);
end;
comment on function outbox.add_hold_event is 'Notes what became of a hold';
revoke all on function outbox.add_hold_event from public;
