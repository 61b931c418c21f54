create or replace function outbox.audit_bindings()
returns table (guarantee text, subject text, detail text, hint text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set jit = off
set quote_all_identifiers = off -- the names are compared
as $$
-- The part of check() about whose code runs with the owner's rights: what the objects of the
-- outbox were bound to when they were made, and who the owner is. A begin atomic body, a view, a
-- constraint or a default keeps what its names meant to whoever installed it.
declare
  v_outbox oid := 'outbox'::regnamespace;
  v_owner  oid := (select n.nspowner from pg_namespace as n where n.oid = v_outbox);
begin
  return query
  with ours as (
    select 'pg_class'::regclass as classid, c.oid from pg_class as c where c.relnamespace = v_outbox
    union all
    select 'pg_proc'::regclass, p.oid from pg_proc as p where p.pronamespace = v_outbox
    union all
    select 'pg_constraint'::regclass, c.oid from pg_constraint as c where c.connamespace = v_outbox
    union all
    select 'pg_type'::regclass, t.oid from pg_type as t where t.typnamespace = v_outbox
    union all
    select 'pg_rewrite'::regclass, r.oid from pg_rewrite as r join pg_class as c on c.oid = r.ev_class where c.relnamespace = v_outbox
    union all
    select 'pg_attrdef'::regclass, d.oid from pg_attrdef as d join pg_class as c on c.oid = d.adrelid where c.relnamespace = v_outbox
    union all
    select 'pg_policy'::regclass, p.oid from pg_policy as p join pg_class as c on c.oid = p.polrelid where c.relnamespace = v_outbox
    union all
    select 'pg_trigger'::regclass, t.oid from pg_trigger as t join pg_class as c on c.oid = t.tgrelid
    where c.relnamespace = v_outbox and not t.tgisinternal
  )
  select distinct 'rights', format('%s %s', i.type, i.identity), format('depends on %s %s', f.type, f.identity),
         'It is not of PostgreSQL or the outbox, and may run with the owner''s rights. Look whose it is; make it anew under search_path = pg_catalog, as the migration has it.'
  from ours as o
  join pg_depend as d on d.classid = o.classid and d.objid = o.oid
  cross join lateral pg_identify_object(d.refclassid, d.refobjid, d.refobjsubid) as f
  cross join lateral pg_identify_object(d.classid, d.objid, d.objsubid) as i
  where f.schema not in ('pg_catalog', 'outbox');

  return query
  select 'advice', 'schema outbox', format('belongs to %s, a superuser', r.oid::regrole),
         'Its functions run with all rights there are. Let a role without them own the schema and what is in it.'
  from pg_roles as r where r.oid = v_owner and r.rolsuper;
end $$;
comment on function outbox.audit_bindings is 'The part of check() about whose code runs with the owner''s rights';
revoke all on function outbox.audit_bindings from public;
