-- requires: bad_argument.sql span.sql lock_class.sql node_lock.sql fold_lock.sql redrive.sql gate.sql bound_transaction.sql
create or replace function outbox.prune(older_than interval default null, max int default 1000, failed boolean default false)
returns int
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
set jit = off
as $$
-- Deletes up to max messages that were done or cancelled (and failed, when asked) longer
-- ago than older_than (null: config.retention), with payloads and failures, the walks
-- of nodes that are gone, quotas that were lowered long ago, pauses that are over, and what was known of
-- destinations that nothing goes to any more. Their dispatch keys are
-- free again. Returns how many messages; call it until that is below max.
declare
  v_before  timestamptz;
  v_outcome text;
  v_ids     bigint[];
  v_tids    tid[];
  v_done    int := 0;
  v_now     timestamptz;
  v_edge    bigint; -- up to where holds have been looked at
  v_node    text;
  v_newest  outbox.walk; -- the walk of the node that claimed last
  v_kept    interval := (select c.retention from outbox.config as c);
  -- Spans, which are what counts: '-10 years 3607 days' compares as 7 days, and is less than none.
  v_age     interval := outbox.span(coalesce(prune.older_than, v_kept));
  v_invoker name := coalesce(nullif(current_setting('role'), 'none'), session_user); -- the role that is set, if one is
