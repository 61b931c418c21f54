create or replace function outbox.bound_transaction(longest interval)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Ends the session, until the transaction is over, where it waits for its client longer than
-- this: what the transaction has locked keeps others from their work. A limit that is
-- stricter already stays.
declare
  v_ms text := (extract(epoch from bound_transaction.longest) * 1000)::bigint::text;
begin
  if current_setting('idle_in_transaction_session_timeout')::interval not between '1 ms' and bound_transaction.longest then
    perform set_config('idle_in_transaction_session_timeout', v_ms, true);
  end if;
  if current_setting('tcp_user_timeout') = '0' then
    -- The same for a client that is frozen or gone, and takes in none of what is sent to it.
    perform set_config('tcp_user_timeout', v_ms, true);
  end if;
end $$;
comment on function outbox.bound_transaction is 'Limits how long the transaction may wait for its client';
revoke all on function outbox.bound_transaction from public;
