-- requires: due_routes.sql route_start.sql claim_lanes.sql ceil_div.sql
create or replace function outbox.claim_read(
  node text, visits outbox.visit[], active int, width int, held int[], next_held int[], batch int, now timestamptz,
  for_claim boolean, gates int, gated int[], gated_routes text[], caps int[], shared_routes text[],
  shared_left int[], config outbox.config,
  out of_visit int[], out of_route int[], out ids bigint[], out tids tid[], out due_ats timestamptz[], out shards int[],
  out attempts int[], out suspects int[], out sizes int[],
  out wanted int[], out rotating text[], out queues text[], out wading int, out pages bigint,
  out route_caps int[])
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- The second part of a claim: how many messages from each eligible namespace, and which. That is
-- max-min fairness by progressive filling: everybody gets the same, until somebody has no more or
-- is at its ceiling; what they leave is shared out equally among the others, and so on.
-- The first filling is the slice, ceil(batch / active). Within a namespace its routes
-- share what it gets in the same way. Each filling reads again, with larger parts: only so
-- many messages are read as may be taken. Most often the slices fill the batch, and one reading does.
--
--   parameter            what it is
--   node                 whose route cursors count
--   visits .. width      what claim_walk() returned
--   held, next_held      the shards that the claim holds, and as next_held() gives them
--   now                  the claim's instant: what is due later is not read
--   gates                as claim_walk() has it
--   gated .. shared_left routes of which only so many messages may be taken, and what routes of all still let
--                        through: what claim_walk() returned
--   for_claim            locks what it reads, and leaves out what others have locked; false for
--                        explain_claim, which locks nothing
--
-- Candidates are what was read, null if there are none: the visit and the route, as indexes, id and
-- place, when it came due, shard, attempts so far, how often it was suspect, and its bytes
-- (of_visit .. sizes; arrays of plain values, since those of rows cost several times as much). They
-- stand by visit, and those of a visit in the order in which they may be taken: round-robin over its
-- routes, of each the oldest first, lane by lane. wanted is by visit: so many of its candidates it may
-- get. By route are queues, its name, rotating, its namespace, unless that is sole, and route_caps, how many of
-- it may be taken, null for any number. wading is the visit whose reading took very many pages of
-- outbox.pending for few messages, if one did, and pages how many: see walk_detour().
--
-- The lanes of a route start at a shard drawn by hash from the namespace and the round, so that no
-- rhythm of the claims can pass one over. Where others have locked all that is due on the routes
-- at hand, more routes are looked at. It runs under the settings of its caller.
declare
  v_count  int := cardinality(claim_read.visits);
  v_most   int := (claim_read.config).max_routes;
  v_slice  int := outbox.ceil_div(claim_read.batch, claim_read.active);
  -- by visit:
  v_rooms  int[];          -- rows that its ceiling allows
  v_look   int[];          -- routes to look for,
  v_wide   int[];          --   and those looked for: if it has fewer, it has no more
  v_known  int[];          -- routes at hand
  v_nth    int[];          -- a counter of them
  v_got    int[];          -- rows read
  v_open   int[];          -- routes that may have more rows
  -- by route:
  v_of     int[];          -- its visit
  v_names  text[];         -- its namespace
  v_firsts int[];          -- the shard of the lane that it starts at
  v_parts  int[];          -- rows asked for
  v_have   int[];          -- rows read: if fewer, it has no more
  v_gates  int[];          -- of a route that was found later, what the route of all lets through
  v_search int[];          -- visits of which more routes are needed
  v_first  boolean;        -- the first filling, whose parts are known
  v_again  boolean;
  v_sum    int := 0;       -- rows read in all
  v_before bigint;
  v_starts bigint[];       -- by row: how many pages had been read when the reading of its route began
  v_spent  bigint[];       -- by route: how many were read between its rows and those of the next route with rows
  v_start  bigint;
  v_end    bigint;
  v_left   int;
  v_hungry int;
  v_gate   int;
  i        int;
