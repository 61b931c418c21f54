-- requires: change_destination.sql save_destination.sql add_hold_event.sql
create or replace function outbox.lift(namespace text, task_queue text)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Lifts the hold of a destination for all nodes, from the next claim on: of a route of a namespace, or,
-- with a null namespace, of the route of all. The flow grows: a claim takes 1, 2, 4 and so on, twice as
-- many each second. Former failures and holds are forgotten. False: it was not held.
declare
  v_is  outbox.destination;
  v_now timestamptz;
begin
  v_is := outbox.change_destination('lift', lift.namespace, lift.task_queue);
  if v_is.state <> 'held' then
    return false;
  end if;
  v_now := clock_timestamp();
  perform outbox.add_hold_event('lifted', v_is, v_now, session_user::text);
  v_is.state := 'recovering';
  v_is.held_since := null;
  v_is.held_until := null;
  v_is.score := 0;
  v_is.failed := '{}';
  v_is.failed_of := '{}';
  v_is.step := 0;
  v_is.probe_id := null;
  v_is.probe_token := null;
  v_is.lifted_at := v_now;
  v_is.lift_token := nextval('outbox.claim_token');
  perform outbox.save_destination(v_is, v_now);
  return true;
end $$;
comment on function outbox.lift is 'Lifts the hold of a destination; false: it was not held';
revoke all on function outbox.lift from public;
