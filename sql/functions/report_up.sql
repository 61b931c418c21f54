create or replace function outbox.report_up(ids bigint[], now timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- Reports, of claimed messages that were delivered, those destinations that are in trouble, or of which a failure
-- is reported that nobody has read yet: one report for each, of the message claimed last, and while it is held none
-- but the probe's. Of such failures it looks at the last 500 reports. It reads what is there and waits for nobody.
begin
  insert into outbox.report (at, kind, message_id, claim_token, namespace, task_queue)
  with unread as materialized (
    select distinct r.namespace, r.task_queue, coalesce(d.shared, r.shared) and r.shared is not null as shared
    from (select r.* from outbox.report as r
          where r.id >= (select e.last_value from outbox.report_edge as e) order by r.id desc limit 500) as r
    left join lateral (
      select d.shared from outbox.destination as d where d.namespace is null and d.task_queue = r.task_queue
    ) as d on true
    where r.kind <> 'up'
  )
  select report_up.now, 'up', x.id, x.token, r.namespace, r.task_queue
  from (select c.namespace, c.task_queue, array_agg(c.id order by c.claim_token desc) as ids, array_agg(c.claim_token order by c.claim_token desc) as tokens
        from unnest(report_up.ids) as u(id)
        cross join lateral ( -- a look-up each: a scan could read all there are
          select c.* from outbox.claimed as c where c.id = u.id offset 0
        ) as c
        group by c.namespace, c.task_queue) as r
  cross join lateral (
    select case when t.state = 'held' then t.probe_id else r.ids[1] end as id,
           case when t.state = 'held' then t.probe_token else r.tokens[1] end as token
    from (select d.state, d.probe_id, d.probe_token from outbox.destination as d
          where d.state <> 'well' and d.task_queue = r.task_queue and d.namespace = r.namespace
          union all
          select d.state, d.probe_id, d.probe_token from outbox.destination as d
          where d.state <> 'well' and d.task_queue = r.task_queue and d.namespace is null
          union all
          select 'failing', null, null from unread as f
          where f.task_queue = r.task_queue and (f.namespace = r.namespace or f.shared)) as t
    where t.state <> 'held' or r.tokens[array_position(r.ids, t.probe_id)] = t.probe_token
    order by t.state = 'held' desc limit 1
  ) as x;
end $$;
comment on function outbox.report_up is 'Reports that destinations in trouble were reached';
revoke all on function outbox.report_up from public;
