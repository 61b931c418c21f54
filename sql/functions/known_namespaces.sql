-- requires: bad_argument.sql
create or replace function outbox.known_namespaces(after text default null, max int default 100)
returns setof text
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- The next max namespaces with claimed messages, dead letters, a quota of their own or a pause, in the
-- order of their names, from behind a name on (null: from the beginning). Some of them have pending
-- messages too; for those see unripe_namespaces() and walk_namespaces().
begin
  if coalesce(known_namespaces.max, 0) not between 1 and 10000 then
    perform outbox.bad_argument('known_namespaces', 'max', 'is not 1 to 10000', 'Give the most namespaces to return.');
  end if;
  return query
  with recursive walk(n, namespace) as (
    select 0, coalesce(known_namespaces.after, '') collate "C"
    union all
    select w.n + 1, x.namespace
    from walk as w
    cross join lateral (
      select least(
        (select c.namespace from outbox.claimed as c where c.namespace > w.namespace order by c.namespace limit 1),
        (select s.namespace from outbox.settled as s
         where s.namespace > w.namespace and s.outcome = 'failed' order by s.namespace limit 1),
        (select n.namespace from outbox.namespace as n where n.namespace > w.namespace order by n.namespace limit 1),
        (select u.namespace from outbox.pause as u where u.namespace > w.namespace order by u.namespace limit 1)
      ) as namespace
    ) as x
    where x.namespace is not null and w.n < known_namespaces.max
  )
  select w.namespace::text from walk as w where w.n > 0;
end $$;
comment on function outbox.known_namespaces is 'Namespaces with claimed or failed messages or settings, page by page';
revoke all on function outbox.known_namespaces from public;
