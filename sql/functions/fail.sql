-- requires: check_settle.sql failed_attempts.sql
create or replace function outbox.fail(ids bigint[], tokens bigint[], errors text[] default null)
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Settles messages that can never be delivered as failed (dead letters; redrive()
-- brings them back). As complete().
begin
  perform outbox.check_settle('fail', fail.ids, fail.tokens);
  if cardinality(fail.errors) <> cardinality(fail.ids) then
    perform outbox.bad_argument('fail', 'errors', 'has another length than ids', 'Give one for each id, or null.');
  end if;
  return query
  select f.id from outbox.failed_attempts(fail.ids, fail.tokens, fail.errors, null, true) as f;
end $$;
comment on function outbox.fail is 'Settles messages as failed; the ids settled, the rest were lost';
revoke all on function outbox.fail from public;
