-- requires: check_key.sql
create or replace function outbox.leave(node text)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Ends a node that stops cleanly. What it has claimed stays claimed. False: no such node.
begin
  perform outbox.check_key('leave', 'node', leave.node);
  delete from outbox.node as n where n.node = leave.node;
  return found;
end $$;
comment on function outbox.leave is 'Ends a live node';
revoke all on function outbox.leave from public;