begin
  -- The slices, and the part of each route: what its namespace wants, in equal parts.
  select array_agg(x.room) filter (where x.of_visit), array_agg(x.wide) filter (where x.of_visit),
         array_agg(x.known) filter (where x.of_visit), array_agg(x.wanted) filter (where x.of_visit),
         array_agg(least(x.wanted, v_most)) filter (where x.of_visit),
         array_agg(x.n) filter (where x.known > 0), array_agg(x.namespace) filter (where x.known > 0),
         array_agg(x.task_queue) filter (where x.known > 0),
         array_agg(case when not x.sole then x.namespace end) filter (where x.known > 0),
         array_agg(claim_read.held[1 + (hashtextextended(x.namespace collate "C", x.round) & 9223372036854775807)
                                       % cardinality(claim_read.held)]) filter (where x.known > 0),
         array_agg(case when x.nth <= x.wanted then outbox.ceil_div(x.wanted, least(x.known, x.wanted)) else 0 end) filter (where x.known > 0),
         not bool_or(x.known = x.wide and x.wide < least(x.wanted, v_most)) and claim_read.gated is null
  into v_rooms, v_wide, v_known, wanted, v_look, v_of, v_names, queues, rotating, v_firsts, v_parts, v_first
  from (
    select v.*, r.task_queue, r.nth, coalesce(r.nth, 1) = 1 as of_visit, least(v.room, v_slice) as wanted
    from (
      select v.*, case when v.verdict = 'eligible' then v.ceiling - v.claimed else 0 end as room,
             case when v.sole then v_most
                  when v.verdict = 'eligible' and v.looked_to is not null then cardinality(v.routes)
                  else claim_read.width end as wide,
             case when v.verdict = 'eligible' then cardinality(v.routes) else 0 end as known
      from unnest(claim_read.visits) with ordinality
           as v(namespace, round, verdict, quota, claimed, ceiling, sole, routes, looked_to, n)
    ) as v
    left join lateral unnest(v.routes) with ordinality as r(task_queue, nth) on v.verdict = 'eligible'
  ) as x;
  pages := pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass);
  if not v_first then
    v_parts := array_fill(null::int, array[cardinality(v_of)]);
  end if;
  v_have := array_fill(null::int, array[cardinality(v_of)]);
  route_caps := v_have;
  v_gates := v_have;
  if claim_read.gated is not null then
    v_gate := 1;
    for r in 1 .. cardinality(v_of) loop -- both by visit
      while claim_read.gated[v_gate] < v_of[r] loop
        v_gate := v_gate + 1;
      end loop;
      i := v_gate;
      while claim_read.gated[i] = v_of[r] loop
        if claim_read.gated_routes[i] = queues[r] then
          route_caps[r] := claim_read.caps[i];
        end if;
        i := i + 1;
      end loop;
    end loop;
  end if;
  v_got := array_fill(0, array[v_count]);
  v_open := v_got;

  loop
    if not v_first then
      -- Routes, where more are needed than are at hand.
      v_search := array(select u.n from unnest(v_known, v_wide, v_look) with ordinality as u(known, wide, look, n)
                        where u.known = u.wide and u.wide < u.look);
      if v_search <> '{}' then
        select array_agg(x.i order by x.i, x.n), array_agg(x.name order by x.i, x.n), array_agg(x.queue order by x.i, x.n),
               array_agg(x.rotating order by x.i, x.n), array_agg(x.first order by x.i, x.n), array_agg(x.part order by x.i, x.n),
               array_agg(x.have order by x.i, x.n), array_agg(x.cap order by x.i, x.n), array_agg(x.gate order by x.i, x.n)
        into v_of, v_names, queues, rotating, v_firsts, v_parts, v_have, route_caps, v_gates
        from (
          select u.* from unnest(v_of, v_names, queues, rotating, v_firsts, v_parts, v_have, route_caps, v_gates) with ordinality
                          as u(i, name, queue, rotating, first, part, have, cap, gate, n)
          where u.i <> all (v_search)
          union all
          select o.i, o.name, r.task_queue, o.name, o.first, null, null, r.cap, r.gate, r.n
          from (select distinct on (u.i) u.* from unnest(v_of, v_names, v_firsts) as u(i, name, first)
                where u.i = any (v_search) order by u.i) as o
          cross join lateral (
            select d.task_queue, d.n, coalesce(g.cap, d.own) as cap, case when g.cap is null then d.common end as gate
            from outbox.route_start(o.name, claim_read.node, claim_read.next_held) as s
            cross join lateral outbox.due_routes(o.name, s.task_queue, claim_read.next_held, claim_read.now, v_most, 1000,
                                               claim_read.gates) as d
            left join lateral (
              select u.cap from unnest(claim_read.gated, claim_read.gated_routes, claim_read.caps) as u(visit, route, cap)
              where u.visit = o.i and u.route = d.task_queue
            ) as g on least(d.own, d.common) is not null
            where d.due limit v_look[o.i]
          ) as r
        ) as x;
        foreach i in array v_search loop
          v_wide[i] := v_look[i];
        end loop;
        for r in 1 .. coalesce(cardinality(v_of), 0) loop -- what is left of what the routes of all let through
          if v_gates[r] is not null then
            i := array_position(claim_read.shared_routes, queues[r]);
            if i is null then
              shared_routes := array_append(claim_read.shared_routes, queues[r]);
              shared_left := array_append(claim_read.shared_left, v_gates[r]);
              i := cardinality(claim_read.shared_routes);
            end if;
            route_caps[r] := least(route_caps[r], claim_read.shared_left[i], outbox.ceil_div(v_gates[r], 10));
            shared_left[i] := claim_read.shared_left[i] - route_caps[r];
            v_gates[r] := null;
            gated := array_append(claim_read.gated, v_of[r]); -- should it be looked for again
            gated_routes := array_append(claim_read.gated_routes, queues[r]);
            caps := array_append(claim_read.caps, route_caps[r]);
          end if;
        end loop;
        v_known := array_fill(0, array[v_count]);
        foreach i in array coalesce(v_of, '{}') loop
          v_known[i] := v_known[i] + 1;
        end loop;
        continue when v_of is not null;
        ids := null; -- their routes are gone: others have taken, cancelled or paused them
        exit;
      end if;

      -- The part of each route: what its namespace wants, or still wants, in equal parts.
      v_nth := array_fill(0, array[v_count]);
      for r in 1 .. cardinality(v_of) loop
        i := v_of[r];
        v_nth[i] := v_nth[i] + 1;
        if v_parts[r] is null then
          v_parts[r] := case when v_nth[i] <= wanted[i] then outbox.ceil_div(wanted[i], least(v_known[i], wanted[i])) else 0 end;
        elsif v_have[r] = v_parts[r] and v_got[i] < wanted[i] and v_have[r] is distinct from route_caps[r] then
          v_parts[r] := v_parts[r] + outbox.ceil_div(wanted[i] - v_got[i], v_open[i]);
        end if;
        v_parts[r] := least(v_parts[r], route_caps[r]);
      end loop;
    end if;

    if claim_read.for_claim then
      select array_agg(x.visit), array_agg(x.route), array_agg(x.id), array_agg(x.tid), array_agg(x.due_at), array_agg(x.shard),
             array_agg(x.attempt), array_agg(x.suspect), array_agg(x.payload_bytes), array_agg(x.start)
      into of_visit, of_route, ids, tids, due_ats, shards, attempts, suspects, sizes, v_starts
      from (
        select u.visit, u.route, u.start, m.*
        from (
          select u.*, pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) as start
          from unnest(v_of, v_names, queues, v_firsts, v_parts) with ordinality as u(visit, namespace, task_queue, first, part, route)
          where u.part > 0
        ) as u
        cross join lateral (
          select row_number() over () as nth, x.*
          from (
            select p.*
            from outbox.claim_lanes(u.namespace, u.task_queue, u.first, claim_read.next_held, claim_read.now) as l
            cross join lateral (
              select p.id, p.ctid as tid, p.visible_after as due_at, p.shard, p.attempt, p.suspect, p.payload_bytes
              from outbox.pending as p
              where p.ripe and p.ring = outbox.ring(u.namespace) and p.namespace = u.namespace
                and p.route_ring = outbox.ring(u.task_queue) and p.task_queue = u.task_queue
                and p.shard = l.shard and p.visible_after <= claim_read.now
              order by p.visible_after, p.id limit u.part
              for update skip locked
            ) as p
            limit u.part
          ) as x
        ) as m
        order by u.visit, m.nth, u.route
      ) as x;
    else -- the same without the lock
      select array_agg(x.visit), array_agg(x.route), array_agg(x.id), array_agg(x.tid), array_agg(x.due_at), array_agg(x.shard),
             array_agg(x.attempt), array_agg(x.suspect), array_agg(x.payload_bytes), array_agg(x.start)
      into of_visit, of_route, ids, tids, due_ats, shards, attempts, suspects, sizes, v_starts
      from (
        select u.visit, u.route, u.start, m.*
        from (
          select u.*, pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) as start
          from unnest(v_of, v_names, queues, v_firsts, v_parts) with ordinality as u(visit, namespace, task_queue, first, part, route)
          where u.part > 0
        ) as u
        cross join lateral (
          select row_number() over () as nth, x.*
          from (
            select p.*
            from outbox.claim_lanes(u.namespace, u.task_queue, u.first, claim_read.next_held, claim_read.now) as l
            cross join lateral (
              select p.id, p.ctid as tid, p.visible_after as due_at, p.shard, p.attempt, p.suspect, p.payload_bytes
              from outbox.pending as p
              where p.ripe and p.ring = outbox.ring(u.namespace) and p.namespace = u.namespace
                and p.route_ring = outbox.ring(u.task_queue) and p.task_queue = u.task_queue
                and p.shard = l.shard and p.visible_after <= claim_read.now
              order by p.visible_after, p.id limit u.part
            ) as p
            limit u.part
          ) as x
        ) as m
        order by u.visit, m.nth, u.route
      ) as x;
    end if;

    v_sum := v_sum + coalesce(cardinality(ids), 0);
    -- Every route had its part, and so every namespace its slice, and the slices fill the batch: nothing to ask again.
    if v_first and cardinality(ids) = (select sum(u.part) from unnest(v_parts) as u(part))
       and (select sum(u.wanted) from unnest(wanted) as u(wanted)) >= claim_read.batch then
      v_have := v_parts;
      exit;
    end if;
    v_first := false;
    v_have := array_fill(0, array[cardinality(v_of)]);
    foreach i in array coalesce(of_route, '{}') loop
      v_have[i] := v_have[i] + 1;
    end loop;
    v_got := array_fill(0, array[v_count]);
    v_open := v_got;
    for r in 1 .. cardinality(v_of) loop
      v_got[v_of[r]] := v_got[v_of[r]] + v_have[r];
      v_open[v_of[r]] := v_open[v_of[r]] + (v_have[r] = v_parts[r] and v_have[r] is distinct from route_caps[r])::int;
    end loop;

    -- Within a namespace, routes that have more fill up what others lack. Where others have
    -- locked all that its routes have due, look at more of them.
    v_again := false;
    v_left := claim_read.batch;
    v_hungry := 0;
    for n in 1 .. v_count loop
      if v_got[n] < wanted[n] and (v_open[n] > 0 or v_known[n] = v_wide[n] and v_wide[n] < v_most) then
        v_again := true;
        if v_open[n] = 0 then
          v_look[n] := v_most;
        end if;
      end if;
      v_left := v_left - least(v_got[n], wanted[n]);
      v_hungry := v_hungry + (v_got[n] >= wanted[n] and wanted[n] < v_rooms[n])::int;
    end loop;
    continue when v_again;

    -- The next filling.
    exit when v_left <= 0 or v_hungry = 0;
    for n in 1 .. v_count loop
      if v_got[n] >= wanted[n] then
        wanted[n] := least(wanted[n] + outbox.ceil_div(v_left, v_hungry), v_rooms[n]);
        v_look[n] := least(greatest(v_look[n], wanted[n]), v_most);
      end if;
    end loop;
  end loop;

  -- Some pages a message and a lane are as it should be. Where it was very many more, look whose, unless each has
  -- its small part of them. (A route without rows may have had what the one before it seems to have.)
  v_start := pages;
  v_end := pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass);
  pages := v_end - v_start;
  if claim_read.for_claim and pages > 1000 + 4 * v_sum + 20 * cardinality(v_of) then
    v_spent := array_fill(null::bigint, array[cardinality(v_of)]);
    for n in 1 .. coalesce(cardinality(ids), 0) loop
      v_spent[of_route[n]] := v_starts[n];
    end loop;
    for r in 1 .. cardinality(v_of) loop
      v_start := coalesce(v_spent[r], v_start);
      v_spent[r] := v_start;
    end loop;
    for r in reverse cardinality(v_of) .. 1 loop
      v_start := v_spent[r];
      v_spent[r] := v_end - v_start;
      if v_have[r] > 0 then
        v_end := v_start;
      end if;
    end loop;
    for r in 1 .. cardinality(v_of) loop
      continue when v_spent[r] <= 1000;
      v_before := pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass);
      perform from outbox.walk_lanes(v_names[r], queues[r], 0, claim_read.next_held) as l
      cross join lateral (
        select from outbox.pending as p
        where p.ripe and p.ring = outbox.ring(v_names[r]) and p.namespace = v_names[r]
          and p.route_ring = outbox.ring(queues[r]) and p.task_queue = queues[r]
          and p.shard = l.shard and p.visible_after <= claim_read.now
        order by p.visible_after, p.id limit v_parts[r]
      ) as p limit v_parts[r];
      pages := pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) - v_before;
      if pages > 1000 + 4 * v_have[r] then
        wading := v_of[r];
        exit;
      end if;
    end loop;
  end if;
end $$;
comment on function outbox.claim_read is 'How many messages a claim takes from each namespace, and which it may take';
revoke all on function outbox.claim_read from public;
