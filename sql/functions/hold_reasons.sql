-- requires: gates.sql bad_argument.sql check_key.sql next_held.sql claim_walk.sql hold_reason.sql
create or replace function outbox.hold_reasons(namespaces text[])
returns table (namespace text, next_due_at timestamptz, reason text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- Why a claim of all shards would take nothing from each of these namespaces, up to 1000, in the words of
-- explain_claim(): a row each, in their order. reason null: a claim that comes to the namespace takes
-- something from it. next_due_at: when the next of its messages that are not due comes due; null: there is
-- none. Writes nothing and takes no lock; the walk of a claim plays no part, so that this costs each namespace
-- a look, whatever else waits.
declare
  v_config outbox.config;
  v_next   int[];
  v_now    timestamptz := clock_timestamp();
  v_name   text;
  v_gates  int := outbox.gates(true);
begin
  if hold_reasons.namespaces is null or cardinality(hold_reasons.namespaces) > 1000 then
    perform outbox.bad_argument('hold_reasons', 'namespaces', 'is null or has more than 1000', 'Give the names of up to 1000 namespaces.');
  end if;
  select c.* into strict v_config from outbox.config as c;
  v_next := outbox.next_held(array(select generate_series(0, v_config.shard_count - 1)), v_config.shard_count);
  foreach v_name in array hold_reasons.namespaces loop
    perform outbox.check_key('hold_reasons', 'namespaces', v_name);
    namespace := v_name;
    next_due_at := (
      select p.visible_after from outbox.pending as p -- by pending_unripe_namespace
      where not p.ripe and p.ring = outbox.ring(v_name) and p.namespace = v_name and p.visible_after > v_now
      order by p.visible_after, p.id limit 1);
    reason := (
      select outbox.hold_reason(v.namespace, v.verdict, v.claimed, v.ceiling, v.quota, v_next, v_now)
      from outbox.claim_walk('', v_next, v_config.shard_count, 1, '', 0, v_now, 0, v_name, false, v_gates, v_config, null) as w
      cross join lateral unnest(w.visits) as v);
    return next;
  end loop;
end $$;
comment on function outbox.hold_reasons is 'Why claims would take nothing from some namespaces';
revoke all on function outbox.hold_reasons from public;
