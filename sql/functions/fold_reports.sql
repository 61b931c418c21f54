-- requires: fold_report.sql save_destination.sql add_hold_event.sql span.sql
create or replace function outbox.fold_reports(now timestamptz, late boolean)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
-- Takes up to 500 reports of settles, and makes of outbox.destination what they say: each that they
-- concern is read once and saved once, however many there are of it. The caller has the lock
-- fold_lock(). late also takes those that were committed after reports with larger ids had been taken:
-- that is a search from the beginning, which reads past dead rows where a long transaction keeps them.
declare
  v_config  outbox.config;
  v_edge    bigint := (select e.last_value from outbox.report_edge as e);
  v_reports outbox.report[];
  v_report  outbox.report;
  v_own     int[]; -- of each report, the number of its destination: 1 to 500, of a route of all 501 to 1000
  v_common  int[];
  v_read    boolean[] := array_fill(false, array[1000]); -- of each destination: is it in these?
  v_saved   outbox.destination[] := array_fill(null::outbox.destination, array[1000]); -- as it is in the table; null: it has no row
  v_folded  outbox.destination[] := v_saved; -- as it is to be
  v_fresh   boolean[] := v_read;
  v_was     outbox.destination;
  v_is      outbox.destination;
  v_key     text;
  v_n       int := 0; -- of the report
  v_d       int;      -- of the destination
  v_all     boolean; -- the route of all is held
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

  select array_agg(x.own order by x.id), array_agg(x.common order by x.id) into v_own, v_common
  from (select r.id, (dense_rank() over (order by r.task_queue, r.namespace))::int as own, 500 + (dense_rank() over (order by r.task_queue))::int as common
        from unnest(v_reports) as r) as x;

  foreach v_report in array v_reports loop
    v_n := v_n + 1;
    foreach v_d in array array[v_common[v_n], v_own[v_n]] loop
      v_key := case when v_d <= 500 then v_report.namespace end;
      if v_read[v_d] then
        v_was := v_folded[v_d];
      else
        v_was := null;
        if v_key is null then
          select d.* into v_was from outbox.destination as d where d.namespace is null and d.task_queue = v_report.task_queue;
        else
          select d.* into v_was from outbox.destination as d where d.namespace = v_key and d.task_queue = v_report.task_queue;
        end if;
        v_read[v_d] := true;
        if v_was.task_queue is not null then
          v_saved[v_d] := v_was;
          v_folded[v_d] := v_was;
        end if;
      end if;
      if v_key is null then
        v_all := coalesce(v_was.state, 'well') = 'held';
        -- One that is held hears of its probe whoever shares it; one that is in trouble, of whom it reached.
        continue when not v_all
          and not case when v_report.kind = 'up' then coalesce(v_was.state, 'well') <> 'well'
                       else v_report.shared is not null and coalesce(v_was.shared, v_report.shared) end;
      else
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
        v_fresh[v_d] := true;
      end if;
      v_is := outbox.fold_report(v_was, v_report, v_fresh[v_d], fold_reports.now, v_config);
      if v_is.state = 'well' and v_is.shared is null
         -- not sooner: it has the steps, and the token that tells what was claimed before the lift
         and coalesce(v_is.lifted_at + outbox.span(v_config.hold_cap) <= fold_reports.now, true) then
        v_folded[v_d] := null;
        continue;
      end if;
      v_folded[v_d] := v_is;
      if v_is.state = 'held' and v_is.held_since is distinct from v_was.held_since then
        perform outbox.add_hold_event('held', v_is, fold_reports.now, v_report.node);
      elsif v_was.state = 'held' and v_is.state <> 'held' then
        perform outbox.add_hold_event('lifted', v_was, fold_reports.now, v_report.node);
      end if;
      if v_is.held_until = 'infinity' and v_was.held_until is distinct from v_is.held_until then
        perform outbox.add_hold_event('gave_up', v_is, fold_reports.now, v_report.node);
      end if;
    end loop;
  end loop;

  for i in 1 .. 1000 loop
    continue when not v_read[i] or v_folded[i] is not distinct from v_saved[i];
    v_is := v_folded[i];
    if v_is.task_queue is not null then
      perform outbox.save_destination(v_is, fold_reports.now);
      continue;
    end if;
    v_was := v_saved[i];
    if v_was.namespace is null then
      delete from outbox.destination as d where d.namespace is null and d.task_queue = v_was.task_queue;
    else
      delete from outbox.destination as d where d.namespace = v_was.namespace and d.task_queue = v_was.task_queue;
    end if;
  end loop;
end $$;
comment on function outbox.fold_reports is 'Makes of outbox.destination what settles reported';
revoke all on function outbox.fold_reports from public;
