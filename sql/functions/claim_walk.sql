-- requires: walk_detour.sql walk_namespaces.sql due_routes.sql route_start.sql namespace_paused.sql route_paused.sql gate.sql route_gate.sql node_ceiling.sql ceil_div.sql
create or replace function outbox.claim_walk(
  node text, next_held int[], held int, batch int, cursor text, round bigint, now timestamptz,
  oldest_token bigint, "only" text, for_claim boolean, gates int, config outbox.config, inout detours outbox.detour[],
  out visits outbox.visit[], out active int, out ended text, out width int, out several boolean,
  out gated int[], out gated_routes text[], out caps int[], out shared_routes text[],
  out shared_left int[], out passed int)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- The first part of a claim: whom to serve. Visits namespaces with ripe messages in the order of
-- the ring, from behind the cursor on, until one of these ends the walk:
--
--   full    as many namespaces are eligible as the batch is large: more are never needed
--   cut     config.max_visits are visited, or the search for due routes has made too many vain
--           descents, the larger of 1,000 and 2 * max_visits, or has taken too long
--   around  it came once around: all that are eligible are among the visits
--   detour  the same, but for what lies on the stretches that it has passed over
--
--   parameter       what it is
--   node            whose route cursors count
--   batch, config   of the claim, and the settings
--   next_held, held the shards that the claim holds, as next_held() gives them, and how many
--   cursor, round   where the last walk ended, and how often it had come around by then
--   now             the claim's instant
--   oldest_token    on held shards, nothing is claimed with an older claim token: where a long
--                   transaction keeps dead rows, those of older claims are not waded through
--   only            visits this namespace alone
--   for_claim       false for explain_claim and why: it locks nothing, and counts what is claimed of
--                   each namespace, also of one that can get nothing anyway
--   gates           of which destinations there are some that are held or coming back, and whether this claim
--                   may probe those whose time is over: as gates() has it
--   detours         stretches of the ring to pass over; out: those that this walk found (see walk_detour)
--
-- Each visit: namespace; round, that of the cursor, and one more behind the end of the ring; quota;
-- claimed and ceiling, on held shards, or on all for a strict namespace whose quota leaves it less
-- than its ceiling does (for a claim, claimed may be of all namespaces together, where that leaves the
-- ceiling room for the batch); sole, if it has ripe messages in one route only; and the verdict:
--
--   eligible  has due messages on held shards, is not paused, and is below its ceiling. Then routes
--             are its due routes, in the order of the ring: all, but at most width of them, where
--             it has more than three routes, and as many more as there are routes of all that let something
--             through, since those before it may have taken that; looked_to is set then where there may be more
--   paused    by its name, or with all
--   ceiling   as many are claimed as its ceiling allows, or more
--   idle      nothing due on held shards, on a route that is neither paused nor held. Where the search for
--             one was cut, looked_to is the last route that it looked at
--   locked    strict, and another claim is counting its quota
--
-- active counts the eligible ones; several says that one of the visited is not sole. Of the routes of
-- eligible visits that have a gate, gated is the visit, gated_routes the route, and caps how many messages
-- of it the claim may take: what the route of all lets through is given to those who come first. shared_routes are
-- the routes of all that were met so, and shared_left what each of them still lets through. Where it did not
-- let all through that the walk came to, and that came once around, passed is the last visit that it let through: the next
-- walk goes on behind it, or the same one would come first for ever.
--
-- It goes in strides, so that one statement visits many namespaces: the first is of batch
-- namespaces, each later one at least as long as all before it together. It runs under
-- the settings of its caller, which pin the plans.
declare
  v_any_pause boolean;
  v_any_quota boolean;        -- there are namespaces with settings of their own
  v_few       bigint;         -- no more than these are claimed of all namespaces together; null: unknown, or many
  -- Half of what the statement may take is left to the rest of the claim.
  v_deadline  timestamptz := least(claim_walk.now + interval '2 s',
                                   statement_timestamp() + nullif(current_setting('statement_timeout')::interval, '0') / 2);
  v_vain      int := greatest(1000, 2 * (claim_walk.config).max_visits); -- descents that may still be in vain
  v_spent     int;            -- used up in this stride
  v_wrapped   boolean := false;
  v_size      int;
  v_stride    outbox.visit[];
  v_count     int;
  v_eligible  int;            -- of the stride
  v_search    int[];          -- of the stride, those without a verdict yet: their routes must be looked at
  v_searched  int;            -- how many of them were
  v_stricts   int[];          -- of the stride, the strict ones
  v_slow      int[];          -- of the stride, those that took very many pages,
  v_pages     bigint[];       --   how many to come to each, and how many within it
  v_within    bigint[];
  v_detoured  boolean[];      --   and whether a detour led to it
  v_from      text;           -- the namespace that the stride starts behind
  v_took      boolean := false; -- a detour was taken
  v_found     outbox.detour[];
  v_row       record;
  v_all       int;            -- claimed on all shards
  v_last      int;            -- of the stride, the last one visited
  v_gated     int[];          -- of the stride, the gates of its routes, by visit: the visit,
  v_routes    text[];         --   the route,
  v_owns      int[];          --   and both gates
  v_commons   int[];
  v_shut      int;            -- how many routes of all have a gate that lets something through
  v_gate      int;            -- the next of these
  v_cap       int;
  v_at        int;
  v_denied    boolean := false; -- a route of all did not let all through
