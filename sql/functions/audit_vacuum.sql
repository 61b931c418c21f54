create or replace function outbox.audit_vacuum()
returns table (guarantee text, subject text, detail text, hint text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set jit = off
as $$
-- The part of check() about autovacuum. No guarantee rests on it, but each message leaves dead rows in
-- two tables, and where nobody removes them claims get slower, and tables grow. A standby
-- has no autovacuum, and its settings say nothing of the primary's.
begin
  return query
  select 'advice', 'the server', format('has %s = off, so autovacuum does not come by', s.name),
         'Each message leaves dead rows. Turn it on, or vacuum the tables of the schema outbox every minute.'
  from pg_settings as s
  where s.name in ('autovacuum', 'track_counts') and s.setting = 'off' and not pg_is_in_recovery();

  return query
  select 'advice', format('table outbox.%I', c.relname),
         case when r.oid = c.oid then 'has autovacuum_enabled = off' else 'has toast.autovacuum_enabled = off' end,
         format('Each message leaves dead rows. alter table outbox.%I reset (%sautovacuum_enabled), or vacuum the table every minute.', c.relname,
                case when r.oid = c.oid then '' else 'toast.' end)
  from pg_class as c
  join pg_class as r on r.oid in (c.oid, c.reltoastrelid)
  cross join lateral pg_options_to_table(r.reloptions) as o
  where c.relnamespace = 'outbox'::regnamespace and c.relkind = 'r'
    and o.option_name = 'autovacuum_enabled' and not o.option_value::boolean;
end $$;
comment on function outbox.audit_vacuum is 'The part of check() about autovacuum';
revoke all on function outbox.audit_vacuum from public;
