create or replace function outbox.time_text(at timestamptz, now timestamptz)
returns text
language sql stable
-- A time as a person reads it beside now, in the session's time zone.
begin atomic
  select case
    when not isfinite(time_text.at) then 'never'
    when time_text.at::date = time_text.now::date then to_char(time_text.at, 'HH24:MI:SS')
    else to_char(time_text.at, 'YYYY-MM-DD HH24:MI:SS')
  end;
end;
comment on function outbox.time_text is 'A time as text, short when it is today';
revoke all on function outbox.time_text from public;
