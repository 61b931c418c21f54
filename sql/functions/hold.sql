-- requires: bad_argument.sql change_destination.sql save_destination.sql add_hold_event.sql span.sql
create or replace function outbox.hold(namespace text, task_queue text, duration interval default null, reason text default null)
returns timestamptz
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Holds a destination from the next claim on: a route of a namespace, or, with a null namespace, the
-- route of all. For a time, after which one message is tried, or, without duration, until somebody
-- lifts it. A hold that is there already gets longer, never shorter; a probe that is out then says
-- nothing any more, and there is no other one before it is back. What is claimed goes on; what
-- is held stays pending, unwritten and uncharged. Returns until when. Not the same as pause(), which
-- nothing but resume() or its own end takes back.
declare
  v_is    outbox.destination;
  v_now   timestamptz;
  v_until timestamptz;
begin
  if hold.duration is not null and (outbox.span(hold.duration) <= interval '0' or outbox.span(hold.duration) > interval '366 days') then
    perform outbox.bad_argument('hold', 'duration', format('is %s', hold.duration),
      'Give more than nothing and up to a year, or null to hold it until somebody lifts it.');
  end if;
  v_is := outbox.change_destination('hold', hold.namespace, hold.task_queue);
  v_now := clock_timestamp();
  v_until := case when hold.duration is null then 'infinity' else v_now + outbox.span(hold.duration) end;
  if v_is.state <> 'held' then
    v_is.state := 'held';
    v_is.held_since := v_now;
    v_is.step := 0;
    v_is.failed := '{}';
    v_is.failed_of := '{}';
    v_is.score := 0;
    v_is.probe_id := null; -- of a hold that is over
    v_is.probe_token := null;
  end if;
  if v_until > v_is.held_until or v_is.held_until is null then
    v_is.held_until := v_until;
    v_is.lift_token := nextval('outbox.claim_token'); -- a probe that is out stays the one that is out, and lifts nothing any more
  end if;
  v_is.held_by := session_user;
  v_is.reason := coalesce(left(nullif(hold.reason, ''), 1000), case when v_is.held_since < v_now then v_is.reason end);
  perform outbox.save_destination(v_is, v_now);
  if v_is.held_since = v_now then
    perform outbox.add_hold_event('held', v_is, v_now, session_user::text);
  end if;
  return v_is.held_until;
end $$;
comment on function outbox.hold is 'Holds a destination, for a time or until it is lifted; until when';
revoke all on function outbox.hold from public;
