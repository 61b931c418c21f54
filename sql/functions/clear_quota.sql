-- requires: check_key.sql
create or replace function outbox.clear_quota(namespace text)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Goes back to the default quota, not strict. False: the namespace had no other.
begin
  perform outbox.check_key('clear_quota', 'namespace', clear_quota.namespace);
  delete from outbox.namespace as n where n.namespace = clear_quota.namespace collate "C";
  return found;
end $$;
comment on function outbox.clear_quota is 'Gives a namespace the default quota again';
revoke all on function outbox.clear_quota from public;
