-- What a queue table does without fairclaim: whoever is first in line, whosever it is.
create index pending_first_come on outbox.pending (visible_after, id);

create or replace function outbox.claim_fair(node text, shards int[], batch int, max_bytes bigint default null,
                                             payloads boolean default true)
returns table (id bigint, claim_token bigint, namespace text, task_queue text, dispatch_key text, shard int,
               attempt int, content_type text, headers jsonb, payload bytea, lease_until timestamptz, pass int,
               payload_bytes int, suspect int, created_at timestamptz, due_at timestamptz, claimed_at timestamptz)
language sql security definer
begin atomic
  with next as (
    select p.id from outbox.pending as p
    where p.visible_after <= clock_timestamp()
    order by p.visible_after, p.id limit claim_fair.batch for update skip locked
  ), gone as (
    delete from outbox.pending as p using next as n where p.id = n.id returning p.*
  ), claimed as (
    insert into outbox.claimed (id, namespace, task_queue, shard, visible_after, attempt, payload_bytes,
                                claim_token, claimed_by, claimed_at, lease_until)
    select g.id, g.namespace, g.task_queue, g.shard, g.visible_after, g.attempt + 1, g.payload_bytes,
           nextval('outbox.claim_token'), claim_fair.node, clock_timestamp(), clock_timestamp() + interval '60 s'
    from gone as g
    returning *
  )
  select c.id, c.claim_token, m.namespace, m.task_queue, m.dispatch_key, c.shard, c.attempt,
         m.content_type, case when claim_fair.payloads then m.headers end, case when claim_fair.payloads then m.payload end,
         c.lease_until, 1, c.payload_bytes, c.suspect::int, m.created_at, c.visible_after, c.claimed_at
  from claimed as c join outbox.message as m on m.id = c.id
  order by c.visible_after, c.id;
end;
