-- What the bench adds to a database: contenders and chores.
create schema bench;

-- A claim that is not fair: the oldest due messages, whosever they are. It moves rows
-- between the same tables by ctid, and its plan is pinned as that of claim_fair.
create function bench.claim_blind(node text, shards int[], batch int, max_bytes bigint, payloads boolean)
returns table (id bigint, claim_token bigint, namespace text, task_queue text, dispatch_key text, shard int,
               attempt int, content_type text, headers jsonb, payload bytea, lease_until timestamptz, pass int,
               payload_bytes int, suspect int, created_at timestamptz, due_at timestamptz, claimed_at timestamptz)
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_material = off
set enable_memoize = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_now   timestamptz := clock_timestamp();
  v_token bigint := nextval('outbox.claim_token');
  v_tids  tid[];
begin
  select array_agg(x.tid) into v_tids
  from (select p.ctid as tid from outbox.pending as p
        where p.visible_after <= v_now
        order by p.visible_after, p.id limit claim_blind.batch
        for update skip locked) as x;
  return query
  with p as (
    delete from outbox.pending as d where d.ctid = any (v_tids) returning d.*
  ), c as (
    insert into outbox.claimed as c (id, namespace, task_queue, shard, visible_after, attempt, payload_bytes,
                                     claim_token, claimed_by, claimed_at, lease_until)
    select p.id, p.namespace, p.task_queue, p.shard, p.visible_after, p.attempt + 1, p.payload_bytes,
           v_token, claim_blind.node, v_now, v_now + interval '60 s'
    from p
    returning *
  )
  select m.id, v_token, m.namespace, m.task_queue, m.dispatch_key, c.shard, c.attempt,
         m.content_type, case when claim_blind.payloads then m.headers end, case when claim_blind.payloads then m.payload end,
         c.lease_until, 1, c.payload_bytes, c.suspect::int, m.created_at, c.visible_after, c.claimed_at
  from c join outbox.message as m on m.id = c.id;
end $$;

-- Settles messages, and enqueues as many new ones in their namespaces, routes and shards,
-- due at once: what is measured next finds as much as what was measured before.
create function bench.replace(ids bigint[], tokens bigint[]) returns int
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_count int;
begin
  select count(*) into v_count from outbox.complete(replace.ids, replace.tokens);
  with o as materialized (
    select nextval(pg_get_serial_sequence('outbox.message', 'id')) as id, m.namespace, m.task_queue, s.shard, m.content_type,
           m.headers, m.payload
    from unnest(replace.ids) with ordinality as u(id, n)
    join outbox.settled as s on s.id = u.id
    join outbox.message as m on m.id = u.id
    order by u.n
  ), m as (
    insert into outbox.message (id, namespace, task_queue, dispatch_key, content_type, headers, payload)
    overriding system value
    select o.id, o.namespace, o.task_queue, 'again/' || o.id, o.content_type, o.headers, o.payload from o
  )
  insert into outbox.pending (id, namespace, task_queue, shard, visible_after, payload_bytes)
  select o.id, o.namespace, o.task_queue, o.shard, clock_timestamp(), octet_length(o.payload) from o;
  return v_count;
end $$;
