create or replace function outbox.route_paused(namespace text, task_queue text, now timestamptz)
returns table (paused boolean)
language sql stable
-- Whether a route is paused now, for this namespace or for all; a pause of the whole namespace is
-- another matter: see namespace_paused(). (A table of one row, since a query inlines those.)
begin atomic
  select exists (select from outbox.pause as p
                 where p.namespace = route_paused.namespace and p.task_queue = route_paused.task_queue
                   and coalesce(p.until > route_paused.now, true))
      or exists (select from outbox.pause as p
                 where p.namespace is null and p.task_queue = route_paused.task_queue
                   and coalesce(p.until > route_paused.now, true));
end;
comment on function outbox.route_paused is 'Whether a route is paused, for a namespace or for all';
revoke all on function outbox.route_paused from public;
