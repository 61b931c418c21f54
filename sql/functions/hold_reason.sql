-- requires: time_text.sql pause_text.sql paused_routes.sql route_gate.sql walk_routes.sql walk_lanes.sql
create or replace function outbox.hold_reason(
  namespace text, verdict text, claimed int, ceiling int, quota int, next_held int[], now timestamptz)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- Why a claim takes nothing from a namespace, given claim_walk's verdict on it; null
-- where it is eligible.
declare
  v_next   timestamptz;
  v_unripe timestamptz;
begin
  if hold_reason.verdict = 'paused' then
    return (select outbox.pause_text(p, hold_reason.now) from outbox.pause as p
            where p.task_queue is null and (p.namespace = hold_reason.namespace or p.namespace is null) and coalesce(p.until > hold_reason.now, true)
            order by p.namespace nulls last limit 1);
  elsif hold_reason.verdict = 'ceiling' then
    return case when hold_reason.quota = 0 then 'its quota is 0, which holds everything'
                when hold_reason.ceiling < hold_reason.quota
                then format('at its ceiling, %s of %s (its quota of %s, on these shards)', hold_reason.claimed,
                            hold_reason.ceiling, hold_reason.quota)
                else format('at its ceiling, %s of %s', hold_reason.claimed, hold_reason.ceiling) end;
  elsif hold_reason.verdict = 'idle' then
    select min(l.head) into v_next
    from outbox.walk_routes(hold_reason.namespace) as r
    cross join lateral outbox.walk_lanes(hold_reason.namespace, r.task_queue, 0, hold_reason.next_held) as l
    where not exists (select from outbox.pause as p
                      where p.task_queue = r.task_queue and (p.namespace = hold_reason.namespace or p.namespace is null) and coalesce(p.until > hold_reason.now, true))
      and (select least(g.own, g.common) from outbox.route_gate(hold_reason.namespace, r.task_queue, hold_reason.now, 7) as g)
          is distinct from 0;
    select min(u.visible_after) into v_unripe
    from (select p.shard, p.visible_after from outbox.pending as p -- within a bound: other shards may have very many
          where not p.ripe and p.ring = outbox.ring(hold_reason.namespace) and p.namespace = hold_reason.namespace
          order by p.visible_after, p.id limit 1000) as u
    where hold_reason.next_held[u.shard + 1] = u.shard;
    return case when v_next <= hold_reason.now
                then 'due only on routes that this sweep does not come to (config.max_routes)'
                else coalesce(outbox.paused_routes(hold_reason.namespace, hold_reason.next_held, hold_reason.now),
                              case when v_unripe <= hold_reason.now
                                   then 'came due at ' || outbox.time_text(v_unripe, hold_reason.now) || ': the next claim makes it ripe, and serves it then' end,
                              'nothing due until ' || outbox.time_text(least(v_next, v_unripe), hold_reason.now),
                              'nothing pending on these shards') end;
  end if;
  return null;
end $$;
comment on function outbox.hold_reason is 'Why a claim takes nothing from a namespace';
revoke all on function outbox.hold_reason from public;
