-- requires: looks_like_hex.sql bad_argument.sql shard_of.sql span.sql
create or replace function outbox.enqueue_batch(
  namespaces text[], task_queues text[], dispatch_keys text[], payloads bytea[],
  content_types text[] default null, headers jsonb[] default null, delays interval[] default null)
returns table (ord int, id bigint)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_nestloop = off -- joins are among unnested arrays: nested loops would be quadratic
set enable_seqscan = off
set jit = off
set plan_cache_mode = force_generic_plan -- a plan of one call's own would hold copies of its arrays
as $$
-- enqueue() for many messages: one row back for each, by its place in the arrays, 1
-- the first; id is null for a duplicate, of a message that exists or of one before it
-- in the same batch. A bad element or a key of another namespace raises, with its
-- positions, and writes nothing. Rows are written in the order of their keys, so
-- that two batches with the same keys wait for each other instead of deadlocking.
declare
  v_now    timestamptz := clock_timestamp();
  v_config outbox.config;
  v_count  int := cardinality(enqueue_batch.dispatch_keys);
  v_bad    record;
  v_first  int[];   -- where each key comes first, in the order of the keys
  v_keys   text[];  -- what was written
  v_ids    bigint[];
  v_owners text[];
begin
  if enqueue_batch.namespaces is null or enqueue_batch.task_queues is null
     or enqueue_batch.dispatch_keys is null or enqueue_batch.payloads is null then
    perform outbox.bad_argument('enqueue_batch', 'namespaces, task_queues, dispatch_keys or payloads',
      'is null', 'Give four arrays of one length.');
  end if;
  select x.name, x.len into v_bad
  from (values ('namespaces', cardinality(enqueue_batch.namespaces)),
               ('task_queues', cardinality(enqueue_batch.task_queues)),
               ('payloads', cardinality(enqueue_batch.payloads)),
               ('content_types', cardinality(enqueue_batch.content_types)),
               ('headers', cardinality(enqueue_batch.headers)),
               ('delays', cardinality(enqueue_batch.delays))) as x(name, len)
  where x.len <> v_count limit 1;
  if found then
    perform outbox.bad_argument('enqueue_batch', v_bad.name,
      format('has %s elements, dispatch_keys has %s', v_bad.len, v_count), 'Give arrays of one length.');
  end if;
  -- Elements are looked up by their place, which copies none: unnest() would copy them all.
  if 1 <> any (array[array_lower(enqueue_batch.namespaces, 1), array_lower(enqueue_batch.task_queues, 1),
                     array_lower(enqueue_batch.dispatch_keys, 1), array_lower(enqueue_batch.payloads, 1),
                     array_lower(enqueue_batch.content_types, 1), array_lower(enqueue_batch.headers, 1),
                     array_lower(enqueue_batch.delays, 1)])
     or 1 < any (array[array_ndims(enqueue_batch.namespaces), array_ndims(enqueue_batch.task_queues),
                       array_ndims(enqueue_batch.dispatch_keys), array_ndims(enqueue_batch.payloads),
                       array_ndims(enqueue_batch.content_types), array_ndims(enqueue_batch.headers),
                       array_ndims(enqueue_batch.delays)]) then
    return query
    select b.*
    from outbox.enqueue_batch(
           array(select u.e from unnest(enqueue_batch.namespaces) with ordinality as u(e, n) order by u.n),
           array(select u.e from unnest(enqueue_batch.task_queues) with ordinality as u(e, n) order by u.n),
           array(select u.e from unnest(enqueue_batch.dispatch_keys) with ordinality as u(e, n) order by u.n),
           array(select u.e from unnest(enqueue_batch.payloads) with ordinality as u(e, n) order by u.n),
           case when enqueue_batch.content_types is not null then
             array(select u.e from unnest(enqueue_batch.content_types) with ordinality as u(e, n) order by u.n) end,
           case when enqueue_batch.headers is not null then
             array(select u.e from unnest(enqueue_batch.headers) with ordinality as u(e, n) order by u.n) end,
           case when enqueue_batch.delays is not null then
             array(select u.e from unnest(enqueue_batch.delays) with ordinality as u(e, n) order by u.n) end) as b;
    return;
  end if;
  select c.* into strict v_config from outbox.config as c;

  select x.ord, x.argument into v_bad
  from (
    select i.ord,
           case when coalesce(octet_length(enqueue_batch.namespaces[i.ord]), 0) not between 1 and 512 then 'namespaces'
                when coalesce(octet_length(enqueue_batch.task_queues[i.ord]), 0) not between 1 and 512 then 'task_queues'
                when coalesce(octet_length(enqueue_batch.dispatch_keys[i.ord]), 0) not between 1 and 512 then 'dispatch_keys'
                when enqueue_batch.payloads[i.ord] is null then 'payloads'
                when octet_length(enqueue_batch.payloads[i.ord]) > v_config.max_payload_bytes then 'large'
                when octet_length(enqueue_batch.content_types[i.ord]) not between 1 and 256 then 'content_types'
                when jsonb_typeof(enqueue_batch.headers[i.ord]) <> 'object' then 'headers'
                when octet_length(enqueue_batch.headers[i.ord]::text) > v_config.max_header_bytes then 'large headers'
           end as argument
    from generate_series(1, v_count) as i(ord)
  ) as x
  where x.argument is not null
  order by x.ord limit 1;
  if v_bad.argument = 'large' then
    raise exception 'outbox.enqueue_batch: payloads[%] has % bytes, the limit is %',
        v_bad.ord, octet_length(enqueue_batch.payloads[v_bad.ord]), v_config.max_payload_bytes
      using errcode = 'OB004', hint = 'Store it elsewhere and enqueue a reference, or raise outbox.config.max_payload_bytes.';
  elsif v_bad.argument = 'large headers' then
    raise exception 'outbox.enqueue_batch: headers[%] have % bytes, the limit is %',
        v_bad.ord, octet_length(enqueue_batch.headers[v_bad.ord]::text), v_config.max_header_bytes
      using errcode = 'OB004', hint = 'Put what is large into the payload, or raise outbox.config.max_header_bytes.';
  elsif found then
    perform outbox.bad_argument('enqueue_batch', format('%s[%s]', v_bad.argument, v_bad.ord),
      coalesce(case v_bad.argument
        when 'namespaces' then 'has ' || octet_length(enqueue_batch.namespaces[v_bad.ord]) || ' bytes'
        when 'task_queues' then 'has ' || octet_length(enqueue_batch.task_queues[v_bad.ord]) || ' bytes'
        when 'dispatch_keys' then 'has ' || octet_length(enqueue_batch.dispatch_keys[v_bad.ord]) || ' bytes'
        when 'content_types' then 'has ' || octet_length(enqueue_batch.content_types[v_bad.ord]) || ' bytes'
        when 'headers' then 'is JSON, but no object: ' || jsonb_typeof(enqueue_batch.headers[v_bad.ord]) end, 'is null'),
      case v_bad.argument
        when 'payloads' then 'Give bytes; an empty payload is ''''::bytea.'
        when 'headers' then 'Give an object; for none, ''{}'' or null.'
        when 'content_types' then 'Give 1 to 256 bytes of text, or null for application/json.'
        else 'Give 1 to 512 bytes of text.' end);
  end if;

  v_first := array(
    select distinct on (u.dispatch_key collate "C") u.ord
    from unnest(enqueue_batch.dispatch_keys) with ordinality as u(dispatch_key, ord)
    order by u.dispatch_key collate "C", u.ord);
  -- Mostly no key is there already. So it is tried first without looking each of them up: the first one that
  -- is there ends that, and what was written is given back. Where many are there it comes soon, where
  -- few are it is rare: so little is written in vain.
  if cardinality(v_first) = v_count then
    begin
      with m as (
        insert into outbox.message as n (namespace, task_queue, dispatch_key, content_type, headers, payload, created_at)
        select enqueue_batch.namespaces[f.ord], enqueue_batch.task_queues[f.ord], enqueue_batch.dispatch_keys[f.ord],
               coalesce(enqueue_batch.content_types[f.ord], 'application/json'), coalesce(enqueue_batch.headers[f.ord], '{}'),
               enqueue_batch.payloads[f.ord], v_now
        from unnest(v_first) as f(ord)
        returning n.id
      )
      select array_agg(m.id order by m.id) into v_ids from m; -- they were written in the order of their keys
      insert into outbox.pending as q (id, namespace, task_queue, shard, visible_after, ripe, payload_bytes)
      select v_ids[f.nth], enqueue_batch.namespaces[f.ord], enqueue_batch.task_queues[f.ord],
             outbox.shard_of(enqueue_batch.dispatch_keys[f.ord], (select c.shard_count from outbox.config as c)),
             f.due, f.due <= v_now, octet_length(enqueue_batch.payloads[f.ord])
      from (select u.ord, u.nth, v_now + coalesce(outbox.span(enqueue_batch.delays[u.ord]), '0') as due
            from unnest(v_first) with ordinality as u(ord, nth) offset 0) as f;
    exception when unique_violation then
      v_ids := null;
    end;
    if v_ids is not null then
      perform outbox.same_shard_count(v_config.shard_count);
      return query
      select f.ord, v_ids[f.nth]
      from unnest(v_first) with ordinality as f(ord, nth)
      order by f.ord;
      return;
    end if;
  end if;

  loop
    -- A key that the insert ran into may be free by the time that is looked at: its message
    -- was pruned. To write that key now, behind greater ones, could deadlock with a batch that
    -- holds it and waits for one of those. So they are all given back, and written again in
    -- their order.
    begin
      with m as (
        insert into outbox.message as n (namespace, task_queue, dispatch_key, content_type, headers, payload, created_at)
        select enqueue_batch.namespaces[f.ord], enqueue_batch.task_queues[f.ord], enqueue_batch.dispatch_keys[f.ord],
               coalesce(enqueue_batch.content_types[f.ord], 'application/json'), coalesce(enqueue_batch.headers[f.ord], '{}'),
               enqueue_batch.payloads[f.ord], v_now
        from unnest(v_first) as f(ord)
        on conflict on constraint message_dispatch_key_key do nothing
        returning n.id, n.namespace, n.task_queue, n.dispatch_key, octet_length(n.payload) as bytes
      ), p as (
        insert into outbox.pending as q (id, namespace, task_queue, shard, visible_after, ripe, payload_bytes)
        select m.id, m.namespace, m.task_queue, outbox.shard_of(m.dispatch_key, (select c.shard_count from outbox.config as c)),
               v_now + coalesce(d.delay, '0'), v_now + coalesce(d.delay, '0') <= v_now, m.bytes
        from m
        left join (
          select distinct on (k.dispatch_key collate "C") k.dispatch_key, outbox.span(k.delay) as delay
          from unnest(enqueue_batch.dispatch_keys, enqueue_batch.delays) with ordinality as k(dispatch_key, delay, ord)
          where enqueue_batch.delays is not null
          order by k.dispatch_key collate "C", k.ord
        ) as d on d.dispatch_key collate "C" = m.dispatch_key
      )
      select array_agg(m.dispatch_key order by m.id), array_agg(m.id order by m.id), array_agg(m.namespace order by m.id)
      into v_keys, v_ids, v_owners
      from m;
      exit when cardinality(v_ids) = v_count; -- it ran into nothing

      -- What the insert ran into, in a new statement, as in enqueue; not what it wrote, which
      -- an older snapshot may see beside the pruned one of the same key. The look-up is a
      -- scalar one, by the key's index: a join could read every message there is.
      select array_agg(x.ord order by x.ord) filter (where x.owner <> x.namespace collate "C") as foreigners,
             bool_or(x.owner is null) as pruned
      into v_bad
      from (select u.ord, u.namespace, u.dispatch_key,
                   coalesce(w.owner, (select m.namespace from outbox.message as m
                                      where w.owner is null and m.dispatch_key = u.dispatch_key collate "C")) as owner
            from unnest(enqueue_batch.namespaces, enqueue_batch.dispatch_keys) with ordinality
                 as u(namespace, dispatch_key, ord)
            left join unnest(v_keys, v_owners) as w(dispatch_key, owner) on w.dispatch_key = u.dispatch_key collate "C") as x;
      if v_bad.foreigners is not null then
        raise exception 'outbox.enqueue_batch: dispatch_keys at positions % belong to another namespace',
            array_to_string(v_bad.foreigners[1:20], ', ')
            || case when cardinality(v_bad.foreigners) > 20 then ', ...' else '' end
          using errcode = 'OB003', hint = 'Dispatch keys are unique over all namespaces: begin each with the namespace, as in acme/order/17, and take none as it is from a tenant.';
      elsif v_bad.pruned then
        raise exception using errcode = 'OB099', message = 'a key was pruned meanwhile';
      end if;
      exit;
    exception when sqlstate 'OB099' then -- what was written is gone; nobody else raises this
    end;
  end loop;

  perform outbox.same_shard_count(v_config.shard_count);

  return query
  select u.ord::int, case when u.nth = 1 then d.id end
  from (select k.ord, k.dispatch_key, row_number() over (partition by k.dispatch_key collate "C" order by k.ord) as nth
        from unnest(enqueue_batch.dispatch_keys) with ordinality as k(dispatch_key, ord)) as u
  left join unnest(v_keys, v_ids) as d(dispatch_key, id) on d.dispatch_key = u.dispatch_key collate "C"
  order by u.ord;
end $$;
comment on function outbox.enqueue_batch is 'Writes many messages in this transaction; the id of each, or null for a duplicate';
revoke all on function outbox.enqueue_batch from public;

create or replace function outbox.enqueue_texts(
  namespaces text[], task_queues text[], dispatch_keys text[], payloads text[],
  content_types text[] default null, headers jsonb[] default null, delays interval[] default null)
returns table (ord int, id bigint)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- enqueue_batch() for payloads at hand as text, as enqueue() takes one. It has a name of its own:
-- as an overload, no call with untyped arrays could be told from one with bytes.
declare
  v_hex int := (select u.ord from unnest(enqueue_texts.payloads) with ordinality as u(payload, ord)
                where outbox.looks_like_hex(u.payload) limit 1);
begin
  if v_hex is not null then
    perform outbox.bad_argument('enqueue_texts', format('payloads[%s]', v_hex), 'is text that looks like bytes in hex',
      'Give bytes to enqueue_batch(), as bytea[].');
  end if;
  return query
  select b.ord, b.id
  from outbox.enqueue_batch(enqueue_texts.namespaces, enqueue_texts.task_queues, enqueue_texts.dispatch_keys,
         case when enqueue_texts.payloads is not null
              then array(select convert_to(u.payload, 'UTF8') from unnest(enqueue_texts.payloads) with ordinality as u(payload, ord)
                         order by u.ord) end,
         enqueue_texts.content_types, enqueue_texts.headers, enqueue_texts.delays) as b;
end $$;
comment on function outbox.enqueue_texts is 'enqueue_batch() with text payloads: their bytes in UTF-8';
revoke all on function outbox.enqueue_texts from public;
