create or replace function outbox.span(duration interval)
returns interval
language sql immutable parallel safe
-- A duration as plain seconds, held to 0 .. 1000 years: days and months would be longer
-- or shorter around a clock change of the session's time zone, and a far one overflow.
begin atomic
  select make_interval(secs => least(greatest(extract(epoch from span.duration)::float8, 0), 31556952000));
end;
comment on function outbox.span is 'A duration in plain seconds, held to 0 to 1000 years';
revoke all on function outbox.span from public;
