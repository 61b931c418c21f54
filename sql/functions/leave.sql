-- requires: check_key.sql share_out.sql
create or replace function outbox.leave(node text, process text default null)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Ends a node that stops cleanly, and gives its shards to others. What it has claimed
-- stays claimed. False: no such node, or another process has the name by now.
declare
  v_left boolean;
begin
  perform outbox.check_key('leave', 'node', leave.node);
  delete from outbox.node as n where n.node = leave.node and (n.process = leave.process or leave.process is null or n.process is null);
  v_left := found;
  perform outbox.share_out(clock_timestamp());
  return v_left;
end $$;
comment on function outbox.leave is 'Ends a live node';
revoke all on function outbox.leave from public;
