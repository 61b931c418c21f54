create or replace function outbox.hold_step(destination outbox.destination, now timestamptz, cap interval)
returns int
language sql stable
-- How many times the next hold of a destination is to be doubled: as often as the last one, and once more
-- while that lasts, but less and less after it was lifted, and not at all once config.hold_cap has gone by
-- since. So a destination that comes and goes does not start from the beginning each time.
begin atomic
  select case when (hold_step.destination).state = 'held' then (hold_step.destination).step else floor((hold_step.destination).step * least(greatest(1 - coalesce(
           extract(epoch from hold_step.now - (hold_step.destination).lifted_at) / extract(epoch from hold_step.cap), 0), 0), 1))::int end;
end;
comment on function outbox.hold_step is 'How many times the next hold of a destination is doubled';
revoke all on function outbox.hold_step from public;
