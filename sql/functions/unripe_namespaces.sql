create or replace function outbox.unripe_namespaces(size int)
returns table (namespace text)
language sql stable
-- Up to size namespaces with messages that are not ripe, in the order of the ring; size null for
-- all. A loose index scan: a descent of pending_unripe_namespace each. Lazy.
begin atomic
  with recursive walk(n, ring, namespace) as (
    select 0, -2147483648, ''::text collate "C"
    union all
    select w.n + 1, x.ring, x.namespace
    from walk as w
    cross join lateral (
      select p.ring, p.namespace from outbox.pending as p
      where not p.ripe and (p.ring, p.namespace) > (w.ring, w.namespace)
      order by p.ring, p.namespace, p.visible_after limit 1
    ) as x
    where (w.n < unripe_namespaces.size) is not false
  )
  select w.namespace from walk as w where w.n > 0;
end;
comment on function outbox.unripe_namespaces is 'Namespaces with messages that are not ripe, by loose index scan';
revoke all on function outbox.unripe_namespaces from public;
