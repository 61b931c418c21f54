create or replace function outbox.lock_claimed(ids bigint[], tokens bigint[])
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- Locks the claimed messages whose claim token is still the one shown (INV-9), in the
-- order of their ids, so that settles never deadlock; returns their ids.
begin
  return (
    select coalesce(array_agg(c.id), '{}')
    from (select distinct u.id, u.token from unnest(lock_claimed.ids, lock_claimed.tokens) as u(id, token)
          order by u.id) as u -- the look-ups lock, one after the other
    cross join lateral ( -- by id alone: the planner may take a token, which a claim's rows share, for unique
      select c.id from outbox.claimed as c where c.id = u.id and c.claim_token + 0 = u.token for update
    ) as c
  );
end $$;
comment on function outbox.lock_claimed is 'Locks claimed messages by id and claim token; the ids found';
revoke all on function outbox.lock_claimed from public;
