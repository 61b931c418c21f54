-- requires: check_claim.sql next_held.sql walk_start.sql claim_walk.sql claim_pick.sql hold_reason.sql paused_routes.sql count_due.sql claim_locks.sql node_lock.sql shards_text.sql
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
-- that it would visit, in the order of the walk. It runs the same plan (claim_walk and
-- claim_pick), writes nothing and takes no lock (so what others have locked at this
-- instant, which claim_fair leaves out, counts here). "only" answers for one namespace,
-- wherever the walk stands. due counts no further than config.count_cap. What stands in
-- the way of the claim itself comes first, in rows without a namespace.
declare
  v_config outbox.config;
  v_shards int[];
  v_held   int[];
  v_next   int[];
  v_now    timestamptz := clock_timestamp();
  v_to     text;
  v_turn   bigint;
  v_row    record;
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
  for v_row in
    with walk as materialized (
      select w.* from outbox.claim_walk(explain_claim.node, v_next, cardinality(v_held), explain_claim.batch,
                                        v_to, v_turn, v_now, 0, null, false, v_config) as w
    ), pick as materialized (
      select x.i, count(*) filter (where x.pass = 1) as pass1, count(*) filter (where x.pass = 2) as pass2
      from walk as w
      cross join lateral outbox.claim_pick(
        explain_claim.node, w.namespaces, w.rounds, w.headrooms, w.soles, w.active, w.routes, w.route_of, w.width, v_held,
        v_next, explain_claim.batch, explain_claim.max_bytes, case when not w.more then w.rounds[1] end, v_now, false, v_config) as p
      cross join lateral unnest(p.picked, p.passes) as x(i, pass)
      where w.active > 0
      group by x.i
    ), visited as (
      select v.* from walk as w
      cross join lateral unnest(w.namespaces, w.verdicts, w.quotas, w.claimed, w.ceilings) with ordinality
                         as v(namespace, verdict, quota, claimed, ceiling, i)
      union all -- the one asked for, if the walk ends before it
      select o.namespaces[1], o.verdicts[1], o.quotas[1], o.claimed[1], o.ceilings[1], 0
      from outbox.claim_walk(explain_claim.node, v_next, cardinality(v_held), 1, v_to, v_turn, v_now, 0,
                             explain_claim."only", false, v_config) as o
      where explain_claim."only" is not null
        and explain_claim."only" <> all (select unnest(w.namespaces) from walk as w)
    )
    select v.*, w.active, coalesce(p.pass1, 0) as pass1, coalesce(p.pass2, 0) as pass2
    from visited as v
    cross join walk as w
    left join pick as p on p.i = v.i
    where explain_claim."only" is null or v.namespace = explain_claim."only"
    order by v.i
  loop
    namespace := v_row.namespace;
    due := outbox.count_due(v_row.namespace, v_next, v_now, v_config.count_cap);
    claimed := v_row.claimed;
    quota := v_row.quota;
    ceiling := v_row.ceiling;
    headroom := greatest(v_row.ceiling - v_row.claimed, 0);
    slice := case when v_row.active > 0 then (explain_claim.batch - 1) / v_row.active + 1 end;
    pass1 := v_row.pass1;
    pass2 := v_row.pass2;
    reason := coalesce(
      outbox.hold_reason(v_row.namespace, v_row.verdict, v_row.claimed, v_row.ceiling, v_row.quota, v_next, v_now),
      case when pass1 + pass2 = 0 then 'not reached this sweep'
           else format('served %s of %s%s', pass1 + pass2, greatest(due, pass1 + pass2),
                       case when due >= v_config.count_cap then ' or more' else '' end)
                || case when pass1 + pass2 >= due then ''
                        when pass1 + pass2 >= headroom then format(', up to its ceiling of %s', ceiling)
                        else coalesce('; ' || outbox.paused_routes(v_row.namespace, v_next, v_now),
                                      ', as many as the claim holds for it') end
      end);
    return next;
  end loop;
end $$;
comment on function outbox.explain_claim is 'What claim_fair would do now, and why; writes nothing';
revoke all on function outbox.explain_claim from public;
