-- requires: walk_namespaces.sql due_routes.sql node_ceiling.sql
create or replace function outbox.claim_walk(
  node text, next_held int[], held int, batch int, walked_to text, turn bigint, now timestamptz,
  edge bigint, "only" text, for_claim boolean, config outbox.config,
  out namespaces text[], out verdicts text[], out rounds bigint[], out quotas int[], out claimed int[], out ceilings int[],
  out headrooms int[], out soles boolean[], out active int, out idle text[], out idle_at text[],
  out routes text[], out route_of int[], out width int, out wrapped boolean, out more boolean)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- The first half of a claim's plan: whom to serve. Visits namespaces from behind
-- walked_to on, once around, until batch of them are eligible (more are never
-- needed: the slice is 1 then), or config.max_visits are visited, or the time is up: more
-- says then that there may be more. The time bounds a walk past namespaces with
-- nothing due in very many lanes, so that the claim can keep the place it came to. The
-- verdict on each:
--
--   eligible  has due messages on held shards, is not paused, has headroom
--   paused    stopped, itself or with all
--   ceiling   no headroom: as many are claimed as its ceiling allows, or more
--   idle      nothing due on held shards, on a route that is not paused
--   locked    strict, and another claim is counting its quota
--
-- One row of arrays, by namespace in the order of the walk. claimed and ceiling are those
-- on held shards, or on all for a strict namespace that is closer to its quota than to its
-- ceiling; headroom is the difference, 0 unless eligible. A round counts the walk's visits
-- to this very namespace: it grows by one with each, wherever the walk wraps. A sole one
-- has messages in one route only. idle are the idle ones with more routes than
-- config.max_routes, idle_at the last route looked at of each.
--
-- routes are the due routes of the eligible ones, in their turn, route_of the namespace of
-- each, as an index: up to width of a namespace, and all if they are fewer.
--
-- It goes in strides, so that one statement serves many namespaces: the first is as long as
-- it takes if all are eligible, each later one at least as long as all before. Only
-- for_claim takes locks: those of strict namespaces.
--
-- On held shards, nothing is claimed with a token below edge: where a long transaction
-- keeps dead rows, those of all older claims are not waded through.
--
-- It runs under the settings of its caller, which pin the plans.
declare
  v_any_pause boolean := exists (select from outbox.pause);
  v_all_pause boolean := exists (select from outbox.pause as p where p.namespace is null and p.task_queue is null);
  -- Half of what the statement may take is left to the rest of the claim.
  v_deadline  timestamptz := least(claim_walk.now + interval '2 s',
                                   statement_timestamp() + nullif(current_setting('statement_timeout')::interval, '0') / 2);
  v_size      int;
  v_count     int;       -- of this stride: namespaces,
  v_names     text[];    --   and their facts
  v_wraps     boolean[];
  v_verdicts  text[];
  v_quotas    int[];
  v_claimed   int[];
  v_all       int[];     -- claimed on all shards
  v_ceilings  int[];
  v_soles     boolean[];
  v_search    int[];     -- those whose routes must be looked at,
  v_stricts   boolean[]; -- whether each is strict
  v_of        int[];     -- their due routes
  v_queues    text[];
  v_row       record;
  v_idle_at   text[];
  v_late      int;       -- the first one that there was no time for
  v_rooms     int[];
  i           int;
