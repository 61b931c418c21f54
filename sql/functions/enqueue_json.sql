-- requires: enqueue.sql
create or replace function outbox.enqueue_json(
  namespace text, task_queue text, dispatch_key text, payload jsonb,
  headers jsonb default '{}', delay interval default null)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- enqueue() for a payload at hand as jsonb: in psql, in a trigger. jsonb rewrites what
-- it is given (spaces, order of keys, duplicates), so signed bodies go through enqueue().
begin
  return outbox.enqueue(enqueue_json.namespace, enqueue_json.task_queue, enqueue_json.dispatch_key,
    convert_to(enqueue_json.payload::text, 'UTF8'), 'application/json', enqueue_json.headers, enqueue_json.delay);
end $$;
comment on function outbox.enqueue_json is 'enqueue() with a jsonb payload';
revoke all on function outbox.enqueue_json from public;
