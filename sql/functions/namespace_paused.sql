create or replace function outbox.namespace_paused(namespace text, now timestamptz)
returns table (paused boolean)
language sql stable
-- Whether a namespace is paused now as a whole, by itself or with all. (A table of one row, since a
-- query inlines those.)
begin atomic
  select exists (select from outbox.pause as p
                 where p.namespace = namespace_paused.namespace and p.task_queue is null
                   and coalesce(p.until > namespace_paused.now, true))
      or exists (select from outbox.pause as p
                 where p.namespace is null and p.task_queue is null
                   and coalesce(p.until > namespace_paused.now, true));
end;
comment on function outbox.namespace_paused is 'Whether a namespace is paused as a whole';
revoke all on function outbox.namespace_paused from public;
