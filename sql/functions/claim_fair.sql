-- requires: check_claim.sql next_held.sql walk_start.sql ripen.sql claim_walk.sql claim_read.sql claim_order.sql walk_detour.sql bound_transaction.sql ceil_div.sql lock_class.sql node_lock.sql fold_lock.sql fold_reports.sql gates.sql span.sql
create or replace function outbox.claim_fair(node text, shards int[], batch int, max_bytes bigint default null,
                                             payloads boolean default true)
returns table (id bigint, claim_token bigint, namespace text, task_queue text, dispatch_key text, shard int,
               attempt int, content_type text, headers jsonb, payload bytea, lease_until timestamptz, pass int,
               payload_bytes int, suspect int,
               created_at timestamptz, due_at timestamptz, claimed_at timestamptz)
language plpgsql security definer rows 100
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
-- Claims up to batch due messages on these shards for this node, fairly: every active namespace
-- gets its slice of the batch, capped by its headroom; what is left is shared out in rounds.
-- With max_bytes the claim ends with the message that reaches it, and a payload of that many
-- bytes comes last, unless it would be the first. Messages come back in the order of service. A
-- claim never waits for another one. Until its transaction ends, the session may not be idle for
-- longer than config.claim_idle_timeout, and current_setting('outbox.claim_outcome') says how the
-- claim ended:
--
--   served        it brought messages, and was not cut
--   cut           with messages or without, it stopped before it had looked at every namespace
--                 (see claim_walk), or more has come due than it could make ripe (see ripen): claim
--                 again at once, the next walk goes on there
--   cut_past_end  the same, and the walk came past the end of the ring
--   all_round     it brought no messages: nothing is due that it may claim, or max_bytes is below 1
--   shut_out      it brought no messages, and another claim has some of the shards, or the node's name
--
-- Without payloads, payload and headers are null: whoever claims reads them with payloads(),
-- as they fit into its memory, once the claim is committed. Small ones come along all the same, up
-- to 1 MiB in all: to look their rows up again would cost more. The messages have not begun then,
-- and those that are suspect (see rescue) come without, and must be reported to begin_delivery()
-- before they are read. With payloads, all that a claim returns has begun together.
--
-- The order of the steps is what makes the quota hold. A claim first locks its shards;
-- only statements that start after that, and so see every claim that held one of them
-- before, count what is claimed. Hence read committed: an older snapshot would miss it.
declare
  v_config  outbox.config;
  v_shards  int[];
  v_class   int;
  v_held    int[];
  v_next    int[];
  v_now     timestamptz;
  v_until   timestamptz; -- the end of the lease
  v_start   record;      -- where the walk goes on
  v_ripe    record;
  v_walk    record;      -- whom to serve,
  v_read    record;      --   what may be taken from them,
  v_order   record;      --   and what is, in the order of service
  v_gates   int := 0;    -- as claim_walk has it
  v_late    boolean;
  v_probes  bigint[];
  v_last    int;         -- the last visit that the next walk need not repeat
  v_moved   int;
  v_along   int;         -- payloads of so many bytes come along, if others do not
  v_token   bigint;
