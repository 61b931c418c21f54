create or replace function outbox.keep_former_quota()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Notes a quota that is lowered, cleared or made strict: what was claimed under it stays
-- claimed, and check() must not take that for a violation.
declare
  v_default   int := (select c.default_quota from outbox.config as c);
  v_namespace text;
  v_was       int := v_default;
  v_is        int := v_default;
  v_strict    boolean := false; -- it was
begin
  if tg_op <> 'INSERT' then
    v_namespace := old.namespace;
    v_was := coalesce(old.quota, v_default);
    v_strict := old."strict"; -- quoted: a word of PL/pgSQL
  end if;
  if tg_op <> 'DELETE' then
    v_namespace := new.namespace;
    v_is := coalesce(new.quota, v_default);
    if new."strict" and not v_strict then
      v_was := 2147483647; -- several nodes may have claimed beyond it
    end if;
  end if;
  if v_was > v_is then
    insert into outbox.former_quota (until, namespace, quota, by)
    values (clock_timestamp(), v_namespace, v_was, session_user);
  end if;
  return null;
end $$;
comment on function outbox.keep_former_quota is 'Trigger: notes quotas that are lowered';
revoke all on function outbox.keep_former_quota from public;
create or replace trigger former_quota after insert or update or delete on outbox.namespace
  for each row execute function outbox.keep_former_quota();
