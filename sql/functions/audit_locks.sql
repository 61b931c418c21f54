-- requires: claim_obstacles.sql shards_text.sql
create or replace function outbox.audit_locks()
returns table (guarantee text, subject text, detail text, hint text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set jit = off
as $$
-- The part of check() about locks of claims that are held by somebody who is not claiming.
begin
  return query
  select 'locks', o.session,
         'holds ' || concat_ws(' and ', 'the locks of shards ' || outbox.shards_text(o.shards),
                   case when o.others > 0 then format('%s locks of nodes, heartbeats or cancels', o.others) end)
         || ', and is not claiming'
         || case when o.shards <> '{}' then ': nothing is claimed from these shards' else '' end,
         'To end it: ' || o.remedy
  from outbox.claim_obstacles() as o;
end $$;
comment on function outbox.audit_locks is 'The part of check() about locks that strangers hold';
revoke all on function outbox.audit_locks from public;
