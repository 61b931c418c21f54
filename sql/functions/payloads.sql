-- requires: check_settle.sql
create or replace function outbox.payloads(ids bigint[], tokens bigint[])
returns table (id bigint, claim_token bigint, headers jsonb, payload bytea)
language plpgsql stable security definer rows 100
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- Headers and payloads of messages that were claimed without them, for as many as fit into
-- the caller's memory: payload_bytes says how large each is. Only of claims that still
-- hold (INV-9); what does not come back was lost. It writes and locks nothing.
begin
  perform outbox.check_settle('payloads', payloads.ids, payloads.tokens);
  return query
  select u.id, u.token, m.headers, m.payload
  from unnest(payloads.ids, payloads.tokens) as u(id, token)
  cross join lateral (
    select c.claim_token + 0 as token from outbox.claimed as c where c.id = u.id offset 0
  ) as c
  cross join lateral (
    select m.headers, m.payload from outbox.message as m where m.id = u.id offset 0
  ) as m
  where c.token = u.token;
end $$;
comment on function outbox.payloads is 'Headers and payloads of claimed messages; of the rest the claim was lost';
revoke all on function outbox.payloads from public;
