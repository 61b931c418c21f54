-- requires: hold_text.sql
create or replace function outbox.holds_of(namespace text, task_queue text, now timestamptz)
returns table (reason text, until timestamptz)
language sql stable
-- What holds a route of a namespace back as a destination, its own hold and that of the route of all,
-- as text, null if nothing does; and until when.
begin atomic
  select string_agg(outbox.hold_text(d, holds_of.now), '; ' order by d.namespace nulls last), max(d.held_until)
  from (select d.* from outbox.destination as d
        where d.state in ('held', 'recovering') and d.task_queue = holds_of.task_queue and d.namespace = holds_of.namespace
        union all
        select d.* from outbox.destination as d
        where d.state in ('held', 'recovering') and d.task_queue = holds_of.task_queue and d.namespace is null) as d;
end;
comment on function outbox.holds_of is 'What holds a route back as a destination, as text';
revoke all on function outbox.holds_of from public;