begin
  -- 1. Arguments, and the transaction that this claim is part of.
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    raise exception 'outbox.claim_fair: the transaction''s isolation is %', current_setting('transaction_isolation')
      using errcode = 'OB002', hint = 'Call it in a transaction that begins with: begin isolation level read committed.';
  end if;
  if current_setting('transaction_read_only')::boolean then
    raise exception 'outbox.claim_fair: the transaction is read-only%', case when pg_is_in_recovery() then ', as this server is a standby' else '' end
      using errcode = 'read_only_sql_transaction', hint = 'Claim on the primary; explain_claim() works here.';
  end if;
  select c.* into strict v_config from outbox.config as c;
  v_shards := outbox.check_claim('claim_fair', claim_fair.node, claim_fair.shards, claim_fair.batch, v_config);
  if claim_fair.payloads is null then
    perform outbox.bad_argument('claim_fair', 'payloads', 'is null', 'Give true to get payloads, false to read them later.');
  end if;
  if claim_fair.max_bytes <= 0 or cardinality(v_shards) = 0 then
    perform set_config('outbox.claim_outcome', 'all_round', true);
    return;
  end if;
  perform set_config('outbox.claim_outcome', 'shut_out', true); -- unless it gets further
  perform outbox.bound_transaction(v_config.claim_idle_timeout); -- left open, it would hold its shards

  -- 2. The node's lock, then those of the shards; all are released when the transaction ends.
  v_class := outbox.lock_class();
  if not pg_try_advisory_xact_lock(v_class, outbox.node_lock(claim_fair.node)) then
    return;
  end if;
  select array_agg(s.shard order by s.shard) into v_held
  from unnest(v_shards) as s(shard) where pg_try_advisory_xact_lock(v_class, s.shard);
  if v_held is null then
    return;
  end if;
  v_next := outbox.next_held(v_held, v_config.shard_count);
  v_now := clock_timestamp();
  v_until := v_now + outbox.span(v_config.lease);

  -- 3. What settles reported of destinations. One claim at a time reads that, and may probe; the
  -- others go by what is committed.
  v_late := random() < 0.1;
  if exists (select from outbox.report as r
             where r.id >= case when v_late then 0 else (select e.last_value from outbox.report_edge as e) end)
     or exists (select from outbox.destination as d where d.state in ('held', 'recovering')) then
    if pg_try_advisory_xact_lock(v_class, outbox.fold_lock()) then
      perform outbox.fold_reports(v_now, v_late);
      v_gates := outbox.gates(true);
    else
      v_gates := outbox.gates(false);
    end if;
  end if;

  -- 4. What has come due becomes ripe.
  select w.* into strict v_start from outbox.walk_start(claim_fair.node, v_shards) as w;
  if v_start.edge_shards is null or not v_held <@ v_start.edge_shards then
    -- of some of them it does not know the edges: start from nothing
    v_start.edge_shards := v_held;
    v_start.edge := 0;
    v_start.unripe_all_at := '-infinity'::timestamptz;
  elsif v_held = v_shards then
    v_start.edge_shards := v_held; -- some of them: what it knows of more shards holds for these
  end if;
  select r.* into v_ripe
  from outbox.ripen(v_held, v_next, v_now, v_start.unripe_from, v_start.unripe_from_id, v_start.unripe_all_at,
                    v_start.unripe_namespace, v_start.unripe_rest) as r;

  -- 5. Whom to serve, with how many messages, in which order.
  select w.* into v_walk
  from outbox.claim_walk(claim_fair.node, v_next, cardinality(v_held), claim_fair.batch, v_start.namespace, v_start.round,
                         v_now, v_start.edge, null, true, v_gates, v_config, v_start.detours) as w;
  select r.* into v_read
  from outbox.claim_read(claim_fair.node, v_walk.visits, v_walk.active, v_walk.width, v_held, v_next, claim_fair.batch,
                         v_now, true, v_gates, v_walk.gated, v_walk.gated_routes, v_walk.caps,
                         v_walk.shared_routes, v_walk.shared_left, v_config) as r
  where v_walk.active > 0;
  select o.* into v_order
  from outbox.claim_order(v_read.of_visit, v_read.sizes, v_read.wanted, outbox.ceil_div(claim_fair.batch, greatest(v_walk.active, 1)),
                          claim_fair.batch,
                          claim_fair.max_bytes, case when v_walk.ended = 'around' then v_walk.visits[1].round end) as o
  where v_read.ids is not null;

  if v_read.wading is not null then
    v_walk.detours := v_walk.detours || outbox.walk_detour(
      case when v_read.wading = 1 then v_start.namespace else v_walk.visits[v_read.wading - 1].namespace end,
      v_walk.visits[v_read.wading].namespace, v_read.pages, true);
  end if;

  if v_order.picked is null and v_walk.ended = 'around' and not v_ripe.again and v_ripe.unripe_all_at < v_now then
    -- Before it says that nothing is due: what was committed late.
    select r.* into v_ripe
    from outbox.ripen(v_held, v_next, v_now, '-infinity', 0, '-infinity', v_ripe.unripe_namespace, v_ripe.unripe_rest) as r;
    v_ripe.again := v_ripe.again or v_ripe.ripened > 0;
  end if;

  v_last := least(v_order.left_out - 1, v_walk.passed, cardinality(v_walk.visits));
  perform set_config('outbox.claim_outcome', case
    when v_walk.ended = 'cut' then case when v_walk.visits[v_last].round > v_start.round then 'cut_past_end' else 'cut' end
    when v_walk.ended = 'detour' or v_ripe.again then 'cut'
    when v_order.picked is not null then 'served'
    when v_held <> v_shards then 'shut_out'
    else 'all_round' end, true);

  -- 6. Where the next claim goes on: behind the last namespace that the walk came to,
  -- or, where max_bytes left some out, with the first of those, or behind the last one that a route of all let
  -- through. Nothing is saved if the walk went all around, served nobody, and found nothing to do next time.
  if v_order.picked is not null or v_walk.passed is not null or v_walk.ended <> 'around' or v_ripe.again or v_walk.detours is not null then
    v_token := nextval('outbox.claim_token') + floor(random() * 4194304)::bigint; -- see the sequence's migration
    if v_token <= (select max(w.edge) from outbox.walk as w) then
      -- The sequence was set back: below an edge, what is claimed would not be counted.
      perform setval('outbox.claim_token', (select max(w.edge) from outbox.walk as w) + 1000 * 4194304::bigint); -- see pass_token
      v_token := nextval('outbox.claim_token') + floor(random() * 4194304)::bigint;
    end if;
    if v_start.edge_shards = v_held then -- else it has looked at some of them only
      -- Nobody else claims on these shards before this claim ends, and then with a later
      -- token than this one's. So the oldest one there now stays the oldest.
      v_start.unripe_from := v_ripe.unripe_from;
      v_start.unripe_from_id := v_ripe.unripe_from_id;
      v_start.unripe_all_at := v_ripe.unripe_all_at;
      v_start.edge := coalesce((select c.claim_token from outbox.claimed as c
                                where c.claim_token >= v_start.edge and v_next[c.shard + 1] = c.shard
                                order by c.claim_token limit 1), v_token);
    end if;
    insert into outbox.walk as w (node, namespace, round, claimed_at, claimed, batch, edge, edge_shards,
                                  unripe_from, unripe_from_id, unripe_all_at, unripe_namespace, unripe_rest, detours)
    values (claim_fair.node, case when v_last > 0 then v_walk.visits[v_last].namespace else v_start.namespace end,
            case when v_last > 0 then v_walk.visits[v_last].round else v_start.round end, v_now,
            coalesce(cardinality(v_order.picked), 0), claim_fair.batch, v_start.edge, v_start.edge_shards,
            v_start.unripe_from, v_start.unripe_from_id, v_start.unripe_all_at, v_ripe.unripe_namespace, v_ripe.unripe_rest,
            -- new detours, and the former ones, for one claim less
            (select array_agg(row(d.after, d.upto, d.claims)::outbox.detour)
             from (select n.* from unnest(v_walk.detours) as n
                   union all
                   select f.after, f.upto, f.claims - 1 from unnest(v_start.detours) as f where f.claims > 1
                   limit 8) as d))
    on conflict on constraint walk_pkey do update
      set namespace = excluded.namespace, round = excluded.round, claimed_at = excluded.claimed_at,
          claimed = excluded.claimed, batch = excluded.batch, edge = excluded.edge, edge_shards = excluded.edge_shards,
          unripe_from = excluded.unripe_from, unripe_from_id = excluded.unripe_from_id,
          unripe_all_at = excluded.unripe_all_at, unripe_namespace = excluded.unripe_namespace, unripe_rest = excluded.unripe_rest, detours = excluded.detours;
  end if;
  if v_walk.several then
    -- For each namespace the route that was served last, or the one where a search in vain was cut.
    -- Without joins: of arrays they would be quadratic.
    insert into outbox.route as t (namespace, node, task_queue, served_at, shard)
    select distinct on (x.namespace) x.namespace, claim_fair.node, x.task_queue, v_now, v_held[1]
    from (
      select max(r.namespace) as namespace, max(r.task_queue) as task_queue, max(r.n) as n
      from (
        select u.route, u.namespace, u.task_queue, null::bigint as n
        from unnest(v_read.rotating, v_read.queues) with ordinality as u(namespace, task_queue, route)
        union all
        select v_read.of_route[p.i], null, null, p.n
        from unnest(v_order.picked) with ordinality as p(i, n)
      ) as r
      group by r.route
      union all
      select v.namespace, v.looked_to, 0 from unnest(v_walk.visits) as v where v.verdict = 'idle' and v.looked_to is not null
    ) as x
    where x.n is not null and x.namespace is not null
    order by x.namespace, x.n desc
    on conflict on constraint route_pkey do update
      set task_queue = excluded.task_queue, served_at = excluded.served_at, shard = excluded.shard
      where t.task_queue <> excluded.task_queue;
  end if;
  if v_order.picked is null then
    return;
  end if;

  -- 7. Move the rows, and return them with what outbox.message has of them.
  if v_gates & 2 > 0 and array_remove(v_read.route_caps, null) <> '{}' then -- which of them are probes
    with x as materialized (
      select v_read.ids[u.i] as id, (v_walk.visits[v_read.of_visit[u.i]]).namespace, v_read.queues[v_read.of_route[u.i]] as task_queue
      from unnest(v_order.picked) as u(i) where v_read.route_caps[v_read.of_route[u.i]] is not null
    ), own as (
      update outbox.destination as d set probe_id = x.id, probe_token = v_token, changed_at = v_now
      from x where d.state in ('held', 'recovering') and d.state = 'held' and d.task_queue = x.task_queue and d.namespace = x.namespace
      returning x.id
    ), common as (
      update outbox.destination as d set probe_id = x.id, probe_token = v_token, changed_at = v_now
      from x where d.state in ('held', 'recovering') and d.state = 'held' and d.task_queue = x.task_queue and d.namespace is null
      returning x.id
    )
    select array_agg(p.id) into v_probes from (select o.id from own as o union all select c.id from common as c) as p;
  end if;
  with p as (
    delete from outbox.pending as d
    where d.ctid = any (array(select v_read.tids[u.i] from unnest(v_order.picked) as u(i))) returning d.*
  )
  insert into outbox.claimed as c (id, namespace, task_queue, shard, visible_after, attempt, payload_bytes,
                                   claim_token, claimed_by, claimed_at, lease_until, suspect, begun)
  select p.id, p.namespace, p.task_queue, p.shard, p.visible_after,
         least(p.attempt, 2147483646) + 1, -- it must not overflow
         p.payload_bytes, v_token, claim_fair.node, v_now, v_until, p.suspect,
         case when claim_fair.payloads then least(cardinality(v_order.picked), 32767) else 0 end
  from p;
  get diagnostics v_moved = row_count;
  if v_moved <> cardinality(v_order.picked) then
    raise exception 'outbox.claim_fair: locked % rows and found % of them again', cardinality(v_order.picked), v_moved
      using errcode = 'internal_error';
  end if;
  v_along := 1048576 / v_moved; -- all together no more than 1 MiB
  return query
  select m.id, v_token, m.namespace, m.task_queue, m.dispatch_key, v_read.shards[u.i], least(v_read.attempts[u.i], 2147483646) + 1,
         m.content_type, case when m.along then m.headers end, case when m.along then m.payload end,
         v_until, case when m.id = any (v_probes) then 0 else u.pass end, v_read.sizes[u.i], v_read.suspects[u.i],
         m.created_at, v_read.due_ats[u.i], v_now
  from (select p.* from unnest(v_order.picked, v_order.passes) with ordinality as p(i, pass, n) order by p.n) as u
  cross join lateral ( -- a look-up each, in this order: a join could read every message there is, and payloads be sorted
    select m.*, claim_fair.payloads or v_read.suspects[u.i] = 0 and v_read.sizes[u.i] + pg_column_size(m.headers) <= v_along as along
    from outbox.message as m where m.id = v_read.ids[u.i] offset 0
  ) as m;
end $$;
comment on function outbox.claim_fair is 'Claims due messages, fairly over namespaces';
revoke all on function outbox.claim_fair from public;
