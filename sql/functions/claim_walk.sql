-- requires: walk_namespaces.sql walk_routes.sql walk_lanes.sql node_ceiling.sql
create or replace function outbox.claim_walk(
  node text, next_held int[], held int, batch int, walked_to text, turn bigint, now timestamptz,
  "only" text, for_claim boolean, config outbox.config)
returns table (ord int, namespace text, wrapped boolean, round bigint, verdict text, quota int, is_strict boolean,
               claimed int, ceiling int, headroom int, sole_route text, route_at text, more boolean)
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off     -- The plans are part of the design: on a table that was
set enable_bitmapscan = off  -- analysed while it was empty, the planner would read and
set enable_hashjoin = off    -- sort the backlog.
set enable_mergejoin = off
set enable_material = off
set enable_memoize = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
-- The first half of a claim's plan: whom to serve. Visits namespaces from behind
-- walked_to on, once around, until batch of them are eligible (more are never
-- needed: the slice is 1 then), or config.max_visits are visited, or the time is up: the
-- last row says then that there may be more. The time bounds a walk past namespaces with
-- nothing due in very many lanes, so that the claim can keep the place it came to. The
-- verdict on each:
--
--   eligible  has due messages on held shards, is not paused, has headroom
--   paused    stopped, itself or with all
--   ceiling   no headroom: as many are claimed as its ceiling allows, or more
--   idle      nothing due on held shards, on a route that is not paused
--   locked    strict, and another claim is counting its quota
--
-- headroom is ceiling - claimed, on the held shards; for a strict namespace that is
-- closer to its quota than to its ceiling, both are those of all shards. round counts
-- the walk's visits to this very namespace: it grows by one with each, wherever the
-- walk wraps. sole_route is the route of an eligible namespace that is seen at once to
-- have no other with messages. route_at is the last route looked at of an idle namespace with more
-- routes than config.max_routes. Only for_claim takes locks: those of strict ones.
declare
  v_eligible int := 0;
  v_row      record;
begin
  for v_row in
    select w.namespace, w.wrapped, coalesce(q.quota, (claim_walk.config).default_quota) as quota,
           coalesce(q.strict, false) as is_strict, c.on_held, c.on_all, x.ceiling, p.paused,
           d.due, d.task_queue, d.sole
    from (
      select o.namespace, false as wrapped, null as task_queue, null as shard, null as head, false as sole
      from (values (claim_walk."only")) as o(namespace)
      where claim_walk."only" is not null
      union all
      (select n.namespace, n.wrapped, n.task_queue, n.shard, n.head, n.sole
       from outbox.walk_namespaces(claim_walk.walked_to, false, claim_walk.walked_to) as n
       where claim_walk."only" is null
       limit (claim_walk.config).max_visits)
    ) as w
    left join lateral (
      select n.quota, n.strict from outbox.namespace as n where n.namespace = w.namespace
    ) as q on true
    cross join lateral (
      select outbox.node_ceiling(coalesce(q.quota, (claim_walk.config).default_quota), claim_walk.held,
                                 (claim_walk.config).shard_count) as ceiling
    ) as x
    cross join lateral (
      select exists (select from outbox.pause as p where p.namespace = w.namespace and p.task_queue is null)
          or exists (select from outbox.pause as p where p.namespace is null and p.task_queue is null) as paused
    ) as p
    cross join lateral (
      select count(*) filter (where claim_walk.next_held[c.shard + 1] = c.shard) as on_held, count(*) as on_all
      from outbox.claimed as c where c.namespace = w.namespace
    ) as c
    left join lateral (
      -- The lane that the walk landed on is due, in the route that is looked at first;
      -- or else the first due lane of those that are looked at.
      (select w.task_queue, true as due, w.sole
       where claim_walk.next_held[w.shard + 1] = w.shard and w.head <= claim_walk.now
         and not exists (select from outbox.route as t where t.namespace = w.namespace)
         and not exists (select from outbox.pause as p
                         where p.namespace = w.namespace and p.task_queue = w.task_queue)
         and not exists (select from outbox.pause as p
                         where p.namespace is null and p.task_queue = w.task_queue))
      union all
      (select r.task_queue, y.due, false
       from (select coalesce(
               (select t.task_queue from outbox.route as t
                where t.namespace = w.namespace and t.node = claim_walk.node),
               (select t.task_queue from outbox.route as t
                where t.namespace = w.namespace order by t.served_at desc limit 1), '') as after
               offset 0) as s -- apart, for the next call to be inlined
       cross join lateral (
         select x.* from outbox.walk_routes(w.namespace, s.after) as x
         limit (claim_walk.config).max_routes
       ) as r
       cross join lateral (
         select not exists (select from outbox.pause as p
                            where p.namespace = w.namespace and p.task_queue = r.task_queue)
            and not exists (select from outbox.pause as p
                            where p.namespace is null and p.task_queue = r.task_queue)
            and (claim_walk.next_held[r.shard + 1] = r.shard and r.head <= claim_walk.now
                 or exists (select from outbox.walk_lanes(w.namespace, r.task_queue, 0, claim_walk.next_held) as l
                            where l.head <= claim_walk.now)) as due
         offset 0 -- evaluate it once
       ) as y
       where y.due or r.n = (claim_walk.config).max_routes)
      limit 1
    ) as d on not p.paused and c.on_held < x.ceiling
  loop
    ord := coalesce(ord, 0) + 1;
    namespace := v_row.namespace;
    wrapped := v_row.wrapped;
    round := claim_walk.turn + v_row.wrapped::int;
    quota := v_row.quota;
    is_strict := v_row.is_strict;
    claimed := v_row.on_held;
    ceiling := v_row.ceiling;
    route_at := null;
    sole_route := null;
    if v_row.paused then
      verdict := 'paused';
    elsif v_row.on_held >= v_row.ceiling then
      verdict := 'ceiling';
    elsif v_row.due then
      verdict := 'eligible';
      if v_row.sole then
        sole_route := v_row.task_queue;
      end if;
    else
      verdict := 'idle';
      route_at := v_row.task_queue;
    end if;
    if v_row.is_strict then
      if verdict = 'eligible' and claim_walk.for_claim then
        -- Whoever holds this row is the only one to claim from the namespace, until it
        -- commits. Only a statement that starts after that sees all that is claimed.
        perform from outbox.namespace as n where n.namespace = v_row.namespace for no key update skip locked;
        if found then
          select count(*) into v_row.on_all from outbox.claimed as c where c.namespace = v_row.namespace;
        else
          verdict := 'locked';
        end if;
      end if;
      if v_row.quota - v_row.on_all <= ceiling - claimed then
        claimed := v_row.on_all;
        ceiling := v_row.quota;
        if verdict = 'eligible' and claimed >= ceiling then
          verdict := 'ceiling';
        end if;
      end if;
    end if;
    headroom := greatest(ceiling - claimed, 0);
    v_eligible := v_eligible + (verdict = 'eligible')::int;
    more := ord = (claim_walk.config).max_visits or v_eligible = claim_walk.batch
            or clock_timestamp() > claim_walk.now + interval '2 s';
    return next;
    exit when more;
  end loop;
end $$;
comment on function outbox.claim_walk is 'Whom a claim serves: the namespaces it visits, and a verdict on each';
revoke all on function outbox.claim_walk from public;
