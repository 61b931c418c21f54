create or replace function outbox.bad_argument(func text, argument text, problem text, hint text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Raises OB001, the error of every public function for an argument that it cannot use.
begin
  raise exception 'outbox.%: % %', bad_argument.func, bad_argument.argument, bad_argument.problem
    using errcode = 'OB001', hint = bad_argument.hint;
end $$;
comment on function outbox.bad_argument is 'Raises OB001: which argument, what is wrong with it, what to do';
revoke all on function outbox.bad_argument from public;
