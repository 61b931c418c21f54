-- requires: looks_like_hex.sql bad_argument.sql check_key.sql shard_of.sql span.sql
create or replace function outbox.enqueue(
  namespace text, task_queue text, dispatch_key text, payload bytea,
  content_type text default 'application/json', headers jsonb default '{}', delay interval default null)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off -- a session may keep the plan that it made when the table was small
set jit = off
as $$
-- Writes one message in the caller's transaction; it is due when that commits, or
-- delay after this call where one is given (after the call, not after the
-- transaction's start). Returns its id, or null where this namespace has a message
-- with this key already (INV-3). Not strict: a null argument is an error, never
-- a message that was not written.
declare
  v_now         timestamptz := clock_timestamp();
  v_shards      int;
  v_max_payload int;
  v_max_headers int;
  v_due         timestamptz;
  v_owner       text;
  v_id          bigint;
begin
  if (octet_length(enqueue.namespace) between 1 and 512 and octet_length(enqueue.task_queue) between 1 and 512
      and octet_length(enqueue.dispatch_key) between 1 and 512) is not true then -- a call of a function costs as much as an insert
    perform outbox.check_key('enqueue', 'namespace', enqueue.namespace);
    perform outbox.check_key('enqueue', 'task_queue', enqueue.task_queue);
    perform outbox.check_key('enqueue', 'dispatch_key', enqueue.dispatch_key);
  end if;
  if enqueue.payload is null then
    perform outbox.bad_argument('enqueue', 'payload', 'is null', 'Give bytes; an empty payload is ''''::bytea.');
  end if;
  if coalesce(octet_length(enqueue.content_type), 0) not between 1 and 256 then
    perform outbox.bad_argument('enqueue', 'content_type', 'is null, empty or too long', 'Give 1 to 256 bytes of text.');
  end if;
  if jsonb_typeof(enqueue.headers) is distinct from 'object' then
    perform outbox.bad_argument('enqueue', 'headers', 'is not a JSON object', 'Give an object; for none, ''{}''.');
  end if;
  select c.shard_count, c.max_payload_bytes, c.max_header_bytes into strict v_shards, v_max_payload, v_max_headers
  from outbox.config as c;
  if octet_length(enqueue.payload) > v_max_payload then
    raise exception 'outbox.enqueue: payload has % bytes, the limit is %',
        octet_length(enqueue.payload), v_max_payload
      using errcode = 'OB004', hint = 'Store it elsewhere and enqueue a reference, or raise outbox.config.max_payload_bytes.';
  end if;
  if octet_length(enqueue.headers::text) > v_max_headers then
    raise exception 'outbox.enqueue: headers have % bytes, the limit is %',
        octet_length(enqueue.headers::text), v_max_headers
      using errcode = 'OB004', hint = 'Put what is large into the payload, or raise outbox.config.max_header_bytes.';
  end if;
  -- A delay reckoned from a clock that has run on since may be negative: due now, as without one.
  v_due := v_now + coalesce(outbox.span(enqueue.delay), '0');
  loop
    with m as (
      insert into outbox.message as n (namespace, task_queue, dispatch_key, content_type, headers, payload, created_at)
      values (enqueue.namespace, enqueue.task_queue, enqueue.dispatch_key, enqueue.content_type,
              enqueue.headers, enqueue.payload, v_now)
      on conflict on constraint message_dispatch_key_key do nothing
      returning n.id
    )
    insert into outbox.pending as p (id, namespace, task_queue, shard, visible_after, ripe, payload_bytes)
    select m.id, enqueue.namespace, enqueue.task_queue,
           outbox.shard_of(enqueue.dispatch_key, (select c.shard_count from outbox.config as c)), v_due,
           v_due <= v_now,
           octet_length(enqueue.payload)
    from m
    returning p.id into v_id;
    if found then
      if current_setting('transaction_isolation') <> 'read committed' then
        perform outbox.same_shard_count(v_shards);
      end if;
      return v_id;
    end if;
    -- A new statement, so that it sees what the insert ran into. It may be pruned by
    -- now: then there is no such message any more, and the key is free.
    select m.namespace into v_owner from outbox.message as m where m.dispatch_key = enqueue.dispatch_key collate "C";
    if found then
      if v_owner collate "C" <> enqueue.namespace then
        raise exception 'outbox.enqueue: dispatch_key % belongs to another namespace', quote_literal(enqueue.dispatch_key)
          using errcode = 'OB003', hint = 'Dispatch keys are unique over all namespaces: begin each with the namespace, as in acme/order/17, and take none as it is from a tenant.';
      end if;
      return null;
    end if;
  end loop;
end $$;
comment on function outbox.enqueue(text, text, text, bytea, text, jsonb, interval) is
  'Writes a message in this transaction; its id, or null for a duplicate';
revoke all on function outbox.enqueue(text, text, text, bytea, text, jsonb, interval) from public;

create or replace function outbox.enqueue(
  namespace text, task_queue text, dispatch_key text, payload text,
  content_type text default 'application/json', headers jsonb default '{}', delay interval default null)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- enqueue() for a payload at hand as text, which becomes its bytes in UTF-8, as they are. A
-- literal in quotes and a parameter without a type come here: read as bytea, their
-- backslashes would be escapes. What looks like bytea in its hex form is refused, since bytes were
-- meant, more likely: those want ::bytea.
begin
  if outbox.looks_like_hex(enqueue.payload) then
    perform outbox.bad_argument('enqueue', 'payload', 'is text that looks like bytes in hex',
      'For the bytes, write ::bytea behind it; for this very text, give convert_to(payload, ''UTF8'').');
  end if;
  return outbox.enqueue(enqueue.namespace, enqueue.task_queue, enqueue.dispatch_key, convert_to(enqueue.payload, 'UTF8'),
                        enqueue.content_type, enqueue.headers, enqueue.delay);
end $$;
comment on function outbox.enqueue(text, text, text, text, text, jsonb, interval) is
  'enqueue() with a text payload: its bytes in UTF-8';
revoke all on function outbox.enqueue(text, text, text, text, text, jsonb, interval) from public;