begin
  visits := '{}';
  active := 0;
  several := false;
  ended := 'around';
  if claim_walk.for_claim and exists (select from outbox.pause as p where p.namespace is null and p.task_queue is null and coalesce(p.until > claim_walk.now, true)) then
    detours := null;
    return; -- all is paused
  end if;
  select exists (select from outbox.pause), (select n.namespace from outbox.namespace as n order by n.namespace limit 1) is not null,
         case when claim_walk.for_claim and claim_walk.oldest_token > 0
                and (select t.last_value from outbox.claim_token as t) - claim_walk.oldest_token < 16 * 4194304 -- of about 16 claims
              then (select count(*) from (select from outbox.claimed as c where c.claim_token >= claim_walk.oldest_token
                                          order by c.claim_token limit 10 * claim_walk.batch::bigint) as x) end
  into v_any_pause, v_any_quota, v_few;
  v_few := nullif(v_few, 10 * claim_walk.batch::bigint);
  loop
    v_size := least(greatest(claim_walk.batch - active, cardinality(visits)),
                    (claim_walk.config).max_visits - cardinality(visits));
    v_from := coalesce((visits[cardinality(visits)]).namespace, claim_walk.cursor);
    select array_agg(row(x.namespace, claim_walk.round + x.wrapped::int, x.verdict, x.quota, x.claimed, x.ceiling, x.sole,
                         case when x.verdict = 'eligible' then coalesce(x.routes, array[x.task_queue]) end, null)::outbox.visit),
           count(*) filter (where x.verdict = 'eligible'), array_agg(x.n) filter (where x.verdict is null), array_agg(x.n) filter (where x.is_strict),
           array_agg(x.n) filter (where x.is_slow), array_agg(x.pages) filter (where x.is_slow),
           array_agg(x.pages_within) filter (where x.is_slow), array_agg(x.detoured) filter (where x.is_slow),
           bool_or(x.wrapped), coalesce(bool_or(not x.sole), false) or several, coalesce(bool_or(x.detoured), false) or v_took,
           array_agg(x.n) filter (where x.has_gate), array_agg(x.task_queue) filter (where x.has_gate),
           array_agg(x.own) filter (where x.has_gate), array_agg(x.common) filter (where x.has_gate)
    into v_stride, v_eligible, v_search, v_stricts, v_slow, v_pages, v_within, v_detoured, v_wrapped, several, v_took,
         v_gated, v_routes, v_owns, v_commons
    from (
      select w.*, q.*, c.claimed, r.routes, g.own, g.common, least(g.own, g.common) > 0 as has_gate, w.pages >= 1000 or w.pages_within >= 1000 as is_slow,
             case when s.paused then 'paused'
                  when q.ceiling = 0 or c.claimed >= q.ceiling then 'ceiling'
                  when w.sole and v_any_pause
                    and (select r.paused from outbox.route_paused(w.namespace, w.task_queue, claim_walk.now) as r) then 'idle'
                  when least(g.own, g.common) = 0 then 'idle'
                  when w.sole and w.ready or r.routes is not null then 'eligible'
             end as verdict
      from (
        select 1 as n, claim_walk."only" as namespace, false as wrapped, null as task_queue, false as sole,
               0 as pages, 0 as pages_within, false as detoured, null as task_queues, null as ready
        where claim_walk."only" is not null
        union all
        select w.n, w.namespace, w.wrapped, w.task_queue, w.sole, w.pages, w.pages_within, w.detoured, w.task_queues,
               w.head <= claim_walk.now and claim_walk.next_held[w.shard + 1] = w.shard
               and (w.sole or cardinality(w.task_queues) <= (claim_walk.config).max_routes
                              and w.head_2 <= claim_walk.now and claim_walk.next_held[w.shard_2 + 1] = w.shard_2
                              and (cardinality(w.task_queues) = 2
                                   or w.head_3 <= claim_walk.now and claim_walk.next_held[w.shard_3 + 1] = w.shard_3)) as ready
        from outbox.walk_namespaces(v_from, v_wrapped, claim_walk.cursor, v_size, claim_walk.detours) as w
        where claim_walk."only" is null
      ) as w
      cross join lateral (
        select v_any_pause and (select z.paused from outbox.namespace_paused(w.namespace, claim_walk.now) as z) as paused offset 0
      ) as s
      left join lateral (
        select n.quota, n.strict from outbox.namespace as n where v_any_quota and n.namespace = w.namespace
      ) as o on true
      cross join lateral (
        select coalesce(o.quota, (claim_walk.config).default_quota) as quota, coalesce(o.strict, false) as is_strict,
               outbox.node_ceiling(coalesce(o.quota, (claim_walk.config).default_quota), claim_walk.held,
                                   (claim_walk.config).shard_count) as ceiling
      ) as q
      left join lateral (
        select r.* from outbox.route_gate(w.namespace, w.task_queue, claim_walk.now, claim_walk.gates) as r
        where claim_walk.gates > 0 and w.sole and w.ready
      ) as g on true
      cross join lateral (
        select case when not (claim_walk.for_claim and (s.paused or q.ceiling = 0 or coalesce(least(g.own, g.common) = 0, false))) then case
          when v_few <= q.ceiling - claim_walk.batch then v_few::int -- it cannot come to its ceiling: no need to count its own
          else (
          select (count(*) filter (where claim_walk.next_held[c.shard + 1] = c.shard))::int
          from outbox.claimed as c -- compared as pairs, which fit claimed_namespace alone
          where (c.namespace, c.claim_token) >= (w.namespace, claim_walk.oldest_token)
            and (c.namespace, c.claim_token) <= (w.namespace, 9223372036854775807)) end end as claimed
        offset 0
      ) as c
      left join lateral ( -- of two or three routes that are all due, in turn; unless one is paused or has a gate
        select array_agg(u.task_queue order by coalesce((outbox.ring(u.task_queue), u.task_queue collate "C") > (outbox.ring(t.task_queue), t.task_queue), true) desc, u.n) as routes
        from outbox.route_start(w.namespace, claim_walk.node, claim_walk.next_held) as t
        cross join lateral unnest(w.task_queues) with ordinality as u(task_queue, n)
        left join lateral (
          select h.* from outbox.route_gate(w.namespace, u.task_queue, claim_walk.now, claim_walk.gates) as h where claim_walk.gates > 0
        ) as h on true
        where w.task_queues is not null and w.ready and c.claimed < q.ceiling
        having not bool_or(least(h.own, h.common) is not null
                           or v_any_pause and (select z.paused from outbox.route_paused(w.namespace, u.task_queue, claim_walk.now) as z))
      ) as r on true
      order by w.n
    ) as x;
    v_count := coalesce(cardinality(v_stride), 0);
    exit when v_count = 0;

    -- Detours for the next claims: around what lies before a namespace, or, where that is its own doing,
    -- around itself. Where a detour did not help, it is the namespace before the detour.
    if claim_walk.for_claim and v_slow is not null then
      for i in 1 .. cardinality(v_slow) loop
        if v_within[i] >= 1000 then
          v_found := v_found || outbox.walk_detour(case when v_slow[i] > 1 then v_stride[v_slow[i] - 1].namespace else v_from end,
                                                   v_stride[v_slow[i]].namespace, v_within[i], true);
        elsif not v_detoured[i] then
          v_found := v_found || outbox.walk_detour(case when v_slow[i] > 1 then v_stride[v_slow[i] - 1].namespace else v_from end,
                                                   v_stride[v_slow[i]].namespace, v_pages[i], false);
        elsif v_slow[i] > 1 then
          v_found := v_found || outbox.walk_detour(case when v_slow[i] > 2 then v_stride[v_slow[i] - 2].namespace else v_from end,
                                                   v_stride[v_slow[i] - 1].namespace, v_pages[i], true);
        end if;
      end loop;
    end if;

    -- The due routes of the others, a first guess of how many: claim_read looks for more where the slice is longer.
    width := coalesce(width, least(outbox.ceil_div(claim_walk.batch, v_count), (claim_walk.config).max_routes));
    v_searched := 0;
    v_spent := 0;
    if v_search is not null then -- to start the statement costs more than a little
      if v_shut is null then -- so many due routes may turn out to be shut, as those before took all there was
        v_shut := case when claim_walk.gates & 4 = 0 then 0 else (
          select count(*) from outbox.destination as d
          where d.state in ('held', 'recovering') and d.namespace is null
            and outbox.gate(d, claim_walk.now, claim_walk.gates & 2 > 0) > 0) end;
      end if;
      for v_row in
        with recursive search(k, routes, looked_to, vain, pages, owns, commons) as (
          select 0, null::text[], null::text collate "C", 0, 0::bigint, null::int[], null::int[]
          union all
          select s.k + 1, r.routes, r.looked_to, s.vain + r.vain,
                 pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) - u.pages - r.vain, r.owns, r.commons
          from search as s
          cross join lateral (
            select v.namespace, case when not v.sole then (
                     select t.task_queue from outbox.route_start(v.namespace, claim_walk.node, claim_walk.next_held) as t) end as start,
                   pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) as pages
            from (select (v_stride[v_search[s.k + 1]]).namespace, (v_stride[v_search[s.k + 1]]).sole) as v
            offset 0
          ) as u
          cross join lateral (
            select array_agg(d.task_queue order by d.n) filter (where d.due) as routes,
                   max(d.task_queue) filter (where not d.due) as looked_to, max(d.vain) as vain,
                   array_agg(d.own order by d.n) filter (where d.due) as owns, array_agg(d.common order by d.n) filter (where d.due) as commons
            from (select d.*
                  from outbox.due_routes(u.namespace, u.start, claim_walk.next_held, claim_walk.now,
                                         (claim_walk.config).max_routes, v_vain - s.vain, claim_walk.gates) as d
                  limit claim_walk.width + v_shut) as d
          ) as r
          where s.k < cardinality(v_search) and s.vain < v_vain and (s.k = 0 or clock_timestamp() < v_deadline)
        )
        select s.k, v_search[s.k] as n, s.routes, s.looked_to, s.vain, s.pages, s.owns, s.commons from search as s where s.k > 0
      loop
        v_searched := v_row.k;
        v_spent := v_row.vain;
        v_stride[v_row.n].verdict := case when v_row.routes is null then 'idle' else 'eligible' end;
        v_stride[v_row.n].routes := v_row.routes;
        v_eligible := v_eligible + (v_row.routes is not null)::int;
        v_stride[v_row.n].looked_to := case
          when v_row.routes is null then v_row.looked_to
          when v_shut > 0 and cardinality(v_row.routes) >= width then v_row.routes[cardinality(v_row.routes)] end;
        if claim_walk.gates > 0 and v_row.routes is not null then
          for i in 1 .. cardinality(v_row.routes) loop
            if least(v_row.owns[i], v_row.commons[i]) is not null then
              v_gated := array_append(v_gated, v_row.n);
              v_routes := array_append(v_routes, v_row.routes[i]);
              v_owns := array_append(v_owns, v_row.owns[i]);
              v_commons := array_append(v_commons, v_row.commons[i]);
            end if;
          end loop;
        end if;
        if claim_walk.for_claim and v_row.pages >= 1000 then
          v_found := v_found || outbox.walk_detour(case when v_row.n > 1 then v_stride[v_row.n - 1].namespace else v_from end,
                                                   v_stride[v_row.n].namespace, v_row.pages, true);
        end if;
      end loop;
      v_vain := v_vain - v_spent;
    end if;

    -- What the gates let through, strict ones, and where the walk ends.
    if v_gated is not null then
      select array_agg(g.visit order by g.visit), array_agg(g.route order by g.visit),
             array_agg(g.own order by g.visit), array_agg(g.common order by g.visit)
      into v_gated, v_routes, v_owns, v_commons
      from unnest(v_gated, v_routes, v_owns, v_commons) as g(visit, route, own, common);
    end if;
    v_gate := 1;
    v_last := 0;
    if v_gated is null and v_stricts is null and v_searched >= coalesce(cardinality(v_search), 0)
       and (active + v_eligible < claim_walk.batch
            or active + v_eligible = claim_walk.batch and v_stride[v_count].verdict = 'eligible') then
      -- None of that: the stride is visited to its end.
      v_last := v_count;
      active := active + v_eligible;
    else
      v_eligible := null;
    end if;
    loop
      ended := case when active = claim_walk.batch then 'full'
                    when v_last + 1 = v_search[v_searched + 1] or cardinality(visits) + v_last = (claim_walk.config).max_visits then 'cut'
                    else 'around' end;
      exit when v_eligible is not null or ended <> 'around' or v_last = v_count;
      v_last := v_last + 1;
      if v_last = any (v_stricts) and (v_stride[v_last].verdict = 'eligible' or not claim_walk.for_claim) then
        if claim_walk.for_claim then
          -- Whoever holds this row is the only one to claim from the namespace, until it
          -- commits. Only a statement that starts after that sees all that is claimed.
          perform from outbox.namespace as n where n.namespace = v_stride[v_last].namespace for no key update skip locked;
          if not found then
            v_stride[v_last].verdict := 'locked';
          end if;
        end if;
        v_all := (select count(*) from outbox.claimed as c where c.namespace = v_stride[v_last].namespace);
        if v_stride[v_last].quota - v_all <= v_stride[v_last].ceiling - v_stride[v_last].claimed then
          v_stride[v_last].claimed := v_all;
          v_stride[v_last].ceiling := v_stride[v_last].quota;
          if v_stride[v_last].verdict = 'eligible' and v_all >= v_stride[v_last].quota then
            v_stride[v_last].verdict := 'ceiling';
          end if;
        end if;
      end if;
      while v_gated[v_gate] = v_last loop
        if v_stride[v_last].verdict = 'eligible' then
          v_cap := v_owns[v_gate];
          if v_commons[v_gate] is not null then
            v_at := array_position(shared_routes, v_routes[v_gate]);
            if v_at is null then
              shared_routes := array_append(shared_routes, v_routes[v_gate]);
              shared_left := array_append(shared_left, v_commons[v_gate]);
              v_at := cardinality(shared_routes);
            end if;
            v_cap := least(v_cap, shared_left[v_at], outbox.ceil_div(v_commons[v_gate], 10));
            shared_left[v_at] := shared_left[v_at] - v_cap;
            if v_cap > 0 then
              passed := cardinality(visits) + v_last;
            else
              v_denied := true;
            end if;
          end if;
          if v_cap > 0 then
            gated := array_append(gated, cardinality(visits) + v_last);
            gated_routes := array_append(gated_routes, v_routes[v_gate]);
            caps := array_append(caps, v_cap);
          elsif cardinality(v_stride[v_last].routes) > 1 then
            v_stride[v_last].routes := array_remove(v_stride[v_last].routes, v_routes[v_gate]);
          else -- the next claim looks for another route
            v_stride[v_last].verdict := 'idle';
            v_stride[v_last].routes := null;
            v_stride[v_last].looked_to := case when not v_stride[v_last].sole then v_routes[v_gate] end;
          end if;
        end if;
        v_gate := v_gate + 1;
      end loop;
      active := active + (v_stride[v_last].verdict = 'eligible')::int;
    end loop;
    visits := visits || v_stride[:v_last];
    exit when ended <> 'around' or v_count < v_size or claim_walk."only" is not null;
  end loop;
  -- A detour may lead past the end, and to nobody.
  if ended = 'around' and (v_took or exists (
       select from unnest(claim_walk.detours) as d
       where d.after = coalesce((visits[cardinality(visits)]).namespace, claim_walk.cursor))) then
    ended := 'detour';
  end if;
  if not v_denied or ended in ('full', 'cut') then
    passed := null;
  end if;
  detours := v_found;
end $$;
comment on function outbox.claim_walk is 'Whom a claim serves: the namespaces it visits, and a verdict on each';
revoke all on function outbox.claim_walk from public;
