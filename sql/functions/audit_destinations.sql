-- requires: time_text.sql
create or replace function outbox.audit_destinations()
returns table (guarantee text, subject text, detail text, hint text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_nestloop = off
set jit = off
as $$
-- The part of check() about destinations: what is out of those that are held, reports that nobody
-- reads, and holds that nothing but an operator ends. A claim that ran while a hold began may bring
-- what it did not see held: it is over within config.claim_idle_timeout, and the audit leaves ten minutes.
declare
  v_now    timestamptz := clock_timestamp();
  v_config outbox.config;
begin
  select c.* into v_config from outbox.config as c;

  return query
  with held as materialized (
    select d.* from outbox.destination as d where d.state = 'held'
  ), beside as (
    select h.namespace, h.task_queue, count(*) as rows, min(c.id) as id
    from held as h
    join outbox.claimed as c on c.task_queue = h.task_queue
    where (c.namespace = h.namespace or h.namespace is null)
      and c.claimed_at > h.held_since + interval '10 minutes'
      and (c.id, c.claim_token) is distinct from (h.probe_id, h.probe_token)
    group by h.namespace, h.task_queue
  )
  select 'INV-16', format('route %L of %s', b.task_queue, coalesce(quote_literal(b.namespace), 'all')),
         format('is held, and %s of its messages %s claimed beside the probe, message %s for one', b.rows,
                case when b.rows = 1 then 'was' else 'were' end, b.id),
         'Claims went past outbox.claim_fair, or a function was changed: compare it with "sweep migrate sql".'
  from beside as b;

  return query
  select 'INV-16', 'table outbox.report', format('has a report of %s that no claim has read since', outbox.time_text(min(r.at), v_now)),
         'Claims on any shard read reports: is a node running, and does nobody keep the lock 1027 of outbox.claim_locks()?'
  from outbox.report as r
  having min(r.at) < v_now - interval '10 minutes'
     and exists (select from outbox.walk as w where w.claimed_at > min(r.at) + interval '10 minutes');

  return query
  select 'advice', format('route %L of %s', d.task_queue, coalesce(quote_literal(d.namespace), 'all')),
         format('has been held since %s, and is tried no more%s', outbox.time_text(d.held_since, v_now), coalesce(', "' || left(d.reason, 200) || '"', '')),
         'Once it is well, lift it: sweep lift. For good: cancel what waits, and purge a tenant that has left.'
  from outbox.destination as d
  where d.state = 'held' and d.held_until = 'infinity'
    and d.held_since <= v_now - v_config.hold_give_up;
end $$;
comment on function outbox.audit_destinations is 'The part of check() about destinations';
revoke all on function outbox.audit_destinations from public;
