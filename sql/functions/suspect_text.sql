create or replace function outbox.suspect_text(suspect int)
returns text
language sql immutable parallel safe
-- What why() adds about a message that may kill its node (see rescue); empty for all others.
begin atomic
  select case when suspect_text.suspect > 0
              then format('; suspect: its lease expired %s in a row, so it goes on in smaller company',
                          case when suspect_text.suspect = 1 then 'once' else suspect_text.suspect || ' times' end)
              else '' end;
end;
comment on function outbox.suspect_text is 'What why() says of a suspect message';
revoke all on function outbox.suspect_text from public;
