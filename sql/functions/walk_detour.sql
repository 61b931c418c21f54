create or replace function outbox.walk_detour(after text, landed text, pages bigint, is_its_own boolean)
returns outbox.detour[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- A stretch of the ring that later claims skip, where a walk read very many pages of outbox.pending on
-- its way from the namespace "after" to the next one with a ripe message that it could see, "landed".
-- It read past messages that it could not see: not committed yet, as of a large import, or dead and not
-- vacuumed yet, as behind a long transaction. Most often they are of a namespace between the two;
-- else of "landed" itself, as where reading its messages took these pages (is_its_own), and then that
-- is skipped as well. For pages / 500 claims, at most 100: so whoever makes claims slow is looked at
-- less often, and the others do not pay for it.
declare
  v_before bigint := pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass);
  v_upto   text;
begin
  select p.namespace into v_upto
  from outbox.pending as p
  where p.ripe and (p.ring, p.namespace) >= (outbox.ring(walk_detour.landed), walk_detour.landed)
  order by p.ring, p.namespace, p.route_ring, p.task_queue, p.shard, p.visible_after limit 1;
  if walk_detour.is_its_own or pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) - v_before > walk_detour.pages / 2 then
    select p.namespace into v_upto
    from outbox.pending as p
    where p.ripe and (p.ring, p.namespace) > (outbox.ring(walk_detour.landed), walk_detour.landed)
    order by p.ring, p.namespace, p.route_ring, p.task_queue, p.shard, p.visible_after limit 1;
    if v_upto is null then -- behind the end of the ring comes its beginning
      select p.namespace into v_upto
      from outbox.pending as p
      where p.ripe
      order by p.ring, p.namespace, p.route_ring, p.task_queue, p.shard, p.visible_after limit 1;
    end if;
  end if;
  return array[row(walk_detour.after, v_upto, least(walk_detour.pages / 500, 100))::outbox.detour];
end $$;
comment on function outbox.walk_detour is 'A stretch of the ring that claims shall pass over for a while';
revoke all on function outbox.walk_detour from public;
