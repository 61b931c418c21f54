-- requires: fold_report.sql save_destination.sql add_hold_event.sql span.sql
create or replace function outbox.fold_reports(now timestamptz, late boolean)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
-- Takes up to 500 reports of settles, and makes of outbox.destination what they say. The caller has
-- the lock fold_lock(). late also takes those that were committed after reports with larger ids had
-- been taken: that is a search from the beginning, which reads past dead rows where a long transaction
-- keeps them.
declare
  v_config  outbox.config;
  v_edge    bigint := (select e.last_value from outbox.report_edge as e);
  v_reports outbox.report[];
  v_report  outbox.report;
  v_was     outbox.destination;
  v_is      outbox.destination;
  v_key     text;
  v_all     boolean; -- the route of all is held
  v_fresh   text[] := '{}';
begin
  with r as (
    delete from outbox.report as d
    where d.id = any (array(select r.id from outbox.report as r
                            where r.id >= case when fold_reports.late then 0 else v_edge end
                            order by r.id limit 500))
    returning d.*
  )
  select array_agg(r order by r.id) into v_reports from r;
  if v_reports is null then
    return;
  end if;
  if fold_reports.late and v_edge > (select s.last_value from outbox.report_id_seq as s) then
    perform setval('outbox.report_edge', 1); -- the ids went back, as where tables were copied without sequences
  end if;
  -- To the first of them, since this may yet be rolled back, and the edge is not.
  perform setval('outbox.report_edge', min(r.id)) from unnest(v_reports) as r where r.id > v_edge having min(r.id) is not null;
  select c.* into strict v_config from outbox.config as c;

  foreach v_report in array v_reports loop
    foreach v_key in array array[null, v_report.namespace] loop
      v_was := null;
      if v_key is null then
        select d.* into v_was from outbox.destination as d where d.namespace is null and d.task_queue = v_report.task_queue;
        v_all := coalesce(v_was.state, 'well') = 'held';
        -- One that is held hears of its probe whoever shares it; one that is in trouble, of whom it reached.
        continue when not v_all
          and not case when v_report.kind = 'up' then coalesce(v_was.state, 'well') <> 'well'
                       else v_report.shared is not null and coalesce(v_was.shared, v_report.shared) end;
      else
        select d.* into v_was from outbox.destination as d where d.namespace = v_key and d.task_queue = v_report.task_queue;
        -- What is wrong with the endpoint of all is not held against one of them.
        continue when v_all and v_report.kind in ('unreachable', 'broken') and (v_was.state = 'held') is not true;
      end if;
      if v_was.lift_token > (select s.last_value from outbox.claim_token as s) then
        v_was.lift_token := 0; -- the database went back: what is claimed now has smaller tokens
      end if;
      if v_was.task_queue is null then
        continue when v_report.kind = 'up';
        v_was.namespace := v_key;
        v_was.task_queue := v_report.task_queue;
        v_was.state := 'well';
        v_was.score := 0;
        v_was.failed := '{}';
        v_was.failed_of := '{}';
        v_was.step := 0;
        v_was.lift_token := 0;
      end if;
      if v_was.state = 'well' then
        v_fresh := v_fresh || (quote_nullable(v_key) || ' ' || v_report.task_queue);
      end if;
      v_is := outbox.fold_report(v_was, v_report, quote_nullable(v_key) || ' ' || v_report.task_queue = any (v_fresh),
                                 fold_reports.now, v_config);
      if v_is.state = 'well' and v_is.shared is null
         -- not sooner: it has the steps, and the token that tells what was claimed before the lift
         and coalesce(v_is.lifted_at + outbox.span(v_config.hold_cap) <= fold_reports.now, true) then
        if v_key is null then
          delete from outbox.destination as d where d.namespace is null and d.task_queue = v_is.task_queue;
        else
          delete from outbox.destination as d where d.namespace = v_key and d.task_queue = v_is.task_queue;
        end if;
      elsif v_is is distinct from v_was then
        perform outbox.save_destination(v_is, fold_reports.now);
        if v_is.state = 'held' and v_is.held_since is distinct from v_was.held_since then
          perform outbox.add_hold_event('held', v_is, fold_reports.now, v_report.node);
        elsif v_was.state = 'held' and v_is.state <> 'held' then
          perform outbox.add_hold_event('lifted', v_was, fold_reports.now, v_report.node);
        end if;
        if v_is.held_until = 'infinity' and v_was.held_until is distinct from v_is.held_until then
          perform outbox.add_hold_event('gave_up', v_is, fold_reports.now, v_report.node);
        end if;
      end if;
    end loop;
  end loop;
end $$;
comment on function outbox.fold_reports is 'Makes of outbox.destination what settles reported';
revoke all on function outbox.fold_reports from public;
