-- requires: change_destination.sql save_destination.sql
create or replace function outbox.set_shared(task_queue text, shared boolean)
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Says whether the messages of a route go to one endpoint, whatever their namespace: then failures of
-- several namespaces in a row hold the route of all; false: never (a hold that is there stays until it
-- is lifted); null: nodes say so, as they know it
-- from their sinks.
declare
  v_is  outbox.destination;
begin
  v_is := outbox.change_destination('set_shared', null, set_shared.task_queue);
  v_is.shared := set_shared.shared;
  if set_shared.shared = false and v_is.state = 'failing' then -- nothing counts for it any more
    v_is.state := 'well';
    v_is.score := 0;
    v_is.failed := '{}';
    v_is.failed_of := '{}';
  end if;
  perform outbox.save_destination(v_is, clock_timestamp());
end $$;
comment on function outbox.set_shared is 'Says whether namespaces share the endpoint of a route';
revoke all on function outbox.set_shared from public;
