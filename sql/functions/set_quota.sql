-- requires: bad_argument.sql bound_transaction.sql check_key.sql lock_class.sql
create or replace function outbox.set_quota(namespace text, quota int, strict boolean default null)
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Sets how many messages of a namespace may be claimed at a time, cluster-wide, from the
-- next claim on; 0 holds everything. A null leaves that value as it is; clear_quota()
-- goes back to the default. strict: never above the quota, whoever claims; claims of
-- the namespace then exclude each other. Marking one strict waits for the claims under
-- way, which do not know of it, and keeps new ones off until this transaction ends.
begin
  perform outbox.check_key('set_quota', 'namespace', set_quota.namespace);
  if set_quota.quota < 0 then
    perform outbox.bad_argument('set_quota', 'quota', format('is %s', set_quota.quota), 'Give 0 or more.');
  end if;
  if set_quota.strict then
    perform outbox.bound_transaction(c.claim_idle_timeout) from outbox.config as c;
    perform pg_advisory_xact_lock(outbox.lock_class(), s.shard)
    from generate_series(0, (select c.shard_count - 1 from outbox.config as c)) as s(shard);
  end if;
  insert into outbox.namespace as n (namespace, quota, strict)
  values (set_quota.namespace, set_quota.quota, coalesce(set_quota.strict, false))
  on conflict on constraint namespace_pkey do update
    set quota = coalesce(set_quota.quota, n.quota), strict = coalesce(set_quota.strict, n.strict);
end $$;
comment on function outbox.set_quota is 'Sets a namespace''s quota and strictness; null leaves as it is';
revoke all on function outbox.set_quota from public;
