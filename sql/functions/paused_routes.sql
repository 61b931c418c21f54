-- requires: pause_text.sql holds_of.sql walk_routes.sql walk_lanes.sql
create or replace function outbox.paused_routes(namespace text, next_held int[], now timestamptz)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- What holds back a namespace's routes that have due messages on held shards, pauses and holds, as
-- text; null if nothing does.
begin
  return (
    select string_agg(distinct x.reason, '; ')
    from outbox.walk_routes(paused_routes.namespace) as r
    cross join lateral (
      select nullif(concat_ws('; ',
        (select outbox.pause_text(p, paused_routes.now) from outbox.pause as p
         where p.task_queue = r.task_queue and (p.namespace = paused_routes.namespace or p.namespace is null)
           and coalesce(p.until > paused_routes.now, true)
         order by p.namespace nulls last limit 1),
        (select h.reason from outbox.holds_of(paused_routes.namespace, r.task_queue, paused_routes.now) as h)), '') as reason
    ) as x
    where exists (select from outbox.walk_lanes(paused_routes.namespace, r.task_queue, 0, paused_routes.next_held) as l
                  where l.head <= paused_routes.now)
  );
end $$;
comment on function outbox.paused_routes is 'The pauses of a namespace''s routes with due messages, as text';
revoke all on function outbox.paused_routes from public;
