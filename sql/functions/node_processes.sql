-- requires: is_live.sql
create or replace function outbox.node_processes()
returns table (node text, process text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  -- The nodes whose heartbeat has not lapsed, and which process sent it: a node that starts
  -- looks here for those of its own machine that are gone, and leaves for them.
  select n.node, n.process
  from outbox.node as n
  cross join outbox.config as g
  cross join (select clock_timestamp() as now) as t
  where n.process is not null and outbox.is_live(n.heartbeat_at, t.now, g.node_lapse);
$$;
comment on function outbox.node_processes is 'Live nodes and the processes that sent their heartbeats';
revoke all on function outbox.node_processes from public;
