-- requires: check_key.sql
create or replace function outbox.quota(namespace text)
returns table (quota int, strict boolean, claimed bigint, known boolean)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
set jit = off
as $$
-- The quota in force for a namespace, its own or the default, and how much of it is used. known:
-- the namespace has a quota of its own, a pause, or messages that are pending, claimed or failed;
-- otherwise its name may be mistyped.
begin
  perform outbox.check_key('quota', 'namespace', quota.namespace);
  return query
  select coalesce(n.quota, g.default_quota), coalesce(n.strict, false),
         (select count(*) from outbox.claimed as c where c.namespace = quota.namespace collate "C"),
         n.namespace is not null
         or exists (select from outbox.pause as p where p.namespace = quota.namespace collate "C")
         or (select c.id from outbox.claimed as c -- bounds of pairs, here and below: no other index serves them
             where (c.namespace, c.claim_token) >= (quota.namespace collate "C", 0) and c.namespace <= quota.namespace collate "C"
             order by c.namespace, c.claim_token limit 1) is not null
         or (select p.id from outbox.pending as p
             where p.ripe and p.ring = outbox.ring(quota.namespace) and p.namespace = quota.namespace collate "C"
             order by p.route_ring limit 1) is not null
         or (select p.id from outbox.pending as p
             where not p.ripe and p.ring = outbox.ring(quota.namespace) and p.namespace = quota.namespace collate "C"
             order by p.visible_after limit 1) is not null
         or (select s.id from outbox.settled as s
             where s.outcome = 'failed' and (s.namespace, s.id) >= (quota.namespace collate "C", 0) and s.namespace <= quota.namespace collate "C"
             order by s.namespace, s.id limit 1) is not null
  from outbox.config as g
  left join outbox.namespace as n on n.namespace = quota.namespace collate "C";
end $$;
comment on function outbox.quota is 'The quota in force for a namespace, and how much of it is used';
revoke all on function outbox.quota from public;
