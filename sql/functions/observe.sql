-- requires: bad_argument.sql bound_transaction.sql lock_class.sql fold_lock.sql fold_reports.sql
create or replace function outbox.observe(namespaces text[], task_queues text[])
returns table (n int, state text, held_until timestamptz, reason text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- How the destinations of these pairs are, numbered from 1, for a node that has messages for them: well,
-- failing, held (what is not the probe is better given back), recovering, or unknown: reports are waiting
-- that another session reads, or more than one call does; ask again. A null namespace asks for the route of all alone; else the
-- worse of the two counts. Reports that nobody reads are read first. It never waits.
declare
  v_now    timestamptz := clock_timestamp();
  v_edge   bigint := (select e.last_value from outbox.report_edge as e);
  v_last   bigint := (select r.id from outbox.report as r where r.id >= v_edge order by r.id desc limit 1);
  v_unread boolean := v_last is not null;
begin
  if observe.namespaces is null then
    perform outbox.bad_argument('observe', 'namespaces', 'is null', 'Give the namespace of each destination, null for the route of all.');
  elsif cardinality(observe.namespaces) is distinct from cardinality(observe.task_queues) then
    perform outbox.bad_argument('observe', 'task_queues', 'has another length than namespaces', 'Give one for each namespace.');
  elsif exists (select from unnest(observe.task_queues) as q(task_queue) where q.task_queue is null) then
    perform outbox.bad_argument('observe', 'task_queues', 'has a null element', 'Name the route of each destination.');
  end if;
  if v_unread and current_setting('transaction_isolation') in ('read committed', 'read uncommitted')
     and pg_try_advisory_xact_lock(outbox.lock_class(), outbox.fold_lock()) then
    perform outbox.bound_transaction((select c.claim_idle_timeout from outbox.config as c));
    perform outbox.fold_reports(v_now, false);
    v_unread := exists (select from outbox.report as r where r.id between v_edge and v_last);
  end if;
  return query
  select u.n::int, case when not v_unread or d.state = 'held' then coalesce(d.state, 'well') else 'unknown' end, d.held_until, d.reason
  from unnest(observe.namespaces, observe.task_queues) with ordinality as u(namespace, task_queue, n)
  left join lateral (
    select x.* from (
      select d.state, d.held_until, d.reason from outbox.destination as d
      where d.state <> 'well' and d.task_queue = u.task_queue and d.namespace = u.namespace
      union all
      select d.state, d.held_until, d.reason from outbox.destination as d
      where d.state <> 'well' and d.task_queue = u.task_queue and d.namespace is null) as x
    order by case x.state when 'held' then 1 when 'failing' then 2 else 3 end, x.held_until desc limit 1
  ) as d on true
  order by u.n;
end $$;
comment on function outbox.observe is 'How destinations are, for nodes that have messages for them';
revoke all on function outbox.observe from public;
