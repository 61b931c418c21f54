-- requires: check_settle.sql failed_attempts.sql
create or replace function outbox.retry(
  ids bigint[], tokens bigint[], errors text[] default null, delays interval[] default null)
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Gives messages back after a failed attempt: due again after their delay (null: the
-- policy's backoff), or failed where their attempts are used up. As complete().
begin
  perform outbox.check_settle('retry', retry.ids, retry.tokens);
  if cardinality(retry.errors) <> cardinality(retry.ids) then
    perform outbox.bad_argument('retry', 'errors', 'has another length than ids', 'Give one for each id, or null.');
  elsif cardinality(retry.delays) <> cardinality(retry.ids) then
    perform outbox.bad_argument('retry', 'delays', 'has another length than ids', 'Give one for each id, or null.');
  end if;
  return query
  select f.id from outbox.failed_attempts(retry.ids, retry.tokens, retry.errors, retry.delays, false) as f;
end $$;
comment on function outbox.retry is 'Gives messages back after a failed attempt; the ids settled, the rest were lost';
revoke all on function outbox.retry from public;
