create or replace function outbox.save_destination(destination outbox.destination, now timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Writes a destination. The caller has the lock fold_lock().
begin
  destination.changed_at := save_destination.now;
  insert into outbox.destination values ((save_destination.destination).*)
  on conflict on constraint destination_key do update
    set (state, shared, score, failed, failed_of, held_since, held_until, held_by, reason, step, probe_id, probe_token,
         lifted_at, lift_token, changed_at)
      = (excluded.state, excluded.shared, excluded.score, excluded.failed, excluded.failed_of, excluded.held_since,
         excluded.held_until, excluded.held_by, excluded.reason, excluded.step, excluded.probe_id, excluded.probe_token,
         excluded.lifted_at, excluded.lift_token, excluded.changed_at);
end $$;
comment on function outbox.save_destination is 'Writes a destination';
revoke all on function outbox.save_destination from public;
