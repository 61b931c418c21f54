-- requires: check_claim.sql next_held.sql walk_start.sql claim_walk.sql claim_pick.sql lock_class.sql node_lock.sql span.sql
create or replace function outbox.claim_fair(node text, shards int[], batch int, max_bytes bigint default null,
                                             payloads boolean default true)
returns table (id bigint, claim_token bigint, namespace text, task_queue text, dispatch_key text, shard int,
               attempt int, content_type text, headers jsonb, payload bytea, lease_until timestamptz, pass int,
               payload_bytes int, suspect int)
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
-- Claims up to batch due messages on these shards for this node, fairly: every active
-- namespace gets its slice of the batch, capped by its headroom; what is left is shared
-- out in rounds. With max_bytes the claim ends with the row that reaches it, and a payload
-- of that many bytes comes last, unless it is the first. Rows come back in the order of service. A claim never waits for another one. How it ended stands in
-- the setting outbox.claim_outcome until the transaction ends, for current_setting():
--
--   served        it brought messages
--   cut           it visited config.max_visits namespaces, or ran out of time, before it had
--                 looked at all: claim again at once, the next walk goes on there
--   cut_past_end  the same, and the walk came past the last name: once in each round
--   all_round     it brought none: nothing is due that it may claim
--   shut_out      it brought none, and another claim has some of the shards, or the node's name
--
-- Without payloads, payload and headers are null: whoever claims reads them with payloads(),
-- as they fit into its memory, once the claim is committed. Then the messages have not begun
-- yet, and those that are suspect (see rescue) are to be told to begin_delivery() before they
-- are read. With payloads, all that a claim returns has begun together.
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
  v_cursor  text;        -- where the walk starts
  v_round   bigint;
  v_edge    bigint;      -- claimed messages with older tokens need not be looked for,
  v_edges   int[];       --   on these shards
  v_last    int;         -- the last one that had its turn
  v_walk    record;      -- the namespaces
  v_pick    record;      -- the rows, in the order of service
  v_moved   int;
  v_token   bigint;
