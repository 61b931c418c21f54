-- requires: bad_argument.sql check_key.sql namespace_paused.sql
create or replace function outbox.survey_namespaces(
  after text default null, size int default 100, names text[] default null, max_time interval default '1 s')
returns table (namespace text, oldest_due_at timestamptz, due bigint, unripe bigint, claimed bigint, failed bigint,
               quota int, strict boolean, paused boolean, partial boolean, at timestamptz,
               free_due_at timestamptz)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
set jit = off
as $$
-- The next size namespaces that have pending messages, in the order of the ring that claims walk: from
-- behind after, or from its beginning. A call ends early where max_time is over, but never
-- without a row if there is one: so a call that returns none has come to the end of the ring. With
-- names the namespaces are these, in the order given, whether or not they have messages.
--
-- All counts stop at config.count_cap. due and unripe together are what is pending: unripe waits for
-- its time, due is what claims take, or make ripe first. oldest_due_at is exact where partial is
-- false; else there are more than count_cap lanes (a route on a shard), and an older message may
-- stand in one of the others. free_due_at is the same of the messages whose destination is not held; what has
-- come due and is not ripe yet counts there. at is the instant that all is judged by.
--
-- What a namespace costs is bounded by count_cap, whatever else there is: two descents to find it, a
-- read of each index that has its rows, and, where more are ripe than count_cap, a descent for each
-- lane; and while a destination is held, two look-ups for each route that these have come to. All of a
-- call is one snapshot, which holds vacuum back for max_time at most.
declare
  v_now       timestamptz := clock_timestamp();
  v_config    outbox.config;
  v_ring      int := -2147483648; -- how far the walk is
  v_name      text collate "C" := '';
  v_ripe_ring int := -2147483648; -- the next namespace with ripe messages, once it is beyond the walk; null: none
  v_ripe      text collate "C" := '';
  v_wait_ring int := -2147483648; -- and with others
  v_wait      text collate "C" := '';
  v_n         int := 0;
  v_ripe_n    bigint;
  v_lanes     int;
  v_held      boolean := exists (select from outbox.destination as d where d.state = 'held');
