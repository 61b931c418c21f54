-- requires: is_live.sql queue_text.sql claim_locks.sql suspect_text.sql live_shards.sql check_key.sql next_held.sql claim_walk.sql hold_reason.sql time_text.sql pause_text.sql holds_of.sql
create or replace function outbox.why(dispatch_key text)
returns table (id bigint, namespace text, task_queue text, shard int, state text, attempts int,
               reason text, next_at timestamptz, failures text[])
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_material = off
set enable_memoize = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
-- Where one message stands: its state, attempts, what holds it back, when it can go next
-- (null: never by itself; a pause or a hold without an end, its namespace at its ceiling), and its last failures.
-- Always one row, also for a key that no message has.
declare
  v_now     timestamptz := clock_timestamp();
  v_config  outbox.config;
  v_pending outbox.pending;
  v_claimed outbox.claimed;
  v_settled outbox.settled;
  v_next    int[];
  v_hold    text;
  v_verdict text;
  v_paused  timestamptz; -- until when
  v_held    record; -- by its destination
  v_nodes   bigint;
  v_owners  text;
  v_owner   text; -- the first of them
begin
  perform outbox.check_key('why', 'dispatch_key', why.dispatch_key);
  select c.* into strict v_config from outbox.config as c;
  select m.id, m.namespace, m.task_queue into id, namespace, task_queue
  from outbox.message as m where m.dispatch_key = why.dispatch_key collate "C";
  if not found then
    state := 'unknown';
    reason := 'no message has this key: it was never enqueued, its transaction has not committed or was rolled back, or it was pruned';
    return next;
    return;
  end if;
  select array_agg(format('attempt %s at %s on %s: %s', x.attempt, outbox.time_text(x.at, v_now), x.node, x.error)) into failures
  from (select f.* from outbox.failure as f where f.id = why.id order by f.at desc limit 5) as x;

  select p.* into v_pending from outbox.pending as p where p.id = why.id;
  if found then
    state := 'pending';
    attempts := v_pending.attempt;
    shard := v_pending.shard;
    select h.* into v_held from outbox.holds_of(v_pending.namespace, v_pending.task_queue, v_now) as h;
    v_next := outbox.next_held(array(select generate_series(0, v_config.shard_count - 1)), v_config.shard_count);
    select v.verdict, outbox.hold_reason(v.namespace, v.verdict, v.claimed, v.ceiling, v.quota, v_next, v_now) into v_verdict, v_hold
    from outbox.claim_walk('', v_next, v_config.shard_count, 1, '', 0, v_now, 0, v_pending.namespace, false, 0, v_config, null) as w
    cross join lateral unnest(w.visits) as v
    where v.verdict in ('paused', 'ceiling');
    v_hold := nullif(concat_ws('; ', v_hold,
      (select outbox.pause_text(p, v_now) from outbox.pause as p
       where p.task_queue = v_pending.task_queue and (p.namespace = v_pending.namespace or p.namespace is null) and coalesce(p.until > v_now, true)
       order by p.namespace nulls last limit 1)), '');
    select max(coalesce(p.until, 'infinity')) into v_paused
    from (select u.until from outbox.pause as u
          where u.namespace = v_pending.namespace and (u.task_queue = v_pending.task_queue or u.task_queue is null) and coalesce(u.until > v_now, true)
          union all
          select u.until from outbox.pause as u
          where u.namespace is null and (u.task_queue = v_pending.task_queue or u.task_queue is null) and coalesce(u.until > v_now, true)) as p;
    next_at := case when v_verdict is distinct from 'ceiling'
                    then nullif(greatest(v_pending.visible_after, v_held.until, v_paused), 'infinity') end;
    v_hold := nullif(concat_ws('; ', v_hold, v_held.reason), '');
    select string_agg(o.node, ', ' order by o.node), min(o.node) into v_owners, v_owner from outbox.live_shards(v_now) as o where o.shard = v_pending.shard;
    select count(*) into v_nodes from outbox.node as n
    where outbox.is_live(n.heartbeat_at, v_now, v_config.node_lapse);
    reason := concat_ws('; ',
      case when v_pending.visible_after > v_now
           then format('%s until %s', case when v_pending.attempt > 0 then 'waits after a failed attempt' else 'delayed' end,
                       outbox.time_text(v_pending.visible_after, v_now)) end,
      v_hold,
      case when v_nodes > 0 and v_owners is null then format('no live node owns its shard %s', v_pending.shard) end,
      (select format('nothing is claimed from its shard %s: that is locked by %s, which is not claiming; to end it: %s',
                     v_pending.shard, l.session, l.remedy)
       from outbox.claim_locks() as l where l.key = v_pending.shard and l.stray limit 1));
    if reason = '' then
      reason := format('due: %s, on %s',
        case when v_pending.ripe then outbox.queue_text(v_pending.namespace, v_pending.shard, v_owner, v_config)
             else 'the next claim from its shard makes it ripe' end,
        coalesce(v_owners, 'whichever sweep claims its shard next; no node sends heartbeats'))
        || coalesce((select format('; a claim of %s holds its shard %s until its transaction ends', l.session, v_pending.shard)
                     from outbox.claim_locks() as l where l.key = v_pending.shard limit 1), '');
    end if;
    reason := reason || outbox.suspect_text(v_pending.suspect);
    return next;
    return;
  end if;

  select c.* into v_claimed from outbox.claimed as c where c.id = why.id;
  if found then
    state := 'claimed';
    attempts := v_claimed.attempt;
    shard := v_claimed.shard;
    next_at := v_claimed.lease_until;
    reason := format('claimed by %s since %s, ', v_claimed.claimed_by, outbox.time_text(v_claimed.claimed_at, v_now))
      || case when v_claimed.lease_until > v_now
              then format('lease until %s', outbox.time_text(v_claimed.lease_until, v_now))
              else format('lease ran out at %s: the next rescue takes it back', outbox.time_text(v_claimed.lease_until, v_now)) end
      || outbox.suspect_text(v_claimed.suspect);
    return next;
    return;
  end if;

  select s.* into v_settled from outbox.settled as s where s.id = why.id;
  state := coalesce(v_settled.outcome, 'moving');
  attempts := v_settled.attempts;
  shard := v_settled.shard;
  reason := case when v_settled.id is null then 'changed its state during this call: ask again'
                 else format('%s at %s by %s', v_settled.outcome, outbox.time_text(v_settled.settled_at, v_now),
                             v_settled.settled_by)
                      || coalesce(': ' || v_settled.error, '')
                      || case when v_settled.outcome <> 'done' then '; redrive() brings it back' else '' end end;
  return next;
end $$;
comment on function outbox.why is 'Where one message stands, and what holds it back';
revoke all on function outbox.why from public;