begin
  -- 1. Arguments, and the transaction that this claim is part of.
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    raise exception 'outbox.claim_fair: the transaction''s isolation is %', current_setting('transaction_isolation')
      using errcode = 'OB002', hint = 'Call it in a transaction that begins with: begin isolation level read committed.';
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
  if current_setting('idle_in_transaction_session_timeout')::interval not between '1 ms' and v_config.claim_idle_timeout then
    -- A claim left open would hold its shards: it may not stay open for long.
    perform set_config('idle_in_transaction_session_timeout',
                       (extract(epoch from v_config.claim_idle_timeout) * 1000)::bigint::text, true);
  end if;
  if current_setting('tcp_user_timeout') = '0' then
    -- Nor may one whose client is frozen or gone, and takes in none of what is sent to it.
    perform set_config('tcp_user_timeout', (extract(epoch from v_config.claim_idle_timeout) * 1000)::bigint::text, true);
  end if;

  -- 2. The node's lock, then those of the shards; all are given back at commit.
  v_class := outbox.lock_class();
  if not pg_try_advisory_xact_lock(v_class, outbox.node_lock(claim_fair.node)) then
    return;
  end if;
  select array_agg(s.shard) into v_held
  from unnest(v_shards) as s(shard) where pg_try_advisory_xact_lock(v_class, s.shard);
  if v_held is null then
    return;
  end if;
  v_next := outbox.next_held(v_held, v_config.shard_count);
  v_now := clock_timestamp();
  v_until := v_now + outbox.span(v_config.lease);

  -- 3. Whom to serve.
  select w.namespace, w.round, w.edge, w.edge_shards into strict v_cursor, v_round, v_edge, v_edges
  from outbox.walk_start(claim_fair.node, v_shards) as w;
  if v_edges is null or not v_held <@ v_edges then
    v_edges := v_held; -- other shards than it knows the edge of
    v_edge := 0;
  end if;
  select w.* into v_walk
  from outbox.claim_walk(claim_fair.node, v_next, cardinality(v_held), claim_fair.batch, v_cursor, v_round, v_now,
                         v_edge, null, true, v_config) as w;

  -- 4. Which rows.
  select p.* into v_pick
  from outbox.claim_pick(claim_fair.node, v_walk.namespaces, v_walk.rounds, v_walk.headrooms, v_walk.soles, v_walk.active,
                         v_walk.routes, v_walk.route_of, v_walk.width, v_held, v_next, claim_fair.batch, claim_fair.max_bytes,
                         case when not v_walk.more then v_walk.rounds[1] end, v_now, true, v_config) as p
  where v_walk.active > 0;

  perform set_config('outbox.claim_outcome', case
    when v_walk.more and v_walk.active < claim_fair.batch then case when v_walk.wrapped then 'cut_past_end' else 'cut' end
    when v_pick.ids is not null then 'served'
    when v_held <> v_shards then 'shut_out'
    else 'all_round' end, true);

  -- 5. Where the next claim goes on: behind the last namespace that the walk came to,
  -- or, where max_bytes left some out, with the first of those. A walk all around that
  -- served none leaves everything as it is.
  v_last := coalesce(v_pick.left_out - 1, cardinality(v_walk.namespaces));
  if v_pick.ids is not null or v_walk.more then
    v_token := nextval('outbox.claim_token') + floor(random() * 4194304)::bigint; -- see the sequence's migration
    if v_token <= (select max(w.edge) from outbox.walk as w) then
      -- The sequence was set back: below an edge, what is claimed would not be counted.
      perform setval('outbox.claim_token', (select max(w.edge) from outbox.walk as w) + 1000 * 4194304::bigint); -- see pass_token
      v_token := nextval('outbox.claim_token') + floor(random() * 4194304)::bigint;
    end if;
    if v_edges = v_held then
      -- Nobody else claims on these shards before this claim ends, and then with a later
      -- token than this one's. So the oldest one there now stays the oldest.
      v_edge := coalesce((select c.claim_token from outbox.claimed as c
                          where c.claim_token >= v_edge and v_next[c.shard + 1] = c.shard
                          order by c.claim_token limit 1), v_token);
    end if;
    insert into outbox.walk as w (node, namespace, round, claimed_at, claimed, edge, edge_shards)
    values (claim_fair.node, v_walk.namespaces[v_last], v_walk.rounds[v_last], v_now,
            coalesce(cardinality(v_pick.ids), 0), v_edge, v_edges)
    on conflict on constraint walk_pkey do update
      set namespace = excluded.namespace, round = excluded.round, claimed_at = excluded.claimed_at,
          claimed = excluded.claimed, edge = excluded.edge, edge_shards = excluded.edge_shards;
  end if;
  if v_walk.idle is not null or v_pick.many is not null then
    insert into outbox.route as t (namespace, node, task_queue, served_at, shard)
    select u.namespace, claim_fair.node, u.task_queue, v_now, v_held[1]
    from unnest(v_pick.many || v_walk.idle, v_pick.many_at || v_walk.idle_at) as u(namespace, task_queue)
    on conflict on constraint route_pkey do update
      set task_queue = excluded.task_queue, served_at = excluded.served_at, shard = excluded.shard
      where t.task_queue <> excluded.task_queue;
  end if;
  if v_pick.ids is null then
    return;
  end if;

  -- 6. Move the rows, and return them with their cold side.
  with p as (
    delete from outbox.pending as d where d.ctid = any (v_pick.tids) returning d.*
  )
  insert into outbox.claimed as c (id, namespace, task_queue, shard, visible_after, attempt, payload_bytes,
                                   claim_token, claimed_by, claimed_at, lease_until, suspect, begun)
  select p.id, p.namespace, p.task_queue, p.shard, p.visible_after,
         least(p.attempt, 2147483646) + 1, -- a charge on the last attempt there is must not raise
         p.payload_bytes, v_token, claim_fair.node, v_now, v_until, p.suspect,
         case when claim_fair.payloads then least(cardinality(v_pick.ids), 32767) else 0 end
  from p;
  get diagnostics v_moved = row_count;
  if v_moved <> cardinality(v_pick.ids) then
    raise exception 'outbox.claim_fair: locked % rows and found % of them again', cardinality(v_pick.ids), v_moved
      using errcode = 'internal_error';
  end if;
  return query
  select m.id, v_token, m.namespace, m.task_queue, m.dispatch_key, u.shard, least(u.attempt, 2147483646) + 1,
         m.content_type, case when claim_fair.payloads then m.headers end, case when claim_fair.payloads then m.payload end,
         v_until, u.pass, octet_length(m.payload), u.suspect
  from unnest(v_pick.ids, v_pick.shards, v_pick.attempts, v_pick.suspects, v_pick.passes) with ordinality
       as u(id, shard, attempt, suspect, pass, n)
  cross join lateral ( -- a look-up each: a join could read every message there is
    select m.* from outbox.message as m where m.id = u.id offset 0
  ) as m
  order by u.n;
end $$;
comment on function outbox.claim_fair is 'Claims due messages, fairly over namespaces';
revoke all on function outbox.claim_fair from public;
