create or replace function outbox.settings()
returns outbox.config
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  -- The settings in force; configure() changes them.
  select c from outbox.config as c;
$$;
comment on function outbox.settings is 'The settings in force';
revoke all on function outbox.settings from public;