begin
  select c.* into strict v_config from outbox.config as c;
  if survey_namespaces.size is null or survey_namespaces.size < 1 then
    perform outbox.bad_argument('survey_namespaces', 'size', 'is null or below 1', 'Give the most namespaces to return.');
  elsif survey_namespaces.max_time is null then
    perform outbox.bad_argument('survey_namespaces', 'max_time', 'is null', 'Give a time; 0 is for one namespace.');
  elsif survey_namespaces.after is not null then
    perform outbox.check_key('survey_namespaces', 'after', survey_namespaces.after);
    v_ring := outbox.ring(survey_namespaces.after);
    v_name := survey_namespaces.after;
  end if;
  at := v_now;
  loop
    v_n := v_n + 1;
    if survey_namespaces.names is not null then
      exit when v_n > cardinality(survey_namespaces.names);
      v_name := survey_namespaces.names[v_n];
      perform outbox.check_key('survey_namespaces', 'names', v_name);
      v_ring := outbox.ring(v_name);
    else
      exit when v_n > survey_namespaces.size or v_n > 1 and clock_timestamp() - v_now >= survey_namespaces.max_time;
      if (v_ripe_ring, v_ripe) <= (v_ring, v_name) then -- by pending_ripe
        select p.ring, p.namespace into v_ripe_ring, v_ripe from outbox.pending as p
        where p.ripe and (p.ring, p.namespace) > (v_ring, v_name)
        order by p.ring, p.namespace, p.route_ring, p.task_queue, p.shard, p.visible_after, p.id limit 1;
      end if;
      if (v_wait_ring, v_wait) <= (v_ring, v_name) then -- by pending_unripe_namespace
        select p.ring, p.namespace into v_wait_ring, v_wait from outbox.pending as p
        where not p.ripe and (p.ring, p.namespace) > (v_ring, v_name)
        order by p.ring, p.namespace, p.visible_after, p.id limit 1;
      end if;
      exit when v_ripe is null and v_wait is null;
      if v_wait is null or (v_ripe_ring, v_ripe) <= (v_wait_ring, v_wait) then
        v_ring := v_ripe_ring;
        v_name := v_ripe;
      else
        v_ring := v_wait_ring;
        v_name := v_wait;
      end if;
    end if;
    namespace := v_name;

    select coalesce(sum(r.n), 0), coalesce(sum(r.due), 0), min(r.head), min(r.head) filter (where not h.held)
    into v_ripe_n, due, oldest_due_at, free_due_at
    from (select x.task_queue, count(*) as n, count(*) filter (where x.visible_after <= v_now) as due, min(x.visible_after) as head
          from (select p.task_queue, p.visible_after from outbox.pending as p
                where p.ripe and p.ring = v_ring and p.namespace = v_name
                order by p.route_ring, p.task_queue, p.shard, p.visible_after, p.id limit v_config.count_cap) as x
          group by x.task_queue) as r
    cross join lateral (
      select v_held and (exists (select from outbox.destination as d where d.state = 'held' and d.task_queue = r.task_queue and d.namespace = v_name)
                         or exists (select from outbox.destination as d where d.state = 'held' and d.task_queue = r.task_queue and d.namespace is null)) as held
    ) as h;
    v_lanes := 0;
    if v_ripe_n >= v_config.count_cap then
      with recursive lane(n, route_ring, task_queue, shard, head) as (
        (select 1, p.route_ring, p.task_queue, p.shard, p.visible_after from outbox.pending as p
         where p.ripe and p.ring = v_ring and p.namespace = v_name
         order by p.route_ring, p.task_queue, p.shard, p.visible_after, p.id limit 1)
        union all
        select l.n + 1, x.route_ring, x.task_queue, x.shard, x.visible_after
        from lane as l
        cross join lateral (
          select p.route_ring, p.task_queue, p.shard, p.visible_after from outbox.pending as p
          where p.ripe and p.ring = v_ring and p.namespace = v_name
            and (p.route_ring, p.task_queue, p.shard) > (l.route_ring, l.task_queue, l.shard)
          order by p.route_ring, p.task_queue, p.shard, p.visible_after, p.id limit 1
        ) as x
        where l.n < v_config.count_cap
      )
      select coalesce(sum(r.n), 0), min(r.head), min(r.head) filter (where not h.held) into v_lanes, oldest_due_at, free_due_at
      from (select l.task_queue, count(*) as n, min(l.head) as head from lane as l group by l.task_queue) as r
      cross join lateral (
        select v_held and (exists (select from outbox.destination as d where d.state = 'held' and d.task_queue = r.task_queue and d.namespace = v_name)
                           or exists (select from outbox.destination as d where d.state = 'held' and d.task_queue = r.task_queue and d.namespace is null)) as held
      ) as h;
    end if;
    partial := v_lanes >= v_config.count_cap;

    select count(*) filter (where x.visible_after > v_now), least(due + count(*) filter (where x.visible_after <= v_now), v_config.count_cap),
           least(oldest_due_at, min(x.visible_after)), least(free_due_at, min(x.visible_after))
    into unripe, due, oldest_due_at, free_due_at
    from (select p.visible_after from outbox.pending as p
          where not p.ripe and p.ring = v_ring and p.namespace = v_name
          order by p.visible_after, p.id limit v_config.count_cap) as x;
    if oldest_due_at > v_now then
      oldest_due_at := null;
    end if;
    if free_due_at > v_now then
      free_due_at := null;
    end if;

    claimed := (select count(*) from (select from outbox.claimed as c
                                      where (c.namespace, c.claim_token) >= (v_name, 0)
                                        and (c.namespace, c.claim_token) <= (v_name, 9223372036854775807)
                                      order by c.namespace, c.claim_token limit v_config.count_cap) as x);
    failed := (select count(*) from (select from outbox.settled as s
                                     where s.outcome = 'failed' and (s.namespace, s.id) >= (v_name, 0)
                                       and (s.namespace, s.id) <= (v_name, 9223372036854775807)
                                     order by s.namespace, s.id limit v_config.count_cap) as x);
    select n.quota, n.strict into quota, "strict" from outbox.namespace as n where n.namespace = v_name;
    quota := coalesce(quota, v_config.default_quota);
    "strict" := coalesce("strict", false);
    paused := (select x.paused from outbox.namespace_paused(v_name, v_now) as x);
    return next;
  end loop;
end $$;
comment on function outbox.survey_namespaces is 'Namespaces with pending messages, page by page around the ring: how many, and since when';
revoke all on function outbox.survey_namespaces from public;
