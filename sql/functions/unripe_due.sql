create or replace function outbox.unripe_due(namespace text, next_held int[], now timestamptz, cap int)
returns table (id bigint)
language sql stable
-- Up to cap messages of a namespace on held shards that have come due and that no claim has made
-- ripe yet, the oldest first. The bound within: those on other shards may be very many.
begin atomic
  select u.id
  from (select p.id, p.shard from outbox.pending as p
        where not p.ripe and p.ring = outbox.ring(unripe_due.namespace) and p.namespace = unripe_due.namespace
          and p.visible_after <= unripe_due.now
        order by p.visible_after, p.id limit 10000) as u
  where unripe_due.next_held[u.shard + 1] = u.shard limit unripe_due.cap;
end;
comment on function outbox.unripe_due is 'Messages of a namespace that have come due and are not ripe yet';
revoke all on function outbox.unripe_due from public;
