-- requires: bad_argument.sql check_key.sql cancel_lock.sql settle_cancelled.sql
create or replace function outbox.cancel_namespace(namespace text, max int default null)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
-- Cancels a namespace's pending and claimed messages, up to max of them (null: all), as
-- cancel() does; returns how many. On a large backlog call it with a max until it
-- returns 0: each transaction is short then. pause() the namespace first where its
-- messages should not be served in between.
declare
  v_now  timestamptz := clock_timestamp();
  v_ids  bigint[];
  v_last bigint := (select max(m.id) from outbox.message as m); -- what comes after this call stays
  v_done bigint := 0;
begin
  perform outbox.check_key('cancel_namespace', 'namespace', cancel_namespace.namespace);
  if cancel_namespace.max < 1 then
    perform outbox.bad_argument('cancel_namespace', 'max', 'is below 1', 'Give the most messages to cancel, or null for all.');
  end if;
  perform outbox.cancel_lock();
  loop
    -- By lane, which is cheap; then locked by id. What moves in between is met in the
    -- next turn.
    v_ids := array(
      (select p.id from outbox.pending as p
       where p.ripe and p.ring = outbox.ring(cancel_namespace.namespace) and p.namespace = cancel_namespace.namespace collate "C"
         and p.id <= v_last
       order by p.route_ring, p.task_queue, p.shard, p.visible_after, p.id limit cancel_namespace.max - v_done)
      union all
      (select p.id from outbox.pending as p
       where not p.ripe and p.ring = outbox.ring(cancel_namespace.namespace) and p.namespace = cancel_namespace.namespace collate "C"
         and p.id <= v_last
       order by p.visible_after, p.id limit cancel_namespace.max - v_done)
      union all
      (select c.id from outbox.claimed as c -- bounds of pairs, for no other index to come into question
       where (c.namespace, c.claim_token) >= (cancel_namespace.namespace collate "C", 0)
         and (c.namespace, c.claim_token) <= (cancel_namespace.namespace collate "C", 9223372036854775807) and c.id <= v_last
       order by c.namespace, c.claim_token limit cancel_namespace.max - v_done)
      limit cancel_namespace.max - v_done);
    v_done := v_done + (select count(*) from outbox.settle_cancelled(v_ids, v_now) as s);
    exit when cardinality(v_ids) = 0 or v_done >= cancel_namespace.max;
  end loop;
  return v_done;
end $$;
comment on function outbox.cancel_namespace is 'Cancels a namespace''s pending and claimed messages; how many';
revoke all on function outbox.cancel_namespace from public;
