create or replace function outbox.resume(namespace text, task_queue text default null)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Takes back the pause() with these very arguments; resume(null) that of everything. False: there
-- was none, or it was over.
declare
  v_now    timestamptz := clock_timestamp();
  v_paused boolean;
begin
  delete from outbox.pause as p
  where p.namespace is not distinct from resume.namespace collate "C" and p.task_queue is not distinct from resume.task_queue collate "C"
  returning coalesce(p.until > v_now, true) into v_paused;
  return coalesce(v_paused, false);
end $$;
comment on function outbox.resume is 'Takes a pause back';
revoke all on function outbox.resume from public;
