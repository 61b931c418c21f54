-- requires: bad_argument.sql check_settle.sql failed_attempts.sql span.sql
create or replace function outbox.fail_destination(
  ids bigint[], tokens bigint[], kinds text[], errors text[] default null, holds interval[] default null,
  shared boolean[] default null, reached text[] default null)
returns table (id bigint, charged boolean)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- Gives messages back that failed by their destination's doing, not by their own, and reports that, so
-- that claims hold back what goes there. As complete(). kinds says, of each, what was seen:
--
--   unreachable  no connection, or an answer that whoever calls would get
--   broken       the destination broke on the message, perhaps on this one alone
--   busy         it asked for time: holds says how much
--   gone         it is no more
--
-- What fails at a destination that is held, or was claimed before the last hold of it was lifted, or made longer by an
-- operator, says nothing of it: it is not reported, not charged, and due as it was. What is reported of a destination that is held, the
-- probe, or that is held from now on, since it is busy or gone, is not charged either, and due config.hold_base
-- from now, behind the others. All else is as retry() does it. shared says of each whether other namespaces'
-- messages of the route go to the same endpoint. What is claimed before a claim has read the reports goes on.
-- charged says of each whether it cost an attempt: only then may it have been the last one.
--
-- A call has no order within itself, and "in a row" means: nothing got through meanwhile. So reached says of each who
-- got through there since it failed, before this call: 'namespace', another message of its namespace: then what was
-- unreachable or broken is an attempt like any other, and not reported; 'others', one of another namespace: then it
-- counts for the namespace alone, not for the route of all.
declare
  v_now  timestamptz;
  v_base interval;
begin
  perform outbox.check_settle('fail_destination', fail_destination.ids, fail_destination.tokens);
  if fail_destination.kinds is null then
    perform outbox.bad_argument('fail_destination', 'kinds', 'is null', 'Give one for each id: unreachable, broken, busy or gone.');
  elsif cardinality(fail_destination.kinds) <> cardinality(fail_destination.ids) then
    perform outbox.bad_argument('fail_destination', 'kinds', 'has another length than ids', 'Give one for each id.');
  elsif exists (select from unnest(fail_destination.kinds) as k(kind)
                where k.kind is null or k.kind not in ('unreachable', 'broken', 'busy', 'gone')) then
    perform outbox.bad_argument('fail_destination', 'kinds', 'has an unknown element',
      'Give unreachable, broken, busy or gone.');
  elsif cardinality(fail_destination.errors) <> cardinality(fail_destination.ids) then
    perform outbox.bad_argument('fail_destination', 'errors', 'has another length than ids', 'Give one for each id, or null.');
  elsif cardinality(fail_destination.holds) <> cardinality(fail_destination.ids) then
    perform outbox.bad_argument('fail_destination', 'holds', 'has another length than ids', 'Give one for each id, or null.');
  elsif cardinality(fail_destination.shared) <> cardinality(fail_destination.ids) then
    perform outbox.bad_argument('fail_destination', 'shared', 'has another length than ids', 'Give one for each id, or null.');
  elsif cardinality(fail_destination.reached) <> cardinality(fail_destination.ids) then
    perform outbox.bad_argument('fail_destination', 'reached', 'has another length than ids', 'Give one for each id, or null.');
  elsif exists (select from unnest(fail_destination.reached) as r(reached) where r.reached not in ('namespace', 'others')) then
    perform outbox.bad_argument('fail_destination', 'reached', 'has an unknown element', 'Give namespace, others or null.');
  end if;
  v_now := clock_timestamp();
  v_base := outbox.span((select c.hold_base from outbox.config as c));
  return query
  with u as materialized ( -- what is still claimed so, locked in the order of the ids, as all settles do
    select c.*, x.kind, x.hold, case when x.reached is null then coalesce(x.shared, false) end as shared,
           x.reached = 'namespace' and x.kind in ('unreachable', 'broken') as passed,
           case when length(x.error) > 2000 then left(x.error, 999) || '…' || right(x.error, 1000)
                else coalesce(nullif(x.error, ''), 'no reason given') end as error
    from (select distinct on (x.id, x.token) x.*
          from unnest(fail_destination.ids, fail_destination.tokens, fail_destination.kinds, fail_destination.errors,
                      fail_destination.holds, fail_destination.shared, fail_destination.reached) as x(id, token, kind, error, hold, shared, reached)
          order by x.id, x.token) as x
    cross join lateral (
      select d.* from outbox.claimed as d where d.id = x.id and d.claim_token + 0 = x.token for update
    ) as c
  ), f as materialized (
    select u.*, s.held, s.counts, s.held or not s.counts or u.kind in ('busy', 'gone') as uncharged
    from u
    cross join lateral (
      select coalesce(bool_or(d.held), false) as held,
             coalesce(bool_or(d.probe and not d.old), false) or not coalesce(bool_or(d.held or d.old), false) as counts
      from (select d.state = 'held' as held, d.state = 'held' and (d.probe_id, d.probe_token) = (u.id, u.claim_token) as probe,
                   u.claim_token < d.lift_token -- where the database went back, its token says nothing
                     and d.lift_token <= (select t.last_value from outbox.claim_token as t) as old
            from (select d.* from outbox.destination as d where d.task_queue = u.task_queue and d.namespace = u.namespace
                  union all
                  select d.* from outbox.destination as d where d.task_queue = u.task_queue and d.namespace is null) as d
      ) as d
    ) as s
  ), reported as (
    insert into outbox.report (at, kind, message_id, claim_token, namespace, task_queue, shared, hold, node, reason)
    select v_now, f.kind, f.id, f.claim_token, f.namespace, f.task_queue, f.shared, greatest(f.hold, '0'), f.claimed_by, left(f.error, 500)
    from f where f.counts and (f.held or f.passed is not true)
    order by f.id
  ), back as (
    delete from outbox.claimed as d
    where d.id = any (array(select f.id from f where f.uncharged))
  ), logged as (
    insert into outbox.failure (id, attempt, at, node, error)
    select f.id, f.attempt, v_now, f.claimed_by,
           f.error || case when f.held then ' (not charged: its destination is held)'
                           when f.counts then ' (not charged: its destination is held from now on)'
                           else ' (not charged: claimed before the hold of its destination was lifted)' end
    from f where f.uncharged
  ), again as (
    insert into outbox.pending as p (id, namespace, task_queue, shard, visible_after, ripe, attempt, payload_bytes)
    select f.id, f.namespace, f.task_queue, f.shard, case when f.counts then v_now + v_base else f.visible_after end, not f.counts,
           greatest(f.attempt - 1, 0), f.payload_bytes
    from f where f.uncharged
    returning p.id
  )
  select a.id, false from again as a;
  return query -- of the rest, which are claimed still
  select f.id, true from outbox.failed_attempts(fail_destination.ids, fail_destination.tokens, fail_destination.errors, null, false) as f;
end $$;
comment on function outbox.fail_destination is 'Gives messages back whose destination failed; the ids settled, and whether each was charged; the rest were lost';
revoke all on function outbox.fail_destination from public;
