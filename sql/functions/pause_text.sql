-- requires: time_text.sql
create or replace function outbox.pause_text(pause outbox.pause, now timestamptz)
returns text
language sql stable
-- Who paused what, since when and why: paused by ops since 12:10:00
-- until 14:00:00, "provider down".
begin atomic
  select case when (pause_text.pause).namespace is not null and (pause_text.pause).task_queue is not null
              then format('route %s is paused', quote_literal((pause_text.pause).task_queue))
              when (pause_text.pause).task_queue is not null
              then format('route %s of all is paused', quote_literal((pause_text.pause).task_queue))
              when (pause_text.pause).namespace is not null then 'paused'
              else 'everything is paused' end
         || format(' by %s since %s', (pause_text.pause).by, outbox.time_text((pause_text.pause).since, pause_text.now))
         || coalesce(' until ' || outbox.time_text((pause_text.pause).until, pause_text.now), '')
         || coalesce(', "' || (pause_text.pause).note || '"', '');
end;
comment on function outbox.pause_text is 'A pause as text';
revoke all on function outbox.pause_text from public;