begin
  if extract(epoch from prune.older_than) < 0 then
    perform outbox.bad_argument('prune', 'older_than', 'is negative', 'Give an age, as in ''7 days''.');
  elsif coalesce(prune.max, 0) < 1 then
    perform outbox.bad_argument('prune', 'max', 'is null or below 1', 'Give the most messages to delete.');
  end if;
  if (prune.failed or v_age < outbox.span(v_kept))
     and not has_function_privilege(v_invoker, 'outbox.redrive(bigint[])', 'execute') then
    raise exception 'outbox.prune: only operators prune failed messages, or others before their retention of %', v_kept
      using errcode = 'insufficient_privilege', hint = 'outbox.grant_operator makes an operator.';
  end if;
  v_before := clock_timestamp() - v_age;
  foreach v_outcome in array case when prune.failed then '{done,cancelled,failed}' else '{done,cancelled}' end::text[] loop
    select array_agg(x.id), array_agg(x.tid) into v_ids, v_tids
    from (select s.id, s.ctid as tid from outbox.settled as s
          where s.outcome = v_outcome and s.settled_at <= v_before
          order by s.settled_at limit prune.max - v_done
          for update skip locked) as x;
    continue when v_ids is null;
    delete from outbox.failure as f where f.id = any (v_ids);
    delete from outbox.message as m where m.id = any (v_ids);
    delete from outbox.settled as s where s.ctid = any (v_tids);
    v_done := v_done + cardinality(v_ids);
    exit when v_done >= prune.max;
  end loop;
  delete from outbox.went_back as b where b.ctid = any (array(
    select w.ctid from outbox.went_back as w
    where w.at < clock_timestamp() - interval '30 days' limit 100 for update skip locked));
  delete from outbox.former_quota as q where q.ctid = any (array(
    select f.ctid from outbox.former_quota as f
    where f.until < clock_timestamp() - interval '30 days' limit 100 for update skip locked));
  delete from outbox.pause as p where p.ctid = any (array(
    select u.ctid from outbox.pause as u
    where u.until < clock_timestamp() - interval '1 day' limit 100 for update skip locked));
  perform outbox.bound_transaction(c.claim_idle_timeout) from outbox.config as c; -- left open, it would hold the locks that follow
  if pg_try_advisory_xact_lock(outbox.lock_class(), outbox.fold_lock()) then
    -- Not sooner: a message alone may wait for its backoff, and then fail again.
    delete from outbox.destination as d where d.ctid = any (array(
      select i.ctid from outbox.destination as i
      where i.state <> 'held' and i.shared is null
        and i.changed_at < clock_timestamp() - (select interval '1 day' + 2 * outbox.span(c.retry_cap) from outbox.config as c)
      order by i.changed_at limit 100));
    -- Held, and nothing has been there to be tried for a day, nor is out: mostly its tenant has left. Each call
    -- looks at some, behind those of the call before: of many that stay, as of paused tenants, none is in the way.
    -- Of one moment there are 500 at most, as one claim holds them.
    v_now := clock_timestamp();
    with turn as materialized (
      select i.ctid as tid, i as destination, i.namespace, i.task_queue, i.held_until from outbox.destination as i
      where i.state = 'held' and i.held_until < v_now - interval '1 day'
        and i.held_until > timestamptz 'epoch' + (select e.last_value from outbox.held_edge as e) * interval '1 microsecond'
      order by i.held_until fetch first 50 rows with ties
    ), idle as materialized (
      select t.* from turn as t
      where t.namespace is not null
        and (select p.id from outbox.pending as p
             where p.ripe and p.ring = outbox.ring(t.namespace) and p.namespace = t.namespace
               and p.route_ring = outbox.ring(t.task_queue) and p.task_queue = t.task_queue
             order by p.shard, p.visible_after, p.id limit 1) is null
        and (select p.id from outbox.pending as p
             where not p.ripe and p.ring = outbox.ring(t.namespace) and p.namespace = t.namespace
             order by p.visible_after, p.id limit 1) is null
    ), gone as (
      delete from outbox.destination as d
      where d.ctid = any (array(select i.tid from idle as i where outbox.gate(i.destination, v_now, true) = 1))
      returning d.*
    ), told as (
      insert into outbox.hold_event (at, event, namespace, task_queue, since, reason)
      select v_now, 'lifted', g.namespace, g.task_queue, coalesce(g.held_since, v_now), g.reason from gone as g
    )
    select case when count(*) < 50 then 1 else (extract(epoch from max(t.held_until)) * 1000000)::bigint end into v_edge from turn as t;
    if v_edge <> (select e.last_value from outbox.held_edge as e) then
      perform setval('outbox.held_edge', v_edge);
    end if;
    delete from outbox.hold_event as e where e.ctid = any (array(
      select o.ctid from (select x.ctid, x.at from outbox.hold_event as x order by x.id limit 500) as o
      where o.at < clock_timestamp() - interval '1 day'));
  end if;
  -- Nodes that are gone: a new one goes on at the newest walk of any, the others are of no
  -- use. Only under the node's lock: its claim would have to wait for this transaction.
  delete from outbox.node as n where n.node in (
    select o.node from outbox.node as o
    where o.heartbeat_at < clock_timestamp() - interval '1 day' limit 100 for update skip locked);
  select w.* into v_newest from outbox.walk as w order by w.claimed_at desc limit 1;
  for v_node in
    select w.node from outbox.walk as w
    where w.claimed_at < clock_timestamp() - interval '1 hour' and w.claimed_at < v_newest.claimed_at
    order by random() limit 100 -- so that those that stay, for the sake of a route, are in nobody's way
  loop
    if pg_try_advisory_xact_lock(outbox.lock_class(), outbox.node_lock(v_node)) then
      delete from outbox.route as r
      where r.ctid = any (array( -- ordered, which the primary key, that holds the node too, is not
              select x.ctid from outbox.route as x where x.node >= v_node and x.node <= v_node order by x.node limit 1000))
        and (r.served_at < clock_timestamp() - interval '30 days'
             -- Another node has a newer one: mostly the node that claimed last, so that comes first.
             -- All nodes there ever were may have one.
             or exists (select from outbox.route as l
                        where (l.namespace, l.node) >= (r.namespace, v_newest.node)
                          and (l.namespace, l.node) <= (r.namespace, v_newest.node) and l.served_at > r.served_at)
             or exists (select from outbox.route as l where l.namespace = r.namespace and l.served_at > r.served_at));
      if not exists (select from outbox.route as x where x.node >= v_node and x.node <= v_node order by x.node limit 1) then
        delete from outbox.walk as w where w.node = v_node;
      end if;
    end if;
  end loop;
  return v_done;
end $$;
comment on function outbox.prune is 'Deletes old settled messages; how many';
revoke all on function outbox.prune from public;
