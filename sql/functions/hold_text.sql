-- requires: time_text.sql gate.sql
create or replace function outbox.hold_text(destination outbox.destination, now timestamptz)
returns text
language sql stable
-- What holds a destination back, and what is next, as text; null where nothing does: route 'mail' is
-- held until 14:32:10 after 5 failures, "connection refused" (worker-1), then one message is tried.
begin atomic
  select format('route %s%s ', quote_literal((hold_text.destination).task_queue),
                case when (hold_text.destination).namespace is null then ' of all' else '' end)
    || case
      when (hold_text.destination).state = 'held' then
        case when (hold_text.destination).held_until = 'infinity' then 'is held until somebody lifts it'
             when (hold_text.destination).held_until > hold_text.now
             then 'is held until ' || outbox.time_text((hold_text.destination).held_until, hold_text.now)
             when outbox.gate(hold_text.destination, hold_text.now, true) = 1 then 'is held, and the next claim tries one message'
             else format('is held, and message %s is being tried', (hold_text.destination).probe_id) end
        || case when cardinality((hold_text.destination).failed) > 0
                then format(', after %s %s in a row', cardinality((hold_text.destination).failed),
                            case when cardinality((hold_text.destination).failed) = 1 then 'failure' else 'failures' end) else '' end
        || coalesce(', "' || left((hold_text.destination).reason, 200) || '"', '')
        || coalesce(' (' || (hold_text.destination).held_by || ')', '')
        || case when (hold_text.destination).held_until > hold_text.now and (hold_text.destination).held_until <> 'infinity'
                then ', then one message is tried' else '' end
      when outbox.gate(hold_text.destination, hold_text.now, true) is not null then
        format('is coming back: a claim takes at most %s of it', outbox.gate(hold_text.destination, hold_text.now, true))
    end;
end;
comment on function outbox.hold_text is 'What holds a destination back, as text';
revoke all on function outbox.hold_text from public;
