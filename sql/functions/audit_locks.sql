-- requires: claim_locks.sql cancel_lock.sql share_lock.sql fold_lock.sql shards_text.sql
create or replace function outbox.audit_locks()
returns table (guarantee text, subject text, detail text, hint text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set jit = off
as $$
-- The part of check() about locks of claims that are held by somebody who is not claiming, and what
-- stands still until he ends.
begin
  return query
  select 'locks', o.session,
         'holds ' || concat_ws(' and ', 'the locks of shards ' || outbox.shards_text(o.shards),
                   case when o.nodes > 0 then format('%s locks of nodes', o.nodes) end,
                   case when o.cancels then 'the lock of cancels' end,
                   case when o.sharing then 'the lock of heartbeats' end,
                   case when o.folds then 'the lock of destinations' end,
                   case when o.others > 0 then format('%s other locks', o.others) end)
         || ', and is not claiming'
         || coalesce(': ' || nullif(concat_ws('; ',
                   case when o.shards <> '{}' then 'nothing is claimed from these shards' end,
                   case when o.nodes > 0 then 'the nodes of these names claim nothing' end,
                   case when o.cancels then 'no message is cancelled or purged' end,
                   case when o.sharing then 'shards are not given to other nodes' end,
                   case when o.folds then 'no destination becomes held and no hold ends, while claims go on' end), ''), ''),
         'To end it: ' || o.remedy
  from (select l.session, l.remedy, coalesce(array_agg(l.key order by l.key) filter (where l.key between 0 and 1023), '{}') as shards,
               count(*) filter (where l.key < 0) as nodes, bool_or(l.key = 1024) as cancels,
               bool_or(l.key = outbox.share_lock()) as sharing, bool_or(l.key = outbox.fold_lock()) as folds,
               count(*) filter (where l.key > 1023 and l.key not in (1024, outbox.share_lock(), outbox.fold_lock())) as others
        from outbox.claim_locks() as l where l.stray group by l.session, l.remedy) as o
  order by o.session;
end $$;
comment on function outbox.audit_locks is 'The part of check() about locks that strangers hold';
revoke all on function outbox.audit_locks from public;
