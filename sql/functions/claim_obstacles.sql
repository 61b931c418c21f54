-- requires: claim_locks.sql
create or replace function outbox.claim_obstacles(claims boolean default false)
returns table (session text, shards int[], others int, remedy text)
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
  -- Who holds locks of this outbox and is not claiming: a row for each session, and each transaction
  -- that was prepared with a claim in it and forgotten. Nothing is claimed from the shards that it
  -- holds until it ends. shards are these, others is how many other locks it holds: those of
  -- nodes, of heartbeats, of cancels and of destinations. remedy is the SQL that ends the session or
  -- transaction. With claims, those who claim at this moment are listed, too: for a caller that has been
  -- shut out for long.
  select l.session, coalesce(array_agg(l.key order by l.key) filter (where l.key between 0 and 1023), '{}'),
         (count(*) filter (where l.key < 0 or l.key > 1023))::int, l.remedy
  from outbox.claim_locks() as l
  where l.stray or claim_obstacles.claims
  group by l.session, l.remedy
  order by l.session;
$$;
comment on function outbox.claim_obstacles is 'Who holds locks of claims and is not claiming';
revoke all on function outbox.claim_obstacles from public;
