-- requires: time_text.sql pause_text.sql walk_routes.sql walk_lanes.sql
create or replace function outbox.hold_reason(
  namespace text, verdict text, claimed int, ceiling int, is_strict boolean, next_held int[], now timestamptz)
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
  v_next timestamptz;
  v_text text;
begin
  case hold_reason.verdict
  when 'paused' then
    return (select outbox.pause_text(p, hold_reason.now) from outbox.pause as p
            where p.task_queue is null and (p.namespace = hold_reason.namespace or p.namespace is null)
            order by p.namespace nulls last limit 1);
  when 'ceiling' then
    return case when hold_reason.ceiling = 0 then 'its quota is 0, which holds everything'
                when hold_reason.is_strict
                then format('at its quota, %s of %s, strict', hold_reason.claimed, hold_reason.ceiling)
                else format('at its ceiling, %s of %s', hold_reason.claimed, hold_reason.ceiling) end;
  when 'locked' then
    return 'strict, and another claim is counting its quota';
  when 'idle' then
    select min(l.head) filter (where p.pause is null),
           string_agg(distinct outbox.pause_text(p.pause, hold_reason.now), '; ') filter (where l.head <= hold_reason.now)
    into v_next, v_text
    from outbox.walk_routes(hold_reason.namespace, '') as r
    cross join lateral outbox.walk_lanes(hold_reason.namespace, r.task_queue, 0, hold_reason.next_held) as l
    left join lateral (
      select p as pause from outbox.pause as p
      where p.task_queue = r.task_queue and (p.namespace = hold_reason.namespace or p.namespace is null)
      order by p.namespace nulls last limit 1
    ) as p on true;
    return case when v_text is not null then v_text
                when v_next is not null then format('nothing due until %s', outbox.time_text(v_next, hold_reason.now))
                else 'nothing pending on these shards' end;
  else
    return null;
  end case;
end $$;
comment on function outbox.hold_reason is 'Why a claim takes nothing from a namespace';
revoke all on function outbox.hold_reason from public;
