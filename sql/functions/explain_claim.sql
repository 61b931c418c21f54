-- requires: gates.sql check_claim.sql next_held.sql walk_start.sql claim_walk.sql claim_read.sql claim_order.sql ceil_div.sql unripe_due.sql unripe_namespaces.sql hold_reason.sql paused_routes.sql count_due.sql claim_locks.sql node_lock.sql shards_text.sql
create or replace function outbox.explain_claim(
  node text, shards int[], batch int, max_bytes bigint default null, "only" text default null)
returns table (namespace text, due bigint, claimed int, quota int, ceiling int, headroom int, slice int,
               pass1 int, pass2 int, reason text)
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
-- What claim_fair with these arguments would do now, and why: a row for each namespace
-- that it would visit, in the order of the walk, and for some of those that it would not come to,
-- since all their messages wait for their time. It runs the same plan (claim_walk, claim_read,
-- claim_order), writes nothing and takes no lock. So what others have locked at this instant,
-- which claim_fair leaves out, counts here; and what has come due and is not ripe yet, which
-- claim_fair makes ripe first, counts as due, and is not in the passes. "only" answers for one
-- namespace, wherever the walk stands. due counts no further than config.count_cap. What
-- stands in the way of the claim itself comes first, in rows without a namespace.
declare
  v_config outbox.config;
  v_shards int[];
  v_held   int[];
  v_next   int[];
  v_now    timestamptz := clock_timestamp();
  v_to     text;
  v_turn   bigint;
  v_row    record;
  v_unripe bigint;
  v_others text[];
  v_gates  int := outbox.gates(true);
begin
  select c.* into strict v_config from outbox.config as c;
  v_shards := outbox.check_claim('explain_claim', explain_claim.node, explain_claim.shards, explain_claim.batch, v_config);
  v_held := v_shards;
  for v_row in
    select l.session || case when l.stray then format(', which is not claiming (to end it: %s)', l.remedy) else '' end as session,
           bool_or(l.key < 0) as is_node, bool_or(l.stray) as stray, array_agg(l.key order by l.key) filter (where l.key = any (v_shards)) as shards
    from outbox.claim_locks() as l
    where l.key between 0 and 1023 or l.key = outbox.node_lock(explain_claim.node)
    group by 1, l.pid order by l.pid
  loop
    if v_row.is_node then
      reason := format(case when v_row.stray then 'the claim would be empty: the lock of node %s is held by %s'
                            else 'the claim would be empty: node %s is claiming in %s' end, quote_literal(explain_claim.node), v_row.session);
      return next;
    end if;
    if v_row.shards is not null then
      v_held := array(select s.shard from unnest(v_held) as s(shard) where s.shard <> all (v_row.shards));
      reason := format('shards %s are held by %s and left out', outbox.shards_text(v_row.shards), v_row.session);
      return next;
    end if;
  end loop;
  if explain_claim.max_bytes <= 0 then
    reason := format('the claim would be empty: max_bytes is %s', explain_claim.max_bytes);
    return next;
    return;
  elsif cardinality(v_held) = 0 then
    reason := 'the claim would be empty: it has no shards';
    return next;
    return;
  end if;
  v_next := outbox.next_held(v_held, v_config.shard_count);

  select w.namespace, w.round into strict v_to, v_turn from outbox.walk_start(explain_claim.node, v_shards) as w;
  -- The one asked for, if the walk ends before it, or some that have nothing ripe.
  v_others := case when explain_claim."only" is not null then array[explain_claim."only" collate "C"] else array(
    select u.namespace from outbox.unripe_namespaces(100) as u
    where (select p.id from outbox.pending as p -- not as an anti join, which could read all there are
           where p.ripe and p.ring = outbox.ring(u.namespace) and p.namespace = u.namespace
           order by p.ring, p.namespace, p.route_ring, p.task_queue, p.shard, p.visible_after, p.id limit 1) is null) end;
  for v_row in
    with walk as materialized (
      select w.* from outbox.claim_walk(explain_claim.node collate "C", v_next, cardinality(v_held), explain_claim.batch,
                                        v_to, v_turn, v_now, 0, null, false, v_gates, v_config, null) as w
    ), pick as materialized (
      select r.of_visit[x.i] as visit, count(*) filter (where x.pass = 1) as pass1, count(*) filter (where x.pass = 2) as pass2
      from walk as w
      cross join lateral outbox.claim_read(explain_claim.node collate "C", w.visits, w.active, w.width, v_held, v_next, explain_claim.batch,
                                           v_now, false, v_gates, w.gated, w.gated_routes, w.caps,
                                           w.shared_routes, w.shared_left, v_config) as r
      cross join lateral outbox.claim_order(r.of_visit, r.sizes, r.wanted, outbox.ceil_div(explain_claim.batch, w.active), explain_claim.batch,
                                            explain_claim.max_bytes, case when w.ended = 'around' then w.visits[1].round end) as o
      cross join lateral unnest(o.picked, o.passes) as x(i, pass)
      where w.active > 0
      group by 1
    ), visited as (
      select v.* from walk as w
      cross join lateral unnest(w.visits) with ordinality
                         as v(namespace, round, verdict, quota, claimed, ceiling, sole, routes, looked_to, n)
      union all
      select o.visits[1].*, null
      from unnest(v_others) as u(namespace)
      cross join lateral outbox.claim_walk(explain_claim.node collate "C", v_next, cardinality(v_held), 1, v_to, v_turn, v_now, 0,
                                           u.namespace, false, v_gates, v_config, null) as o
      where u.namespace <> all (select v.namespace from walk as w cross join lateral unnest(w.visits) as v)
    )
    select v.*, w.active, coalesce(p.pass1, 0) as pass1, coalesce(p.pass2, 0) as pass2
    from visited as v
    cross join walk as w
    left join pick as p on p.visit = v.n
    where explain_claim."only" is null or v.namespace = explain_claim."only" collate "C"
    order by v.n
  loop
    namespace := v_row.namespace;
    due := outbox.count_due(v_row.namespace, v_next, v_now, v_config.count_cap);
    claimed := v_row.claimed;
    quota := v_row.quota;
    ceiling := v_row.ceiling;
    headroom := greatest(v_row.ceiling - v_row.claimed, 0);
    slice := case when v_row.active > 0 then outbox.ceil_div(explain_claim.batch, v_row.active) end;
    pass1 := v_row.pass1;
    pass2 := v_row.pass2;
    v_unripe := (select count(*) from outbox.unripe_due(v_row.namespace, v_next, v_now, v_config.count_cap) as u);
    reason := coalesce(
      outbox.hold_reason(v_row.namespace, v_row.verdict, v_row.claimed, v_row.ceiling, v_row.quota, v_next, v_now),
      case when pass1 + pass2 = 0 then 'not reached this sweep'
           else format('served %s of %s%s', pass1 + pass2, greatest(due, pass1 + pass2),
                       case when due >= v_config.count_cap then ' or more' else '' end)
                || case when pass1 + pass2 >= due then ''
                        when pass1 + pass2 >= headroom then format(', up to its ceiling of %s', ceiling)
                        when v_unripe > 0 then format(', and %s more that the claim first makes ripe', v_unripe)
                        else coalesce('; ' || outbox.paused_routes(v_row.namespace, v_next, v_now),
                                      ', as many as the claim holds for it') end
      end);
    return next;
  end loop;
end $$;
comment on function outbox.explain_claim is 'What claim_fair would do now, and why; writes nothing';
revoke all on function outbox.explain_claim from public;
