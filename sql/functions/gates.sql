create or replace function outbox.gates(probes boolean)
returns int
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
-- Which gates a claim must ask for: 1 if routes of namespaces are held or coming back, 4 if routes of all are,
-- and with one of those 2 if the claim may probe those whose time is over. 0: none. Most of the time it is one or
-- the other, and a look-up for each route that a claim comes to is not nothing.
declare
  v_gates int := case when exists (select from outbox.destination as d where d.state in ('held', 'recovering') and d.namespace is not null) then 1 else 0 end
               + case when exists (select from outbox.destination as d where d.state in ('held', 'recovering') and d.namespace is null) then 4 else 0 end;
begin
  return v_gates + case when v_gates > 0 and gates.probes then 2 else 0 end;
end $$;
comment on function outbox.gates is 'Which gates a claim must ask for';
revoke all on function outbox.gates from public;
