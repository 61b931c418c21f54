-- requires: bad_argument.sql check_key.sql
create or replace function outbox.redrive(ids bigint[])
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- Brings failed and cancelled messages back: pending, due now, attempts from 0. Their
-- failures stay on record. Returns the ids brought back. (In psql, a bare '{1,2}' would be
-- taken for a namespace: write redrive(array[1, 2]).)
declare
  v_now timestamptz := clock_timestamp();
begin
  if redrive.ids is null then
    perform outbox.bad_argument('redrive', 'ids', 'is null', 'Give ids of failed or cancelled messages.');
  end if;
  return query
  with s as (
    delete from outbox.settled as d
    where d.id = any (array(
      select s.id from outbox.settled as s where s.id = any (redrive.ids) and s.outcome <> 'done' order by s.id for update))
    returning d.id, d.namespace, d.task_queue, d.shard
  )
  insert into outbox.pending as p (id, namespace, task_queue, shard, visible_after, payload_bytes)
  select s.id, s.namespace, s.task_queue, s.shard, v_now, m.bytes
  from s
  cross join lateral ( -- a look-up each: a join could read every message there is
    select octet_length(m.payload) as bytes from outbox.message as m where m.id = s.id offset 0
  ) as m
  returning p.id;
end $$;
comment on function outbox.redrive(bigint[]) is 'Brings failed and cancelled messages back to pending; the ids brought back';
revoke all on function outbox.redrive(bigint[]) from public;

create or replace function outbox.redrive(namespace text, max int default null)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
-- redrive() for a namespace's failed messages, oldest first, up to max (null: all);
-- returns how many. Cancelled ones come back by their ids only: whoever cancelled them
-- did so on purpose.
declare
  v_ids bigint[];
begin
  perform outbox.check_key('redrive', 'namespace', redrive.namespace);
  if redrive.max < 1 then
    perform outbox.bad_argument('redrive', 'max', 'is below 1', 'Give the most messages to bring back, or null for all.');
  end if;
  v_ids := array(select s.id from outbox.settled as s
                 where s.outcome = 'failed' -- and bounds of pairs, for no other index to come into question
                   and (s.namespace, s.id) >= (redrive.namespace collate "C", 0)
                   and (s.namespace, s.id) <= (redrive.namespace collate "C", 9223372036854775807)
                 order by s.namespace, s.id limit redrive.max);
  return (select count(*) from outbox.redrive(v_ids));
end $$;
comment on function outbox.redrive(text, int) is 'Brings a namespace''s failed messages back to pending; how many';
revoke all on function outbox.redrive(text, int) from public;
