-- requires: shard_of.sql
create or replace function outbox.audit_messages(first_id bigint)
returns table (guarantee text, subject text, detail text, hint text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_nestloop = off -- after an analyse of empty tables it would be quadratic
set work_mem = '64MB'     -- hashes of ids and keys
set jit = off
as $$
-- The part of check() about messages one by one, those from this id on: each stands in
-- one state, on its shard, with what its cold side says, charged as its state implies.
declare
  v_shards int := (select c.shard_count from outbox.config as c);
begin
  return query
  select x.guarantee, format('message %s', h.id), x.detail, x.hint
  from (
    select p.id, 'pending' as state, p.namespace, p.task_queue, p.shard, p.payload_bytes, p.attempt, 0 as least
    from outbox.pending as p where p.id >= audit_messages.first_id
    union all
    select c.id, 'claimed', c.namespace, c.task_queue, c.shard, c.payload_bytes, c.attempt, 1
    from outbox.claimed as c where c.id >= audit_messages.first_id
    union all
    select s.id, s.outcome, s.namespace, s.task_queue, s.shard, null, s.attempts, (s.outcome <> 'cancelled')::int
    from outbox.settled as s where s.id >= audit_messages.first_id
  ) as h
  left join outbox.message as m on m.id = h.id and m.id >= audit_messages.first_id
  cross join lateral (
    values
      ('INV-2', m.id is null, format('is %s and has no row in outbox.message: its key and payload are gone', h.state),
       'Nothing can deliver it. Restore its row in outbox.message, or delete it from the table of its state.'),
      ('INV-4', h.namespace <> m.namespace, format('is %s in namespace %L, its message in %L', h.state, h.namespace, m.namespace),
       'It counts against the wrong quota. Set namespace in the table of its state to that of outbox.message.'),
      ('INV-4', h.shard <> outbox.shard_of(m.dispatch_key, v_shards),
       format('is %s on shard %s, its key hashes to %s', h.state, h.shard, outbox.shard_of(m.dispatch_key, v_shards)),
       'Another node than its shard''s owner claims and counts it, or none. Set shard to outbox.shard_of(dispatch_key, shard_count).'),
      ('INV-7', h.task_queue <> m.task_queue, format('is %s in task queue %L, its message in %L', h.state, h.task_queue, m.task_queue),
       'It goes by the wrong route. Set task_queue in the table of its state to that of outbox.message.'),
      ('INV-10', h.attempt < h.least, format('is %s after %s attempts', h.state, h.attempt),
       'A claim charges an attempt, nothing takes it below 0. Set attempt to 1.'),
      ('INV-13', h.payload_bytes <> octet_length(m.payload),
       format('is %s with %s bytes, its payload has %s', h.state, h.payload_bytes, octet_length(m.payload)),
       'Claims count it against max_bytes by that. Set payload_bytes to the length of the payload.')
  ) as x(guarantee, wrong, detail, hint)
  where (m.id is null or h.namespace <> m.namespace or h.task_queue <> m.task_queue or h.attempt < h.least
         or h.shard <> outbox.shard_of(m.dispatch_key, v_shards) or h.payload_bytes <> octet_length(m.payload))
    and x.wrong;

  return query
  select 'INV-5', format('message %s', p.id), 'stands at another place of the ring than its namespace and route have',
         'outbox.ring() was replaced, or hashes otherwise: claims do not find it. update outbox.pending set namespace = namespace, task_queue = task_queue.'
  from outbox.pending as p
  where p.id >= audit_messages.first_id
    and (p.ring <> outbox.ring(p.namespace) or p.route_ring <> outbox.ring(p.task_queue));

  return query
  select 'INV-2', format('message %s', m.id), format('with key %L is in no state: neither pending, nor claimed, nor settled', m.dispatch_key),
         'It is never delivered, and its key counts as a duplicate. Delete it from outbox.message and enqueue it again.'
  from outbox.message as m
  where m.id >= audit_messages.first_id
    and not exists (select from outbox.pending as p where p.id = m.id)
    and not exists (select from outbox.claimed as c where c.id = m.id)
    and not exists (select from outbox.settled as s where s.id = m.id);

  return query
  select 'INV-2', format('message %s', h.id), format('is %s at once', string_agg(h.state, ' and ' order by h.state)),
         'It may be delivered again after it was settled. Keep the row of one state; settled is the last.'
  from (select p.id, 'pending' as state from outbox.pending as p where p.id >= audit_messages.first_id
        union all select c.id, 'claimed' from outbox.claimed as c where c.id >= audit_messages.first_id
        union all select s.id, s.outcome from outbox.settled as s where s.id >= audit_messages.first_id) as h
  group by h.id having count(*) > 1;

  return query
  select 'INV-2', format('message %s', f.id), format('has %s recorded failures, and no row in outbox.message', count(*)),
         'Delete them from outbox.failure, unless the message was deleted by mistake.'
  from outbox.failure as f
  where f.id >= audit_messages.first_id and not exists (select from outbox.message as m where m.id = f.id)
  group by f.id;

  return query
  select 'INV-3', format('dispatch key %L', m.dispatch_key),
         format('belongs to messages %s', array_to_string((array_agg(m.id order by m.id))[1:10], ', ')),
         'The unique index is broken. Delete all of them but one, from every table, then: reindex table outbox.message.'
  from outbox.message as m where m.id >= audit_messages.first_id
  group by m.dispatch_key having count(*) > 1;
end $$;
comment on function outbox.audit_messages is 'The part of check() about messages one by one';
revoke all on function outbox.audit_messages from public;
