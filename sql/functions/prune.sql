-- requires: bad_argument.sql span.sql
create or replace function outbox.prune(older_than interval default null, max int default 1000, failed boolean default false)
returns int
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- Deletes up to max messages that were done or cancelled (and failed, when asked) longer
-- ago than older_than (null: config.retention), with payloads and failures, and the
-- walks of nodes that are gone. Their dispatch keys are free again. Returns how many;
-- call it until that is below max.
declare
  v_before  timestamptz;
  v_age     interval := coalesce(prune.older_than, (select c.retention from outbox.config as c));
  v_outcome text;
  v_ids     bigint[];
  v_done    int := 0;
begin
  if v_age < '0' then
    perform outbox.bad_argument('prune', 'older_than', 'is negative', 'Give an age, as in ''7 days''.');
  elsif coalesce(prune.max, 0) < 1 then
    perform outbox.bad_argument('prune', 'max', 'is null or below 1', 'Give the most messages to delete.');
  end if;
  v_before := clock_timestamp() - outbox.span(v_age);
  foreach v_outcome in array case when prune.failed then '{done,cancelled,failed}' else '{done,cancelled}' end::text[] loop
    v_ids := array(select s.id from outbox.settled as s
                   where s.outcome = v_outcome and s.settled_at <= v_before
                   order by s.settled_at limit prune.max - v_done
                   for update skip locked);
    delete from outbox.failure as f where f.id = any (v_ids);
    delete from outbox.message as m where m.id = any (v_ids);
    delete from outbox.settled as s where s.id = any (v_ids);
    v_done := v_done + cardinality(v_ids);
    exit when v_done >= prune.max;
  end loop;
  -- A node that has no place of its own in a walk goes on at the newest of any: older
  -- ones are of no use once their node is gone.
  delete from outbox.route as r where (r.namespace, r.node) in (
    select o.namespace, o.node from outbox.route as o
    where o.served_at < clock_timestamp() - interval '1 hour'
      and (o.served_at < clock_timestamp() - interval '30 days'
           or exists (select from outbox.route as l where l.namespace = o.namespace and l.served_at > o.served_at))
    limit prune.max for update skip locked);
  delete from outbox.walk as w where w.node in (
    select o.node from outbox.walk as o
    where o.claimed_at < clock_timestamp() - interval '1 hour'
      and exists (select from outbox.walk as l where l.claimed_at > o.claimed_at)
    limit prune.max for update skip locked);
  return v_done;
end $$;
comment on function outbox.prune is 'Deletes old settled messages; how many';
revoke all on function outbox.prune from public;
