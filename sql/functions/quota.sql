-- requires: check_key.sql
create or replace function outbox.quota(namespace text)
returns table (quota int, strict boolean, claimed bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
-- The quota in force for a namespace, its own or the default, and how much of it is used.
begin
  perform outbox.check_key('quota', 'namespace', quota.namespace);
  return query
  select coalesce(n.quota, g.default_quota), coalesce(n.strict, false),
         (select count(*) from outbox.claimed as c where c.namespace = quota.namespace)
  from outbox.config as g
  left join outbox.namespace as n on n.namespace = quota.namespace;
end $$;
comment on function outbox.quota is 'The quota in force for a namespace, and how much of it is used';
revoke all on function outbox.quota from public;
