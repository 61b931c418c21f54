-- requires: is_live.sql
create or replace function outbox.audit_schema()
returns table (guarantee text, subject text, detail text, hint text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set jit = off
as $$
-- The part of check() about what the guarantees stand on: settings, sequences, triggers,
-- tables that survive a crash, functions as they were installed, and rights.
declare
  v_owner  oid := (select n.nspowner from pg_namespace as n where n.oid = 'outbox'::regnamespace);
  v_shards int := (select c.shard_count from outbox.config as c);
  v_lapse  interval := (select c.node_lapse from outbox.config as c);
  v_now    timestamptz := clock_timestamp();
  v_max    bigint;
  v_last   bigint;
begin
  return query
  select 'INV-4', 'outbox.config', format('has %s rows', count(*)), 'It has exactly one: insert into outbox.config default values.'
  from outbox.config as c having count(*) <> 1;

  return query
  select 'INV-9', 'sequence outbox.claim_token', format('has cache %s, increment %s%s', q.seqcache, q.seqincrement,
         case when q.seqcycle then ', and cycles' else '' end),
         'A later claim must draw a larger token: alter sequence outbox.claim_token cache 1 increment 4194304 no cycle.'
  from pg_sequence as q
  where q.seqrelid = 'outbox.claim_token'::regclass and (q.seqcache <> 1 or q.seqincrement < 4194304 or q.seqcycle);

  v_max := (select max(m.id) from outbox.message as m);
  v_last := pg_sequence_last_value(pg_get_serial_sequence('outbox.message', 'id')::regclass);
  if v_max > coalesce(v_last, 0) then
    return query
    select 'INV-2', 'outbox.message.id', format('goes up to %s, its sequence stands at %s', v_max, coalesce(v_last, 0)),
           'Enqueue fails until it has caught up. Set it to the largest id: select setval(pg_get_serial_sequence(''outbox.message'', ''id''), ...).';
  end if;

  return query
  select 'INV-2', format('table %s', c.oid::regclass),
         case when c.relpersistence <> 'p' then 'is unlogged: a crash empties it' else 'has forced row security: rows are hidden from the functions' end,
         'alter table ... set logged, or no force row level security.'
  from pg_class as c
  where c.relnamespace = 'outbox'::regnamespace and c.relkind in ('r', 'p', 'S')
    and (c.relpersistence <> 'p' or c.relforcerowsecurity);

  return query
  select 'INV-4', format('trigger %s on %s', e.name, e.rel), case when t.oid is null then 'is missing' else 'is disabled' end,
         'It keeps shard_count fixed, or former quotas for this audit. Create it as the migration does, or: alter table ... enable trigger.'
  from (values ('config_guard', 'outbox.config'), ('former_quota', 'outbox.namespace')) as e(name, rel)
  left join pg_trigger as t on t.tgrelid = e.rel::regclass and t.tgname = e.name
  where t.oid is null or t.tgenabled not in ('O', 'A');

  return query
  select 'INV-5', format('node %L', n.node), format('names shards that do not exist: %s, of 0 to %s',
         array_to_string(array(select s.shard from unnest(n.shards) as s(shard) where s.shard not between 0 and v_shards - 1 limit 10), ', '), v_shards - 1),
         'Its claims are refused. Restart it with shards that exist.'
  from outbox.node as n
  where outbox.is_live(n.heartbeat_at, v_now, v_lapse)
    and exists (select from unnest(n.shards) as s(shard) where s.shard not between 0 and v_shards - 1);

  return query
  select 'rights', format('function %s', p.oid::regprocedure), x.problem, x.hint
  from pg_proc as p
  cross join lateral (
    values
      (exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a where a.grantee = 0)
         and p.proname <> 'ring', -- which the view namespaces calls with its reader's rights
       'can be executed by everybody', 'revoke all on all functions in schema outbox from public.'),
      (p.proowner <> v_owner, format('belongs to %s, the schema to %s', p.proowner::regrole, v_owner::regrole),
       'It runs with another role''s rights. alter function ... owner to the schema''s owner.'),
      (p.prosecdef and not 'search_path=pg_catalog, pg_temp' = any (coalesce(p.proconfig, '{}')),
       'runs with its owner''s rights under its caller''s search_path',
       'A caller could make it run anything. alter function ... set search_path = pg_catalog, pg_temp.')
  ) as x(wrong, problem, hint)
  where p.pronamespace = 'outbox'::regnamespace and x.wrong;

  return query
  select 'rights', x.object, format('%s may %s', case when x.grantee = 0 then 'everybody' else x.grantee::regrole::text end,
                                    string_agg(lower(x.privilege), ', ' order by x.privilege)),
         'Only the functions may change the tables. Revoke it, and look at pg_default_acl: default privileges may have granted it.'
  from (
    select format('table %s', c.oid::regclass) as object, a.grantee, a.privilege_type as privilege
    from pg_class as c cross join lateral aclexplode(c.relacl) as a
    where c.relnamespace = 'outbox'::regnamespace and c.relkind in ('r', 'p', 'S')
      and a.grantee <> c.relowner
      and (a.grantee = 0 or a.privilege_type in ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER'))
    union all
    select format('view %s', c.oid::regclass), a.grantee, a.privilege_type
    from pg_class as c cross join lateral aclexplode(c.relacl) as a
    where c.relnamespace = 'outbox'::regnamespace and c.relkind = 'v' and a.grantee = 0
    union all
    select 'schema outbox', a.grantee, a.privilege_type
    from pg_namespace as n cross join lateral aclexplode(n.nspacl) as a
    where n.oid = 'outbox'::regnamespace and a.grantee <> n.nspowner and a.privilege_type = 'CREATE'
  ) as x
  group by x.object, x.grantee;
end $$;
comment on function outbox.audit_schema is 'The part of check() about what the guarantees stand on';
revoke all on function outbox.audit_schema from public;
