-- requires: bad_argument.sql
create or replace function outbox.rescue(max int default 1000)
returns table (id bigint, state text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
-- Takes up to max messages whose lease has expired from a node that is dead or stuck: they
-- are due again at once, or failed where their attempts are used up. Any node may call it;
-- two that do share the work, and a settle under way wins.
--
-- One of them may have killed the node, and the others are innocent, so the attempt is
-- charged only where that is known (INV-10): of a message that had begun alone. One that
-- was out with others is suspect from now on and not charged. A node delivers suspects
-- in ever smaller company: at most 16 together, then 4, then one by one, and says so
-- with begin_delivery(); those that it had not begun stay what they were. A claim
-- with payloads begins all that it returns together; whoever does only that is charged from
-- the tenth such rescue on. A message that is settled, or whose failed attempt is
-- reported, is no longer suspect.
declare
  v_now timestamptz := clock_timestamp();
  v_max int := (select c.max_attempts from outbox.config as c);
  v_ids bigint[];
begin
  if coalesce(rescue.max, 0) < 1 then
    perform outbox.bad_argument('rescue', 'max', 'is null or below 1', 'Give the most messages to take.');
  end if;
  v_ids := array(select c.id from outbox.claimed as c
                 where c.lease_until <= v_now
                 order by c.lease_until limit rescue.max
                 for update skip locked);
  if v_ids = '{}' then
    return;
  end if;
  return query
  with c as (
    delete from outbox.claimed as d where d.id = any (v_ids)
    returning d.*, d.suspect > 0 and d.begun = 0 as waited, d.begun = 1 or d.begun > 1 and d.suspect >= 9 as charged
  ), f as (
    select c.*, c.charged and c.attempt >= v_max as over,
           'lease expired: its node died, or it outlived --delivery-timeout'
           || case when c.charged then '' else ' (not charged: it was not alone)' end as error
    from c
  ), logged as (
    insert into outbox.failure (id, attempt, at, node, error)
    select f.id, f.attempt, v_now, f.claimed_by, f.error from f where not f.waited
  ), again as (
    insert into outbox.pending (id, namespace, task_queue, shard, visible_after, attempt, payload_bytes, suspect)
    select f.id, f.namespace, f.task_queue, f.shard, v_now,
           case when f.charged then f.attempt else greatest(f.attempt - 1, 0) end, f.payload_bytes,
           case when f.waited then f.suspect else least(f.suspect + 1, 32767) end
    from f where not f.over
  ), over as (
    insert into outbox.settled (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by, error)
    select f.id, f.namespace, f.task_queue, f.shard, 'failed', f.attempt, v_now, f.claimed_by, f.error
    from f where f.over
  )
  select f.id, case when f.over then 'failed' else 'pending' end from f;
end $$;
comment on function outbox.rescue is 'Takes messages back whose lease has expired; what became of each';
revoke all on function outbox.rescue from public;
