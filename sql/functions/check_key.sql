-- requires: bad_argument.sql
create or replace function outbox.check_key(func text, argument text, value text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Refuses a namespace, task queue, dispatch key or node that the tables could not hold.
begin
  if check_key.value is null then
    perform outbox.bad_argument(check_key.func, check_key.argument, 'is null', 'Give 1 to 512 bytes of text.');
  elsif octet_length(check_key.value) not between 1 and 512 then
    perform outbox.bad_argument(check_key.func, check_key.argument,
      format('has %s bytes', octet_length(check_key.value)), 'Give 1 to 512 bytes of text.');
  end if;
end $$;
comment on function outbox.check_key is 'Raises OB001 unless the value has 1 to 512 bytes';
revoke all on function outbox.check_key from public;
