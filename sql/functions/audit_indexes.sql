create or replace function outbox.audit_indexes(is_full boolean)
returns table (guarantee text, subject text, detail text, hint text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off -- Each order by below is an index's own: with these, only that
set enable_bitmapscan = off -- index can give it, and only the heap a range of ctid.
set enable_sort = off
set enable_incremental_sort = off
set jit = off
as $$
-- The part of check() about indexes: each is there, in use, and finds every row of its
-- table. A row that an index lacks is as good as lost: the claim, the count of a quota,
-- the rescue and the search for duplicates look nowhere else. Where not is_full, only the
-- small tables are counted.
begin
  return query
  select e.guarantee, format('index %s', e.name),
         case when i.indexrelid is null then 'is missing' when not i.indisvalid then 'is not valid'
              when not i.indisready then 'takes no new rows' else 'is not unique any more' end,
         'Build it as the migration does ("sweep migrate sql"), or: reindex index outbox....'
  from (values ('INV-2', 'message_pkey', true), ('INV-3', 'message_dispatch_key_key', true), ('INV-1', 'pending_pkey', true),
               ('INV-14', 'pending_ripe', false), ('INV-14', 'pending_unripe_due', false), ('INV-14', 'pending_unripe_namespace', false),
               ('INV-1', 'claimed_pkey', true), ('INV-14', 'claimed_namespace', false),
               ('INV-14', 'claimed_token', false), ('INV-14', 'claimed_lease', false), ('INV-1', 'settled_pkey', true), ('INV-14', 'settled_retention', false),
               ('INV-14', 'settled_failed', false), ('INV-14', 'failure_id', false), ('INV-4', 'namespace_pkey', true),
               ('INV-6', 'pause_key', true)) as e(guarantee, name, is_unique)
  left join pg_class as c on c.relname = e.name and c.relnamespace = 'outbox'::regnamespace
  left join pg_index as i on i.indexrelid = c.oid
  where i.indexrelid is null or not i.indisvalid or not i.indisready or e.is_unique and not i.indisunique;

  return query
  select 'INV-2', format('index %s', x.name), format('finds %s of the %s rows of its table', x.by_index, x.by_heap),
         'It is corrupt. Look at the disk and the server''s log, then: reindex index concurrently outbox....'
  from (
    select 'message_pkey' as name, (select count(*) from (select from outbox.message as m order by m.id offset 0) as x) as by_index,
           (select count(*) from outbox.message as m where m.ctid >= '(0,0)') as by_heap where audit_indexes.is_full
    union all
    select 'message_dispatch_key_key', (select count(*) from (select from outbox.message as m order by m.dispatch_key offset 0) as x),
           (select count(*) from outbox.message as m where m.ctid >= '(0,0)') where audit_indexes.is_full
    union all
    select 'pending_pkey', (select count(*) from (select from outbox.pending as p order by p.id offset 0) as x),
           (select count(*) from outbox.pending as p where p.ctid >= '(0,0)') where audit_indexes.is_full
    union all
    select 'pending_ripe', (select count(*) from (select from outbox.pending as p where p.ripe
                             order by p.ring, p.namespace, p.route_ring, p.task_queue, p.shard, p.visible_after, p.id offset 0) as x),
           (select count(*) from outbox.pending as p where p.ctid >= '(0,0)' and p.ripe::int = 1) where audit_indexes.is_full
    union all
    select 'pending_unripe_due', (select count(*) from (select from outbox.pending as p where not p.ripe
                                   order by p.shard, p.visible_after, p.id offset 0) as x),
           (select count(*) from outbox.pending as p where p.ctid >= '(0,0)' and p.ripe::int = 0) where audit_indexes.is_full
    union all
    select 'pending_unripe_namespace', (select count(*) from (select from outbox.pending as p where not p.ripe
                                         order by p.ring, p.namespace, p.visible_after, p.id offset 0) as x),
           (select count(*) from outbox.pending as p where p.ctid >= '(0,0)' and p.ripe::int = 0) where audit_indexes.is_full
    union all
    select 'settled_pkey', (select count(*) from (select from outbox.settled as s order by s.id offset 0) as x),
           (select count(*) from outbox.settled as s where s.ctid >= '(0,0)') where audit_indexes.is_full
    union all
    select 'settled_retention', (select count(*) from (select from outbox.settled as s order by s.outcome, s.settled_at offset 0) as x),
           (select count(*) from outbox.settled as s where s.ctid >= '(0,0)') where audit_indexes.is_full
    union all
    select 'settled_failed', (select count(*) from (select from outbox.settled as s where s.outcome = 'failed'
                               order by s.namespace, s.id offset 0) as x),
           (select count(*) from outbox.settled as s where s.ctid >= '(0,0)' and s.outcome || '' = 'failed') where audit_indexes.is_full
    union all
    select 'failure_id', (select count(*) from (select from outbox.failure as f order by f.id offset 0) as x),
           (select count(*) from outbox.failure as f where f.ctid >= '(0,0)') where audit_indexes.is_full
    union all
    select 'claimed_pkey', (select count(*) from (select from outbox.claimed as c order by c.id offset 0) as x),
           (select count(*) from outbox.claimed as c where c.ctid >= '(0,0)')
    union all
    select 'claimed_namespace', (select count(*) from (select from outbox.claimed as c order by c.namespace, c.claim_token offset 0) as x),
           (select count(*) from outbox.claimed as c where c.ctid >= '(0,0)')
    union all
    select 'claimed_token', (select count(*) from (select from outbox.claimed as c order by c.claim_token offset 0) as x),
           (select count(*) from outbox.claimed as c where c.ctid >= '(0,0)')
    union all
    select 'claimed_lease', (select count(*) from (select from outbox.claimed as c order by c.lease_until offset 0) as x),
           (select count(*) from outbox.claimed as c where c.ctid >= '(0,0)')
    union all
    select 'namespace_pkey', (select count(*) from (select from outbox.namespace as n order by n.namespace offset 0) as x),
           (select count(*) from outbox.namespace as n where n.ctid >= '(0,0)')
    union all
    select 'pause_key', (select count(*) from (select from outbox.pause as p order by p.namespace, p.task_queue offset 0) as x),
           (select count(*) from outbox.pause as p where p.ctid >= '(0,0)')
  ) as x
  where x.by_index <> x.by_heap;
end $$;
comment on function outbox.audit_indexes is 'The part of check() about indexes';
revoke all on function outbox.audit_indexes from public;