begin
  namespaces := '{}';
  active := 0;
  wrapped := false;
  more := false;
  loop
    v_size := least(greatest(claim_walk.batch - active, cardinality(namespaces)),
                    (claim_walk.config).max_visits - cardinality(namespaces));
    select count(*), array_agg(x.namespace), array_agg(x.wrapped), array_agg(x.verdict), array_agg(x.quota),
           array_agg(x.on_held), array_agg(x.on_all), array_agg(x.ceiling), array_agg(x.sole),
           array_agg(x.n) filter (where x.verdict is null), array_agg(x.is_strict),
           array_agg(x.n) filter (where x.verdict = 'eligible'), array_agg(x.task_queue) filter (where x.verdict = 'eligible')
    into v_count, v_names, v_wraps, v_verdicts, v_quotas, v_claimed, v_all, v_ceilings, v_soles, v_search, v_stricts,
         v_of, v_queues
    from (
      select w.n, w.namespace, w.wrapped, w.task_queue, w.sole, q.quota, q.is_strict, c.on_held, q.ceiling,
             case when q.is_strict
                  then (select count(*) from outbox.claimed as c where c.namespace = w.namespace)::int end as on_all,
             case when v_all_pause
                    or v_any_pause and exists (select from outbox.pause as p
                                               where p.namespace = w.namespace and p.task_queue is null) then 'paused'
                  when c.on_held >= q.ceiling then 'ceiling'
                  when w.sole and w.head <= claim_walk.now and claim_walk.next_held[w.shard + 1] = w.shard
                    and not (v_any_pause
                             and (exists (select from outbox.pause as p
                                          where p.namespace = w.namespace and p.task_queue = w.task_queue)
                                  or exists (select from outbox.pause as p
                                             where p.namespace is null and p.task_queue = w.task_queue))) then 'eligible'
             end as verdict
      from (
        select 1 as n, o.namespace, false as wrapped, null as task_queue, null as shard, null as head, false as sole
        from (values (claim_walk."only")) as o(namespace)
        where claim_walk."only" is not null
        union all
        select * from outbox.walk_namespaces(coalesce(v_names[v_count], claim_walk.walked_to), claim_walk.wrapped,
                                             claim_walk.walked_to, v_size)
        where claim_walk."only" is null
      ) as w
      left join lateral (
        select n.quota, n.strict from outbox.namespace as n where n.namespace = w.namespace
      ) as o on true
      cross join lateral (
        select coalesce(o.quota, (claim_walk.config).default_quota) as quota, coalesce(o.strict, false) as is_strict,
               outbox.node_ceiling(coalesce(o.quota, (claim_walk.config).default_quota), claim_walk.held,
                                   (claim_walk.config).shard_count) as ceiling
      ) as q
      cross join lateral (
        select (count(*) filter (where claim_walk.next_held[c.shard + 1] = c.shard))::int as on_held
        from outbox.claimed as c -- bounds of pairs, for no other index to come into question
        where (c.namespace, c.claim_token) >= (w.namespace, claim_walk.edge)
          and (c.namespace, c.claim_token) <= (w.namespace, 9223372036854775807)
      ) as c
      order by w.n
    ) as x;
    exit when v_count = 0;

    -- Of a namespace, more routes than its slice is long are not needed.
    width := coalesce(width, least((claim_walk.batch - 1) / v_count + 1, (claim_walk.config).max_routes));
    v_late := v_count + 1;
    v_idle_at := array_fill(null::text, array[v_count]);
    if v_search is not null then -- else nothing is to be set up
      for v_row in
        select u.i, t.is_late, r.task_queue, r.due
        from unnest(v_search) with ordinality as u(i, n)
        cross join lateral (
          select u.n > 1 and clock_timestamp() > v_deadline as is_late offset 0
        ) as t
        left join lateral (
          select r.task_queue, r.due
          from outbox.due_routes(v_names[u.i], claim_walk.node, claim_walk.next_held, claim_walk.now,
                                 (claim_walk.config).max_routes) as r
          where not t.is_late
          limit claim_walk.width
        ) as r on true
      loop
        if v_row.is_late then
          v_late := v_row.i;
          exit;
        elsif v_row.due then
          v_verdicts[v_row.i] := 'eligible';
          v_of := v_of || v_row.i;
          v_queues := v_queues || v_row.task_queue;
        elsif v_verdicts[v_row.i] is null then
          v_verdicts[v_row.i] := 'idle';
          v_idle_at[v_row.i] := v_row.task_queue;
        end if;
      end loop;
    end if;

    v_rooms := array_fill(0, array[v_count]);
    i := 0;
    loop
      more := active = claim_walk.batch or i + 1 = v_late and v_late <= v_count
              or cardinality(namespaces) + i = (claim_walk.config).max_visits;
      exit when more or i = v_count;
      i := i + 1;
      if v_stricts[i] then
        if v_verdicts[i] = 'eligible' and claim_walk.for_claim then
          -- Whoever holds this row is the only one to claim from the namespace, until it
          -- commits. Only a statement that starts after that sees all that is claimed.
          perform from outbox.namespace as n where n.namespace = v_names[i] for no key update skip locked;
          if found then
            v_all[i] := (select count(*) from outbox.claimed as c where c.namespace = v_names[i]);
          else
            v_verdicts[i] := 'locked';
          end if;
        end if;
        if v_quotas[i] - v_all[i] <= v_ceilings[i] - v_claimed[i] then
          v_claimed[i] := v_all[i];
          v_ceilings[i] := v_quotas[i];
          if v_verdicts[i] = 'eligible' and v_claimed[i] >= v_ceilings[i] then
            v_verdicts[i] := 'ceiling';
          end if;
        end if;
      end if;
      if v_verdicts[i] = 'eligible' then
        active := active + 1;
        v_rooms[i] := v_ceilings[i] - v_claimed[i];
      elsif v_idle_at[i] is not null then
        idle := idle || v_names[i];
        idle_at := idle_at || v_idle_at[i];
      end if;
    end loop;

    routes := routes || v_queues;
    route_of := route_of || array(select cardinality(claim_walk.namespaces) + u.i from unnest(v_of) as u(i));
    namespaces := namespaces || v_names[:i];
    verdicts := verdicts || v_verdicts[:i];
    rounds := rounds || array(select claim_walk.turn + u.wrapped::int from unnest(v_wraps[:i]) as u(wrapped));
    quotas := quotas || v_quotas[:i];
    claimed := claimed || v_claimed[:i];
    ceilings := ceilings || v_ceilings[:i];
    headrooms := headrooms || v_rooms[:i];
    soles := soles || v_soles[:i];
    wrapped := v_wraps[i];
    exit when more or v_count < v_size or claim_walk."only" is not null;
  end loop;
end $$;
comment on function outbox.claim_walk is 'Whom a claim serves: the namespaces it visits, and a verdict on each';
revoke all on function outbox.claim_walk from public;
