-- requires: due_routes.sql walk_lanes.sql
create or replace function outbox.claim_pick(
  node text, namespaces text[], rounds bigint[], headrooms int[], soles boolean[], active int,
  routes text[], route_of int[], width int, held int[], next_held int[],
  batch int, max_bytes bigint, turn bigint, now timestamptz, for_claim boolean, config outbox.config,
  out ids bigint[], out tids tid[], out shards int[], out attempts int[], out suspects int[], out passes int[],
  out picked int[], out left_out int, out many text[], out many_at text[])
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- The second half of a claim's plan: which rows, out of the namespaces that claim_walk has
-- come to (its arguments are what that returns). One row of arrays: a row's id, place, shard,
-- attempts so far, how often it was suspect, pass, and its namespace as an index, in the
-- order of service.
--
-- Each namespace's rows are ranked, round-robin over its routes; rank 1 of all of them
-- comes before rank 2 of any. Ranks up to the slice are pass 1, ceil(batch / active);
-- what the batch still holds behind them is pass 2. So one order gives both passes, and
-- the claim is its first batch rows, or up to the row that reaches max_bytes.
--
-- A payload of max_bytes or more ends the claim whatever is before it. So it comes behind all
-- others, and costs nobody else the turn; but not where it is the very first one, so that it
-- has its turn too: left_out is the first namespace, by index, whose row of rank 1 max_bytes or
-- batch kept out, and the next walk begins there, with the same lanes.
--
-- Only so many rows are read as can be taken: from each namespace what it needs (at
-- first its slice), from each of its routes an equal part of that, lane by lane. A route
-- that runs dry leaves its part to the others, a namespace that runs dry to the others
-- likewise, and then the reading is done again with those larger parts.
--
-- Within a rank the order is that of namespaces (the walk's), unless turn says that
-- all eligible namespaces are here: then the first place moves on by one each round,
-- among those that have a row of that rank, and with it the odd remainder of the batch.
-- Lanes start at a shard drawn by hash from namespace and round, so that no rhythm of
-- the claims can pass one over. many names the namespaces served that have several
-- routes, many_at the route of each that came last: the next pick starts behind it.
--
-- for_claim locks the rows it returns; rows that others have locked do not count. Like
-- claim_walk it runs under the settings of its caller.
declare
  v_slice  int := (claim_pick.batch - 1) / claim_pick.active + 1;
  v_count  int := cardinality(claim_pick.namespaces);
  v_need   int[] := '{}';  -- by namespace: rows wanted,
  v_known  int[];          --   due routes, as far as looked for,
  v_nth    int[];          --   a counter of them,
  v_wide   int[] := '{}';  --   how many were looked for,
  v_look   int[] := '{}';  --   how many to look for,
  v_got    int[];          --   rows found,
  v_open   int[];          --   routes that may have more
  v_queue  text[] := claim_pick.routes;  -- by route: its name,
  v_of     int[] := claim_pick.route_of; --   its namespace, as an index,
  v_part   int[];          --   rows wanted,
  v_have   int[];          --   rows found
  v_route  int[];          -- by row: its route,
  v_rank   int[];
  v_id     bigint[];
  v_tid    tid[];
  v_shard  int[];
  v_tries  int[];
  v_suspect int[];
  v_bytes  int[];
  v_search int[];
  v_raised boolean;
  v_left   int;
  v_more   int;
  i        int;
begin
  for n in 1 .. v_count loop
    v_need[n] := least(claim_pick.headrooms[n], v_slice);
    v_look[n] := least(v_need[n], (claim_pick.config).max_routes);
    v_wide[n] := case when claim_pick.soles[n] then (claim_pick.config).max_routes else claim_pick.width end;
  end loop;
  loop
    v_known := array_fill(0, array[v_count]);
    foreach i in array v_of loop
      v_known[i] := v_known[i] + 1;
    end loop;
    v_search := array(select u.n from unnest(v_known, v_wide, v_look) with ordinality as u(known, wide, look, n)
                      where u.known = u.wide and u.wide < u.look);
    if v_search <> '{}' then
      select coalesce(array_agg(x.i), '{}'), array_agg(x.task_queue) into v_of, v_queue
      from (
        select u.i, u.task_queue from unnest(v_of, v_queue) as u(i, task_queue) where u.i <> all (v_search)
        union all
        select u.i, r.task_queue
        from unnest(v_search) as u(i)
        cross join lateral (
          select r.task_queue, r.due
          from outbox.due_routes(claim_pick.namespaces[u.i], claim_pick.node, claim_pick.next_held, claim_pick.now,
                                 (claim_pick.config).max_routes) as r
          limit v_look[u.i]
        ) as r
        where r.due
      ) as x;
      foreach i in array v_search loop
        v_wide[i] := v_look[i];
      end loop;
      continue;
    end if;
    exit when v_of = '{}';
    v_part := array_fill(0, array[cardinality(v_of)]);
    v_nth := array_fill(0, array[v_count]);
    for r in 1 .. cardinality(v_of) loop
      i := v_of[r];
      v_nth[i] := v_nth[i] + 1;
      if v_nth[i] <= v_need[i] then
        v_part[r] := (v_need[i] - 1) / least(v_known[i], v_need[i]) + 1;
      end if;
    end loop;

    loop -- until each namespace has what it needs, or nothing more
      -- A route's rows: those of the lane it starts at, then of the lanes that have any.
      if claim_pick.for_claim then
        select array_agg(x.r), array_agg(x.rank), array_agg(x.id), array_agg(x.tid), array_agg(x.shard),
               array_agg(x.attempt), array_agg(x.suspect), array_agg(x.payload_bytes)
        into v_route, v_rank, v_id, v_tid, v_shard, v_tries, v_suspect, v_bytes
        from (
          select r.r, m.*, (row_number() over (partition by r.i order by m.nth, r.r))::int as rank
          from unnest(v_of, v_queue, v_part) with ordinality as u(i, task_queue, part, r)
          cross join lateral (
            select u.*, claim_pick.namespaces[u.i] as namespace,
                   claim_pick.held[1 + (hashtextextended(claim_pick.namespaces[u.i] collate "C", claim_pick.rounds[u.i])
                                        & 9223372036854775807) % cardinality(claim_pick.held)] as first
            offset 0
          ) as r
          cross join lateral (
            select row_number() over () as nth, x.*
            from (
              select p.*
              from (
                select r.first as shard
                union all
                select l.shard
                from outbox.walk_lanes(r.namespace, r.task_queue, r.first + 1, claim_pick.next_held) as l
                where l.head <= claim_pick.now and l.shard <> r.first
              ) as l
              cross join lateral (
                select p.id, p.ctid as tid, p.shard, p.attempt, p.suspect, p.payload_bytes
                from outbox.pending as p
                where p.namespace = r.namespace and p.task_queue = r.task_queue
                  and p.shard = l.shard and p.visible_after <= claim_pick.now
                order by p.visible_after, p.id limit r.part
                for update skip locked
              ) as p
              limit r.part
            ) as x
          ) as m
          where r.part > 0
        ) as x;
      else -- the same without the lock
        select array_agg(x.r), array_agg(x.rank), array_agg(x.id), array_agg(x.tid), array_agg(x.shard),
               array_agg(x.attempt), array_agg(x.suspect), array_agg(x.payload_bytes)
        into v_route, v_rank, v_id, v_tid, v_shard, v_tries, v_suspect, v_bytes
        from (
          select r.r, m.*, (row_number() over (partition by r.i order by m.nth, r.r))::int as rank
          from unnest(v_of, v_queue, v_part) with ordinality as u(i, task_queue, part, r)
          cross join lateral (
            select u.*, claim_pick.namespaces[u.i] as namespace,
                   claim_pick.held[1 + (hashtextextended(claim_pick.namespaces[u.i] collate "C", claim_pick.rounds[u.i])
                                        & 9223372036854775807) % cardinality(claim_pick.held)] as first
            offset 0
          ) as r
          cross join lateral (
            select row_number() over () as nth, x.*
            from (
              select p.*
              from (
                select r.first as shard
                union all
                select l.shard
                from outbox.walk_lanes(r.namespace, r.task_queue, r.first + 1, claim_pick.next_held) as l
                where l.head <= claim_pick.now and l.shard <> r.first
              ) as l
              cross join lateral (
                select p.id, p.ctid as tid, p.shard, p.attempt, p.suspect, p.payload_bytes
                from outbox.pending as p
                where p.namespace = r.namespace and p.task_queue = r.task_queue
                  and p.shard = l.shard and p.visible_after <= claim_pick.now
                order by p.visible_after, p.id limit r.part
              ) as p
              limit r.part
            ) as x
          ) as m
          where r.part > 0
        ) as x;
      end if;

      v_have := array_fill(0, array[cardinality(v_of)]);
      v_got := array_fill(0, array[v_count]);
      v_open := array_fill(0, array[v_count]);
      for k in 1 .. coalesce(cardinality(v_id), 0) loop
        v_have[v_route[k]] := v_have[v_route[k]] + 1;
      end loop;
      for r in 1 .. cardinality(v_of) loop
        v_got[v_of[r]] := v_got[v_of[r]] + v_have[r];
        v_open[v_of[r]] := v_open[v_of[r]] + (v_have[r] = v_part[r])::int;
      end loop;
      v_raised := false;
      for r in 1 .. cardinality(v_of) loop
        if v_have[r] = v_part[r] and v_got[v_of[r]] < v_need[v_of[r]] then
          v_part[r] := v_part[r] + (v_need[v_of[r]] - v_got[v_of[r]] - 1) / v_open[v_of[r]] + 1;
          v_raised := true;
        end if;
      end loop;
      exit when not v_raised;
    end loop;

    -- Where others have locked all that these routes have due, look at more of them.
    v_raised := false;
    for n in 1 .. v_count loop
      if v_got[n] < v_need[n] and v_known[n] = v_wide[n] and v_wide[n] < (claim_pick.config).max_routes then
        v_look[n] := (claim_pick.config).max_routes;
        v_raised := true;
      end if;
    end loop;
    continue when v_raised;

    v_left := claim_pick.batch;
    v_more := 0;
    for n in 1 .. v_count loop
      v_left := v_left - least(v_got[n], v_need[n]);
      v_more := v_more + (v_got[n] >= v_need[n] and v_need[n] < claim_pick.headrooms[n])::int;
    end loop;
    exit when v_left <= 0 or v_more = 0;
    for n in 1 .. v_count loop
      if v_got[n] >= v_need[n] then
        v_need[n] := least(v_need[n] + (v_left - 1) / v_more + 1, claim_pick.headrooms[n]);
        v_look[n] := least(greatest(v_look[n], v_need[n]), (claim_pick.config).max_routes);
      end if;
    end loop;
  end loop;

  with placed as materialized (
    select k.k, v_of[k.route] as i, k.route, k.rank, k.id, k.tid, k.shard, k.attempt, k.suspect, k.bytes,
           row_number() over (partition by k.rank order by v_of[k.route]) - 1 as place,
           count(*) over (partition by k.rank) as places
    from unnest(v_route, v_rank, v_id, v_tid, v_shard, v_tries, v_suspect, v_bytes) with ordinality
         as k(route, rank, id, tid, shard, attempt, suspect, bytes, k)
    where k.rank <= v_need[v_of[k.route]]
  ), ordered as (
    select p.*, row_number() over w as n,
           coalesce(sum(p.bytes) over (w rows between unbounded preceding and 1 preceding), 0) as bytes_before
    from placed as p
    window w as (order by (p.bytes >= claim_pick.max_bytes and (p.rank > 1 or p.place > 0)) is true, p.rank,
      -- A turn that max_bytes could cut short within rank 1 would pass over those
      -- that it started behind: then the walk's own order stands, and goes on there.
      case when claim_pick.turn is not null
                and (claim_pick.max_bytes is null
                     or (select sum(f.bytes) from placed as f where f.rank = 1) < claim_pick.max_bytes)
           then (p.place - claim_pick.turn % p.places + p.places) % p.places else p.place end)
  ), cut as (
    select o.*, o.n <= claim_pick.batch and (claim_pick.max_bytes is null or o.bytes_before < claim_pick.max_bytes) as taken
    from ordered as o
  )
  select array_agg(c.id) filter (where c.taken), array_agg(c.tid) filter (where c.taken),
         array_agg(c.shard) filter (where c.taken), array_agg(c.attempt) filter (where c.taken),
         array_agg(c.suspect) filter (where c.taken),
         array_agg(case when c.rank <= v_slice then 1 else 2 end) filter (where c.taken),
         array_agg(c.i) filter (where c.taken), array_agg(c.route) filter (where c.taken),
         min(c.i) filter (where not c.taken and c.rank = 1)
  into ids, tids, shards, attempts, suspects, passes, picked, v_route, left_out
  from (select c.* from cut as c order by c.n) as c;

  if false = any (claim_pick.soles) then
    v_have := array_fill(null::int, array[v_count]); -- the last route, a namespace
    for k in 1 .. coalesce(cardinality(ids), 0) loop
      v_have[picked[k]] := v_route[k];
    end loop;
    for n in 1 .. v_count loop
      if v_have[n] is not null and not claim_pick.soles[n] then
        many := many || claim_pick.namespaces[n];
        many_at := many_at || v_queue[v_have[n]];
      end if;
    end loop;
  end if;
end $$;
comment on function outbox.claim_pick is 'Which rows a claim takes from eligible namespaces, in order';
revoke all on function outbox.claim_pick from public;
