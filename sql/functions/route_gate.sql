-- requires: gate.sql
create or replace function outbox.route_gate(namespace text, task_queue text, now timestamptz, gates int)
returns table (own int, common int)
language sql stable
-- The gates of a route: of the destination that it is itself, and of the route of all. gates says which of
-- them there can be, as gates() has it. (A table of one row, since a query inlines those.)
begin atomic
  select (select outbox.gate(d, route_gate.now, route_gate.gates & 2 > 0) from outbox.destination as d
          where route_gate.gates & 1 > 0 and d.state in ('held', 'recovering')
            and hashtextextended(d.task_queue, hashtextextended(d.namespace, 0)) -- destination_gate_of: one page, however many are held
                = hashtextextended(route_gate.task_queue collate "C", hashtextextended(route_gate.namespace collate "C", 0))
            and d.task_queue || '' = route_gate.task_queue and d.namespace || '' = route_gate.namespace), -- not by another index
         (select outbox.gate(d, route_gate.now, route_gate.gates & 2 > 0) from outbox.destination as d
          where route_gate.gates & 4 > 0 and d.state in ('held', 'recovering') and d.task_queue = route_gate.task_queue and d.namespace is null);
end;
comment on function outbox.route_gate is 'How many messages of a route one claim may take';
revoke all on function outbox.route_gate from public;
