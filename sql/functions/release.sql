-- requires: check_settle.sql
create or replace function outbox.release(ids bigint[], tokens bigint[])
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
-- Gives back messages that were claimed and not tried: due as they were, and the
-- attempt is not charged (INV-10). As complete().
begin
  perform outbox.check_settle('release', release.ids, release.tokens);
  return query
  with c as (
    delete from outbox.claimed as d
    where d.id = any (release.ids)
      and ((d.id, d.claim_token) in (select u.id, u.token from unnest(release.ids, release.tokens) as u(id, token)
                                        where (u.id, u.token) is not null)) is true
    returning d.*
  )
  insert into outbox.pending as p (id, namespace, task_queue, shard, visible_after, attempt, payload_bytes, suspect)
  select c.id, c.namespace, c.task_queue, c.shard, c.visible_after, greatest(c.attempt - 1, 0), c.payload_bytes, c.suspect
  from c
  returning p.id;
end $$;
comment on function outbox.release is 'Gives untried messages back, uncharged; the ids released, the rest were lost';
revoke all on function outbox.release from public;
