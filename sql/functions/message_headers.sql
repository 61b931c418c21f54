-- requires: check_key.sql
create or replace function outbox.message_headers(dispatch_key text)
returns table (content_type text, headers jsonb)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
-- What the message with this key was enqueued with beside its payload; no row: there is none.
begin
  perform outbox.check_key('message_headers', 'dispatch_key', message_headers.dispatch_key);
  return query
  select m.content_type, m.headers from outbox.message as m where m.dispatch_key = message_headers.dispatch_key;
end $$;
comment on function outbox.message_headers is 'The content type and the headers of a message';
revoke all on function outbox.message_headers from public;
