-- requires: bad_argument.sql bound_transaction.sql lock_class.sql
create or replace function outbox.hold_events(max int default 1000)
returns table (id bigint, at timestamptz, event text, namespace text, task_queue text, since timestamptz, by text, reason text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
-- What became of holds since this was called last, in whatever session, the oldest first and max of it at
-- most: for the node that tells people of it. What a call has returned no other one returns, even where
-- it is rolled back. Until the transaction of a call ends, other sessions' calls return nothing, and wait for nobody.
--
--   held     nothing is claimed for the destination since then; by failures where until then an
--            operator held it
--   lifted   the hold is over
--   gave_up  it is tried no more until somebody lifts the hold: since config.hold_give_up is over, or
--            since the destination says that it is gone
--
-- What is older than a day is not returned, and a hold that ends because its namespace is purged is not told.
declare
  v_edge   bigint;
  v_since  timestamptz := clock_timestamp() - interval '1 day';
  v_events outbox.hold_event[];
  v_last   bigint; -- the last one there is, and then, the last one that is told now
begin
  if coalesce(hold_events.max, 0) not between 1 and 10000 then
    perform outbox.bad_argument('hold_events', 'max', 'is not 1 to 10000', 'Give the most events to return.');
  end if;
  perform outbox.bound_transaction((select c.claim_idle_timeout from outbox.config as c)); -- while it is open, nobody else is told
  if not pg_try_advisory_xact_lock(outbox.lock_class(), 1028) then -- another call has read the edge, and not yet set it
    return;
  end if;
  v_edge := (select e.last_value from outbox.hold_event_edge as e);
  select (select array_agg(x order by x.id)
          from (select e.* from outbox.hold_event as e
                where e.id >= v_edge and e.at > v_since order by e.id limit hold_events.max) as x),
         (select e.id from outbox.hold_event as e where e.id >= v_edge order by e.id desc limit 1)
  into v_events, v_last;
  if cardinality(v_events) = hold_events.max then
    v_last := v_events[hold_events.max].id;
  end if;
  perform setval('outbox.hold_event_edge', v_last + 1)
  where v_last >= v_edge;
  return query
  select e.id, e.at, e.event::text, e.namespace::text, e.task_queue::text, e.since, e.by, e.reason from unnest(v_events) as e;
end $$;
comment on function outbox.hold_events is 'What became of holds since the last call: who began, ended or gave up';
revoke all on function outbox.hold_events from public;
