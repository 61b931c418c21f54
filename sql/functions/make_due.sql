create or replace function outbox.make_due(ids bigint[], now timestamptz)
returns setof bigint
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- Makes those of ids due that are pending and wait for their time; returns which. What came due
-- and no claim has made ripe yet keeps its time, and so its place before those that follow.
-- What is locked, by a claim that makes it ripe, say, is waited for, in the order of the ids.
declare
  v_tids tid[] := array(
    select p.tid
    from (select u.id from unnest(make_due.ids) as u(id) order by u.id) as u
    cross join lateral (
      select p.ctid as tid from outbox.pending as p
      where p.id = u.id and (not p.ripe or p.visible_after > make_due.now) for update
    ) as p);
begin
  return query
  update outbox.pending as p set ripe = true, visible_after = least(p.visible_after, make_due.now)
  where p.ctid = any (v_tids)
  returning p.id;
end $$;
comment on function outbox.make_due is 'Makes pending messages that wait due; which';
revoke all on function outbox.make_due from public;
