-- requires: bad_argument.sql check_key.sql next_held.sql walk_routes.sql walk_lanes.sql pause_text.sql holds_of.sql
create or replace function outbox.route_state(namespace text, max int default 100)
returns table (task_queue text, due bigint, not_due bigint, next_due_at timestamptz, oldest_due_at timestamptz,
               oldest_key text, claimed bigint, failed bigint, reason text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- How the routes of a namespace are, up to max, those first whose oldest message has been due longest. Of
-- what is due, the counts of all routes together go no further than config.count_cap, and so of what is
-- not due, claimed, and failed: of each, that many messages are looked at. oldest_key is the dispatch key
-- of the oldest due message. reason: what holds the route back, a pause or a hold; null: nothing does.
declare
  v_now  timestamptz := clock_timestamp();
  v_cap  int;
  v_next int[];
begin
  perform outbox.check_key('route_state', 'namespace', route_state.namespace);
  if coalesce(route_state.max, 0) not between 1 and 1000 then
    perform outbox.bad_argument('route_state', 'max', 'is not 1 to 1000', 'Give the most routes to return.');
  end if;
  select outbox.next_held(array(select generate_series(0, c.shard_count - 1)), c.shard_count), c.count_cap into strict v_next, v_cap
  from outbox.config as c;
  return query
  with lane as materialized ( -- where ripe messages stand
    select r.task_queue, l.shard, l.head
    from outbox.walk_routes(route_state.namespace) as r
    cross join lateral outbox.walk_lanes(route_state.namespace, r.task_queue, 0, v_next) as l
    limit v_cap
  ), ripe as materialized ( -- what is due there
    select l.task_queue, p.id, p.visible_after
    from lane as l
    cross join lateral (
      select p.id, p.visible_after from outbox.pending as p
      where p.ripe and p.ring = outbox.ring(route_state.namespace) and p.namespace = route_state.namespace collate "C"
        and p.route_ring = outbox.ring(l.task_queue) and p.task_queue = l.task_queue and p.shard = l.shard
        and p.visible_after <= v_now
      order by p.visible_after, p.id limit v_cap
    ) as p
    limit v_cap
  ), unripe as materialized (
    select p.task_queue, p.id, p.visible_after from outbox.pending as p
    where not p.ripe and p.ring = outbox.ring(route_state.namespace) and p.namespace = route_state.namespace collate "C"
    order by p.visible_after, p.id limit v_cap
  ), seen(task_queue, what, id, at) as (
    select r.task_queue, 'due', r.id, r.visible_after from ripe as r
    union all
    select l.task_queue, 'due', null, l.head from lane as l where l.head <= v_now -- no count, but a time, where ripe ends early
    union all
    select u.task_queue, case when u.visible_after <= v_now then 'due' else 'not due' end, u.id, u.visible_after from unripe as u
    union all
    (select c.task_queue, 'claimed', c.id, null from outbox.claimed as c
     where (c.namespace, c.claim_token) >= (route_state.namespace collate "C", 0)
       and (c.namespace, c.claim_token) <= (route_state.namespace collate "C", 9223372036854775807)
     order by c.namespace, c.claim_token limit v_cap)
    union all
    (select s.task_queue, 'failed', s.id, null from outbox.settled as s
     where s.outcome = 'failed' and (s.namespace, s.id) >= (route_state.namespace collate "C", 0)
       and (s.namespace, s.id) <= (route_state.namespace collate "C", 9223372036854775807)
     order by s.namespace desc, s.id desc limit v_cap)
    union all
    (select u.task_queue, 'paused', null, null from outbox.pause as u
     where u.namespace = route_state.namespace collate "C" and u.task_queue is not null and coalesce(u.until > v_now, true)
     order by u.task_queue limit v_cap)
    union all
    (select d.task_queue, 'held', null, null from outbox.destination as d
     where d.namespace = route_state.namespace collate "C" and d.state = 'held' order by d.task_queue limit v_cap)
  ), route as materialized (
    select s.task_queue, count(s.id) filter (where s.what = 'due') as due, count(*) filter (where s.what = 'not due') as not_due,
           min(s.at) filter (where s.what = 'not due') as next_due_at, min(s.at) filter (where s.what = 'due') as oldest_due_at,
           (array_agg(s.id order by s.at, s.id) filter (where s.what = 'due' and s.id is not null))[1] as oldest_id,
           count(*) filter (where s.what = 'claimed') as claimed, count(*) filter (where s.what = 'failed') as failed
    from seen as s
    group by s.task_queue
    order by min(s.at) filter (where s.what = 'due'), s.task_queue limit route_state.max
  )
  select r.task_queue::text, r.due, r.not_due, r.next_due_at, r.oldest_due_at,
         (select m.dispatch_key::text from outbox.message as m where m.id = r.oldest_id),
         r.claimed, r.failed,
         nullif(concat_ws('; ',
           (select outbox.pause_text(u, v_now) from outbox.pause as u
            where (u.task_queue = r.task_queue or u.task_queue is null) and (u.namespace = route_state.namespace collate "C" or u.namespace is null)
              and coalesce(u.until > v_now, true)
            order by u.namespace nulls last, u.task_queue nulls last limit 1),
           (select h.reason from outbox.holds_of(route_state.namespace, r.task_queue, v_now) as h)), '')
  from route as r
  order by r.oldest_due_at, r.task_queue;
end $$;
comment on function outbox.route_state is 'How the routes of a namespace are, those first that have waited longest';
revoke all on function outbox.route_state from public;
