-- requires: bad_argument.sql
create or replace function outbox.check_settle(func text, ids bigint[], tokens bigint[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Refuses the arguments of a settle call that do not pair up. Empty arrays are fine:
-- a sweep with nothing to settle settles nothing.
begin
  if check_settle.ids is null then
    perform outbox.bad_argument(check_settle.func, 'ids', 'is null', 'Give the ids that claim_fair returned.');
  elsif check_settle.tokens is null then
    perform outbox.bad_argument(check_settle.func, 'tokens', 'is null', 'Give the claim_token of each id.');
  elsif cardinality(check_settle.ids) <> cardinality(check_settle.tokens) then
    perform outbox.bad_argument(check_settle.func, 'tokens',
      format('has %s elements, ids has %s', cardinality(check_settle.tokens), cardinality(check_settle.ids)),
      'Give the claim_token of each id, in the same order.');
  end if;
end $$;
comment on function outbox.check_settle is 'Raises OB001 unless ids and tokens pair up';
revoke all on function outbox.check_settle from public;
