set local search_path = pg_catalog, pg_temp;

-- When autovacuum comes by: by rows, and not by a fifth of the table (docs/operations.md). What somebody has set
-- stays. This waits for a vacuum of the table, and for no call of the outbox.
do $$
declare
  v_table record;
begin
  for v_table in
    select c.relname, string_agg(format('%I = %s', o.name, o.value), ', ' order by o.name) as settings
    from (values
      ('pending', 'autovacuum_vacuum_threshold', '10000'), ('pending', 'autovacuum_vacuum_scale_factor', '0.02'),
      ('pending', 'autovacuum_vacuum_insert_threshold', '100000'), ('pending', 'autovacuum_analyze_threshold', '50000'),
      ('claimed', 'autovacuum_vacuum_threshold', '10000'), ('claimed', 'autovacuum_vacuum_scale_factor', '0.02'),
      ('claimed', 'autovacuum_vacuum_insert_threshold', '100000'), ('claimed', 'autovacuum_analyze_threshold', '50000'),
      ('message', 'autovacuum_vacuum_threshold', '10000'), ('message', 'autovacuum_vacuum_scale_factor', '0.05'),
      ('message', 'autovacuum_vacuum_insert_threshold', '100000'), ('message', 'autovacuum_analyze_threshold', '50000'),
      ('settled', 'autovacuum_vacuum_threshold', '10000'), ('settled', 'autovacuum_vacuum_scale_factor', '0.05'),
      ('settled', 'autovacuum_vacuum_insert_threshold', '100000'), ('settled', 'autovacuum_analyze_threshold', '50000'),
      ('failure', 'autovacuum_vacuum_threshold', '10000'), ('failure', 'autovacuum_vacuum_scale_factor', '0.05'),
      ('failure', 'autovacuum_vacuum_insert_threshold', '100000'), ('failure', 'autovacuum_analyze_threshold', '50000'),
      ('report', 'autovacuum_vacuum_threshold', '1000'), ('report', 'autovacuum_analyze_threshold', '50000'),
      ('destination', 'autovacuum_vacuum_threshold', '1000'), ('destination', 'autovacuum_analyze_threshold', '50000'),
      ('walk', 'autovacuum_vacuum_threshold', '1000'), ('walk', 'autovacuum_analyze_threshold', '50000'),
      ('route', 'autovacuum_vacuum_threshold', '1000'), ('route', 'autovacuum_analyze_threshold', '50000'),
      ('node', 'autovacuum_vacuum_threshold', '1000'), ('node', 'autovacuum_analyze_threshold', '50000')
    ) as o(relname, name, value)
    join pg_class as c on c.relnamespace = 'outbox'::regnamespace and c.relname = o.relname
    where not exists (select from pg_options_to_table(c.reloptions) as x where x.option_name = o.name)
    group by c.relname order by c.relname
  loop
    execute format('alter table outbox.%I set (%s)', v_table.relname, v_table.settings);
  end loop;
end $$;

-- >>> snapshot

-- Rights on what is dropped or gets an overload below, as they are now.
do $rights$
begin
  perform pg_catalog.set_config('outbox.rights', coalesce((
  select pg_catalog.jsonb_agg(r)::text
  from (
    select 'function' as kind, p.proname as name, pg_catalog.oidvectortypes(p.proargtypes) as args, null as col,
           a.grantee, a.privilege_type as privilege, a.is_grantable as grantable
    from pg_catalog.pg_proc as p
    left join lateral pg_catalog.aclexplode(p.proacl) as a on a.grantee not in (0, p.proowner)
    where p.pronamespace = 'outbox'::pg_catalog.regnamespace and p.proname in ('claim_fair', 'claim_order', 'claim_read', 'claim_walk', 'explain_claim', 'fail_destination', 'hold_reasons', 'queue_text', 'survey', 'survey_namespaces', 'walk_namespaces', 'why', null)
    union all
    select 'view', c.relname, '', x.col, a.grantee, a.privilege_type, a.is_grantable
    from pg_catalog.pg_class as c
    cross join lateral (
      select null as col, c.relacl as acl
      union all
      select t.attname, t.attacl from pg_catalog.pg_attribute as t where t.attrelid = c.oid and t.attacl is not null
    ) as x
    cross join lateral pg_catalog.aclexplode(x.acl) as a
    where c.relnamespace = 'outbox'::pg_catalog.regnamespace and c.relname in (null) and a.grantee <> c.relowner
  ) as r), '[]'), true);
end $rights$;

-- dropped: sql/functions/why.sql
drop function outbox.why(dispatch_key text);

-- dropped: sql/functions/survey_namespaces.sql
drop function outbox.survey_namespaces(after text, size int, names text[], max_time interval);

-- dropped: sql/functions/survey.sql
drop function outbox.survey();

-- dropped: sql/functions/queue_text.sql
drop function outbox.queue_text(namespace text, shard int, node text, config outbox.config);

-- dropped: sql/functions/hold_reasons.sql
drop function outbox.hold_reasons(namespaces text[]);

-- dropped: sql/functions/fail_destination.sql
drop function outbox.fail_destination(ids bigint[], tokens bigint[], kinds text[], errors text[], holds interval[], shared boolean[]);

-- dropped: sql/functions/explain_claim.sql
drop function outbox.explain_claim(node text, shards int[], batch int, max_bytes bigint, "only" text);

-- dropped: sql/functions/claim_fair.sql
drop function outbox.claim_fair(node text, shards int[], batch int, max_bytes bigint, payloads boolean);

-- dropped: sql/functions/claim_order.sql
drop function outbox.claim_order(candidates outbox.candidate[], wanted int[], slice int, batch int, max_bytes bigint, turn bigint, out picked outbox.candidate[], out passes int[], out left_out int);

-- dropped: sql/functions/claim_read.sql
drop function outbox.claim_read(node text, visits outbox.visit[], active int, width int, held int[], next_held int[], batch int, now timestamptz, for_claim boolean, gates int, gated int[], gated_routes text[], caps int[], config outbox.config, out candidates outbox.candidate[], out wanted int[], out rotating text[], out queues text[], out wading int, out pages bigint);

-- dropped: sql/functions/claim_walk.sql
drop function outbox.claim_walk(node text, next_held int[], held int, batch int, cursor text, round bigint, now timestamptz, oldest_token bigint, "only" text, for_claim boolean, gates int, config outbox.config, inout detours outbox.detour[], out visits outbox.visit[], out active int, out ended text, out width int, out several boolean, out gated int[], out gated_routes text[], out caps int[]);

-- dropped: sql/functions/walk_namespaces.sql
drop function outbox.walk_namespaces(after text, wrapped boolean, until text, size int, detours outbox.detour[]);

-- >>> sql/functions/lock_class.sql
create or replace function outbox.lock_class()
returns int
language sql stable parallel safe
-- The class of this outbox's advisory locks: the oid of outbox.pending (an oid is
-- unsigned, hence the wrap), so that an application's own locks cannot collide.
-- Keys 0 to 1023 are shards, negative ones are nodes (see node_lock), 1024 is cancel_lock, 1025 share_lock,
-- 1026 pass_token, 1027 fold_lock, 1028 hold_events.
begin atomic
  select 'outbox.pending'::regclass::oid::bigint::bit(32)::int;
end;
comment on function outbox.lock_class is 'The class (first key) of the outbox''s advisory locks';
revoke all on function outbox.lock_class from public;
-- <<< sql/functions/lock_class.sql

-- >>> sql/functions/audit_locks.sql
-- requires: claim_locks.sql cancel_lock.sql share_lock.sql fold_lock.sql shards_text.sql
create or replace function outbox.audit_locks()
returns table (guarantee text, subject text, detail text, hint text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set jit = off
as $$
-- The part of check() about locks of claims that are held by somebody who is not claiming, and what
-- stands still until he ends.
begin
  return query
  select 'locks', o.session,
         'holds ' || concat_ws(' and ', 'the locks of shards ' || outbox.shards_text(o.shards),
                   case when o.nodes > 0 then format('%s locks of nodes', o.nodes) end,
                   case when o.cancels then 'the lock of cancels' end,
                   case when o.sharing then 'the lock of heartbeats' end,
                   case when o.folds then 'the lock of destinations' end,
                   case when o.others > 0 then format('%s other locks', o.others) end)
         || ', and is not claiming'
         || coalesce(': ' || nullif(concat_ws('; ',
                   case when o.shards <> '{}' then 'nothing is claimed from these shards' end,
                   case when o.nodes > 0 then 'the nodes of these names claim nothing' end,
                   case when o.cancels then 'no message is cancelled or purged' end,
                   case when o.sharing then 'shards are not given to other nodes' end,
                   case when o.folds then 'no destination becomes held and no hold ends, while claims go on' end), ''), ''),
         'To end it: ' || o.remedy
  from (select l.session, l.remedy, coalesce(array_agg(l.key order by l.key) filter (where l.key between 0 and 1023), '{}') as shards,
               count(*) filter (where l.key < 0) as nodes, bool_or(l.key = 1024) as cancels,
               bool_or(l.key = outbox.share_lock()) as sharing, bool_or(l.key = outbox.fold_lock()) as folds,
               count(*) filter (where l.key > 1023 and l.key not in (1024, outbox.share_lock(), outbox.fold_lock())) as others
        from outbox.claim_locks() as l where l.stray group by l.session, l.remedy) as o
  order by o.session;
end $$;
comment on function outbox.audit_locks is 'The part of check() about locks that strangers hold';
revoke all on function outbox.audit_locks from public;
-- <<< sql/functions/audit_locks.sql

-- >>> sql/functions/audit_vacuum.sql
create or replace function outbox.audit_vacuum()
returns table (guarantee text, subject text, detail text, hint text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set jit = off
as $$
-- The part of check() about autovacuum. No guarantee rests on it, but each message leaves dead rows in
-- two tables, and where nobody removes them claims get slower, and tables grow. A standby
-- has no autovacuum, and its settings say nothing of the primary's.
begin
  return query
  select 'advice', 'the server', format('has %s = off, so autovacuum does not come by', s.name),
         'Each message leaves dead rows. Turn it on, or vacuum the tables of the schema outbox every minute.'
  from pg_settings as s
  where s.name in ('autovacuum', 'track_counts') and s.setting = 'off' and not pg_is_in_recovery();

  return query
  select 'advice', format('table outbox.%I', c.relname),
         case when r.oid = c.oid then 'has autovacuum_enabled = off' else 'has toast.autovacuum_enabled = off' end,
         format('Each message leaves dead rows. alter table outbox.%I reset (%sautovacuum_enabled), or vacuum the table every minute.', c.relname,
                case when r.oid = c.oid then '' else 'toast.' end)
  from pg_class as c
  join pg_class as r on r.oid in (c.oid, c.reltoastrelid)
  cross join lateral pg_options_to_table(r.reloptions) as o
  where c.relnamespace = 'outbox'::regnamespace and c.relkind = 'r'
    and o.option_name = 'autovacuum_enabled' and not o.option_value::boolean;
end $$;
comment on function outbox.audit_vacuum is 'The part of check() about autovacuum';
revoke all on function outbox.audit_vacuum from public;
-- <<< sql/functions/audit_vacuum.sql

-- >>> sql/functions/cancel.sql
-- requires: bad_argument.sql cancel_lock.sql settle_cancelled.sql
create or replace function outbox.cancel(dispatch_keys text[])
returns table (dispatch_key text, was text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
-- Settles messages as cancelled: pending ones, and claimed ones too, whose delivery may
-- go on, but whose settle is then lost. Returns the keys cancelled and what each was;
-- keys that do not exist or were settled already are left out.
declare
  v_ids bigint[];
  v_now timestamptz := clock_timestamp();
begin
  if cancel.dispatch_keys is null then
    perform outbox.bad_argument('cancel', 'dispatch_keys', 'is null', 'Give the keys of the messages to cancel.');
  end if;
  perform outbox.cancel_lock();
  v_ids := array(
    select m.id
    from (select distinct u.dispatch_key collate "C" as dispatch_key from unnest(cancel.dispatch_keys) as u(dispatch_key)) as u
    cross join lateral (select m.id from outbox.message as m where m.dispatch_key = u.dispatch_key offset 0) as m
    order by m.id);
  loop
    return query
    select (select m.dispatch_key from outbox.message as m where m.id = s.id), s.was
    from outbox.settle_cancelled(v_ids, v_now) as s;
    -- One that went from claimed to pending meanwhile is met again.
    exit when not exists (
            select from unnest(v_ids) as u(id)
            cross join lateral (
              select p.id from outbox.pending as p where p.id >= u.id and p.id <= u.id order by p.id limit 1
            ) as p)
          and not exists (
            select from unnest(v_ids) as u(id)
            cross join lateral (select c.id from outbox.claimed as c where c.id = u.id offset 0) as c);
  end loop;
end $$;
comment on function outbox.cancel is 'Cancels pending and claimed messages; the keys cancelled and what each was';
revoke all on function outbox.cancel from public;
-- <<< sql/functions/cancel.sql

-- >>> sql/functions/cancel_namespace.sql
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
-- <<< sql/functions/cancel_namespace.sql

-- >>> sql/functions/change_destination.sql
-- requires: bad_argument.sql check_key.sql bound_transaction.sql lock_class.sql fold_lock.sql
create or replace function outbox.change_destination(func text, namespace text, task_queue text)
returns outbox.destination
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
-- For an operator's call: checks the arguments, takes the lock under which destinations are written,
-- which may wait for claims under way, and returns the destination as it is, or one that is well.
declare
  v_is outbox.destination;
begin
  if change_destination.namespace is not null then
    perform outbox.check_key(change_destination.func, 'namespace', change_destination.namespace);
  end if;
  if change_destination.task_queue is null then
    perform outbox.bad_argument(change_destination.func, 'task_queue', 'is null',
      'Name a route. To hold back a whole namespace, or all, use pause().');
  end if;
  perform outbox.check_key(change_destination.func, 'task_queue', change_destination.task_queue);
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    raise exception 'outbox.%: the transaction''s isolation is %', change_destination.func, current_setting('transaction_isolation')
      using errcode = 'OB002', hint = 'Call it in a transaction that begins with: begin isolation level read committed.';
  end if;
  perform outbox.bound_transaction((select c.claim_idle_timeout from outbox.config as c)); -- while it is open, no claim folds or probes
  perform pg_advisory_xact_lock(outbox.lock_class(), outbox.fold_lock());
  if change_destination.namespace is null then
    select d.* into v_is from outbox.destination as d where d.namespace is null and d.task_queue = change_destination.task_queue collate "C";
  else
    select d.* into v_is from outbox.destination as d
    where d.namespace = change_destination.namespace collate "C" and d.task_queue = change_destination.task_queue collate "C";
  end if;
  if v_is.task_queue is null then
    v_is.namespace := change_destination.namespace;
    v_is.task_queue := change_destination.task_queue;
    v_is.state := 'well';
    v_is.score := 0;
    v_is.failed := '{}';
    v_is.failed_of := '{}';
    v_is.step := 0;
    v_is.lift_token := 0;
  end if;
  return v_is;
end $$;
comment on function outbox.change_destination is 'A destination as it is, locked for a change';
revoke all on function outbox.change_destination from public;
-- <<< sql/functions/change_destination.sql

-- >>> sql/functions/check.sql
-- requires: bad_argument.sql audit_messages.sql audit_claims.sql audit_indexes.sql audit_schema.sql audit_bindings.sql audit_names.sql audit_locks.sql audit_destinations.sql audit_vacuum.sql
create or replace function outbox.check(newest bigint default null, max int default 100)
returns table (guarantee text, subject text, detail text, hint text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
-- An audit: every guarantee that SQL can check, a row for each violation, none when all
-- is well. Of each kind at most max rows come one by one, the rest as a number. A row whose
-- guarantee is 'advice' is no violation: everything holds, and could be safer.
--
-- Stable on purpose: all of it sees one snapshot, that of the calling statement, so it
-- finds nothing that traffic has half done. It writes nothing, takes no lock, and runs
-- on a standby. It reads every table and index from end to end, payloads aside, and holds
-- vacuum back meanwhile: where that is too much, newest leaves out all but the messages
-- with the last so many ids, and the indexes of large tables.
begin
  if "check".newest < 1 then
    perform outbox.bad_argument('check', 'newest', format('is %s', "check".newest),
      'Give how many of the newest messages to check, or null for all.');
  elsif coalesce("check".max, 0) < 1 then
    perform outbox.bad_argument('check', 'max', 'is null or below 1', 'Give the most rows of each kind.');
  end if;
  return query
  with found as (
    select f.* from outbox.audit_schema() as f
    union all
    select f.* from outbox.audit_bindings() as f
    union all
    select f.* from outbox.audit_names() as f
    union all
    select f.* from outbox.audit_locks() as f
    union all
    select f.* from outbox.audit_indexes("check".newest is null) as f
    union all
    select f.* from outbox.audit_messages(coalesce(
      (select max(m.id) from outbox.message as m) - "check".newest + 1, -9223372036854775808)) as f
    union all
    select f.* from outbox.audit_claims() as f
    union all
    select f.* from outbox.audit_destinations() as f
    union all
    select f.* from outbox.audit_vacuum() as f
  ), ranked as (
    select f.*, row_number() over w as n, count(*) over (partition by f.guarantee, f.hint) as total
    from found as f
    window w as (partition by f.guarantee, f.hint order by length(f.subject), f.subject collate "C")
  )
  select r.guarantee,
         case when r.n <= "check".max then r.subject else '...' end,
         case when r.n <= "check".max then r.detail else format('%s more like this', r.total - "check".max) end,
         r.hint
  from ranked as r
  where r.n <= "check".max + 1::bigint
  order by length(r.guarantee), r.guarantee collate "C", r.hint, r.n;
end $$;
comment on function outbox.check is 'An audit: one row for each violation of a guarantee, none when all is well';
revoke all on function outbox.check from public;
-- <<< sql/functions/check.sql

-- >>> sql/functions/ripen.sql
-- requires: ceil_div.sql
create or replace function outbox.ripen(
  held int[], next_held int[], now timestamptz,
  inout unripe_from timestamptz, inout unripe_from_id bigint, inout unripe_all_at timestamptz, inout unripe_namespace text,
  inout unripe_rest int, out ripened int, out again boolean)
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_sort = off -- each part comes from an index in its order
as $$
-- The start of a claim: what has come due on its shards becomes ripe, so that the walk finds it.
-- What is delayed, or waits after a failed attempt, is not ripe until then, and costs claims
-- nothing. Only claims do this, under the locks of their shards: so two never meet on a message.
--
-- A claim makes about 500 messages ripe in the order of their time, an equal part of each shard.
-- Where a shard has more, it takes turns as well: it goes on to the next 100 namespaces with
-- messages that wait, in the order of the ring, and makes up to 20 of each ripe. So a million
-- messages of one namespace that come due at one instant do not hold up the others. again says
-- that there is more: the next claim is to follow at once.
--
-- The inout parameters are kept in outbox.walk between the claims of a node. Where a long
-- transaction keeps dead rows, those of what has become ripe before are not read again: the search
-- begins at (unripe_from, unripe_from_id), where the last one stopped, or, if that found all, 100 ms
-- before it. What is committed later than that after it has come due is found every 2 s, when a search
-- begins at the beginning; unripe_all_at is the last time. unripe_namespace is the last one whose
-- turn it was. Where the turns read very many pages, since dead rows of before are in their way,
-- there are none for unripe_rest claims.
declare
  v_part   int := greatest(outbox.ceil_div(500, cardinality(ripen.held)), 2);
  v_from   timestamptz;
  v_id     bigint;
  v_tids   tid[];
  v_turns  tid[];
  v_pages  bigint := pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass);
begin
  if ripen.now not between unripe_all_at and unripe_all_at + interval '2 s' then
    unripe_from := '-infinity';
    unripe_from_id := 0;
    unripe_all_at := ripen.now;
  end if;
  -- by time: pending_unripe_due; a shard with v_part rows may have more
  select array_agg(d.tid),
         (array_agg(d.visible_after order by d.visible_after, d.id) filter (where d.nth = v_part))[1],
         (array_agg(d.id order by d.visible_after, d.id) filter (where d.nth = v_part))[1]
  into v_tids, v_from, v_id
  from unnest(ripen.held) as s(shard)
  cross join lateral (
    select p.*, row_number() over () as nth
    from (
      select p.ctid as tid, p.visible_after, p.id
      from outbox.pending as p
      where not p.ripe and p.shard = s.shard
        and (p.visible_after, p.id) >= (ripen.unripe_from, ripen.unripe_from_id) and p.visible_after <= ripen.now
      order by p.visible_after, p.id limit v_part
    ) as p
  ) as d;
  ripened := 0;
  again := v_from is not null;
  unripe_rest := greatest(unripe_rest - 1, 0);
  if again and unripe_rest = 0 then
    v_pages := pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass);
    -- by turns: pending_unripe_namespace, and up to 200 rows of each, for some may be on other shards
    with recursive walk(n, ring, namespace, wrapped) as (
      select 0, outbox.ring(ripen.unripe_namespace), ripen.unripe_namespace collate "C", false
      union all
      select w.n + 1, x.ring, x.namespace, x.wrapped
      from walk as w
      cross join lateral (
        (select p.ring, p.namespace, w.wrapped
         from outbox.pending as p
         where not p.ripe and (p.ring, p.namespace) > (w.ring, w.namespace)
         order by p.ring, p.namespace, p.visible_after limit 1)
        union all
        (select p.ring, p.namespace, true
         from outbox.pending as p
         where not w.wrapped and not p.ripe
         order by p.ring, p.namespace, p.visible_after limit 1)
        limit 1
      ) as x
      where w.n < 100
        and not (x.wrapped and (x.ring, x.namespace) > (outbox.ring(ripen.unripe_namespace), ripen.unripe_namespace collate "C"))
    )
    select array_agg(x.tid), coalesce((array_agg(w.namespace order by w.n desc))[1], ripen.unripe_namespace)
    into v_turns, unripe_namespace
    from walk as w
    left join lateral (
      select p.tid
      from (
        select p.ctid as tid, p.shard
        from outbox.pending as p
        where not p.ripe and p.ring = w.ring and p.namespace = w.namespace
          and (p.visible_after, p.id) >= (ripen.unripe_from, ripen.unripe_from_id) and p.visible_after <= ripen.now
        order by p.visible_after, p.id limit 200
      ) as p
      where ripen.next_held[p.shard + 1] = p.shard limit 20
    ) as x on true
    where w.n > 0;
    v_pages := pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) - v_pages;
    if v_pages >= 2000 then -- dead rows of those that became ripe before
      unripe_rest := least(v_pages / 500, 100);
    end if;
  end if;
  if again then
    unripe_from := v_from;
    unripe_from_id := v_id;
  else
    unripe_from := ripen.now - interval '100 ms';
    unripe_from_id := 0;
  end if;
  if v_tids is not null then
    -- what others have locked, to cancel it, say, stays as it is
    v_tids := array(select p.ctid from outbox.pending as p
                    where p.ctid = any (v_tids || v_turns)
                      and case when p.ripe then false else true end -- as no partial index says it: by ctid alone
                    for update skip locked);
    update outbox.pending as p set ripe = true where p.ctid = any (v_tids);
    ripened := cardinality(v_tids);
  end if;
end $$;
comment on function outbox.ripen is 'Makes what has come due ripe, which is where claims look';
revoke all on function outbox.ripen from public;
-- <<< sql/functions/ripen.sql

-- >>> sql/functions/walk_namespaces.sql
create or replace function outbox.walk_namespaces(after text, wrapped boolean, until text, size int, detours outbox.detour[])
returns table (n int, namespace text, wrapped boolean, task_queue text, shard int, head timestamptz, sole boolean,
               pages bigint, pages_within bigint, detoured boolean,
               task_queues text[], shard_2 int, head_2 timestamptz, shard_3 int, head_3 timestamptz)
language sql stable
-- Up to size namespaces that have ripe messages, in the order of the ring, from behind
-- "after" on and, unless already wrapped, once around to "until"; with the head of the
-- first lane of each. A loose index scan: a step goes to the next route, and from a
-- fourth route of the same namespace to the next namespace. So a namespace costs as many
-- descents of pending_ripe as it has routes (one: sole), four at most, however many messages it has.
-- Where it has two or three, task_queues are all of them, and shard_2 to head_3 are the first lanes of the others.
-- With more, some of the four are in vain: where most namespaces have more, two are enough to know.
-- Detours, null for none, are taken: behind the namespace "after" of one, the
-- walk goes on at "upto". pages is how many pages of the table the step to the namespace read,
-- pages_within the longest step to another of its routes, and detoured whether the former took a detour. (No
-- set clause: it would forbid inlining.)
begin atomic
  with recursive walk(n, nth, most, vain, ring, namespace, wrapped, route_ring, last_queue, task_queue, shard, head,
                      task_queue_2, shard_2, head_2, task_queue_3, shard_3, head_3, read, pages, pages_within, upto, detoured) as (
    select 0, 4, 4, 0, outbox.ring(walk_namespaces.after), walk_namespaces.after collate "C", walk_namespaces.wrapped, null::int, null::text collate "C",
           null::text collate "C", null::int, null::timestamptz, null::text collate "C", null::int, null::timestamptz,
           null::text collate "C", null::int, null::timestamptz, pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass), 0::bigint, 0::bigint,
           case when walk_namespaces.detours is not null then (
             select d.upto collate "C" from unnest(walk_namespaces.detours) as d where d.after = walk_namespaces.after order by d.claims desc limit 1) end,
           false
    union all
    select w.n + x.is_next::int, case when x.is_next then 1 else w.nth + 1 end,
           case when not x.is_next then w.most when w.vain > 3 then 2 else 4 end,
           case when x.is_next then w.vain - (w.nth between 2 and w.most - 1)::int else w.vain + (w.nth = 3)::int end,
           x.ring, x.namespace, x.wrapped, x.route_ring, x.task_queue,
           case when x.is_next then x.task_queue else w.task_queue end, case when x.is_next then x.shard else w.shard end,
           case when x.is_next then x.head else w.head end,
           case when not x.is_next and w.nth = 1 then x.task_queue else w.task_queue_2 end,
           case when not x.is_next and w.nth = 1 then x.shard else w.shard_2 end,
           case when not x.is_next and w.nth = 1 then x.head else w.head_2 end,
           case when not x.is_next and w.nth = 2 then x.task_queue else w.task_queue_3 end,
           case when not x.is_next and w.nth = 2 then x.shard else w.shard_3 end,
           case when not x.is_next and w.nth = 2 then x.head else w.head_3 end,
           pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass),
           case when x.is_next then pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) - w.read else w.pages end,
           case when x.is_next then 0 else greatest(pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) - w.read, w.pages_within) end,
           case when walk_namespaces.detours is null then null when not x.is_next then w.upto else (
             select d.upto collate "C" from unnest(walk_namespaces.detours) as d where d.after = x.namespace order by d.claims desc limit 1) end,
           case when x.is_next then w.upto is not null else w.detoured end
    from walk as w
    cross join lateral (
      (select p.ring, p.namespace, w.wrapped, p.route_ring, p.task_queue, p.shard, p.visible_after as head, false as is_next
       from outbox.pending as p -- before a detour, another route
       where w.upto is not null and w.nth < w.most and p.ripe and p.ring = w.ring and p.namespace = w.namespace
         and (p.route_ring, p.task_queue) > (w.route_ring, w.last_queue)
       order by p.route_ring, p.task_queue, p.shard, p.visible_after limit 1)
      union all
      (select p.ring, p.namespace, w.wrapped, p.route_ring, p.task_queue, p.shard, p.visible_after as head,
              w.n = 0 or p.namespace <> w.namespace as is_next
       from outbox.pending as p
       where (w.upto is null or (outbox.ring(w.upto), w.upto) > (w.ring, w.namespace))
         and p.ripe and (p.ring, p.namespace, p.route_ring, p.task_queue) -- or past every route that there can be
             > (case when w.upto is null then w.ring else outbox.ring(w.upto) end, coalesce(w.upto, w.namespace),
                case when w.upto is not null then -2147483648 when w.nth < w.most then w.route_ring else 2147483647 end,
                case when w.upto is not null then '' when w.nth < w.most then w.last_queue else repeat(chr(1114111), 129) end)
       order by p.ring, p.namespace, p.route_ring, p.task_queue, p.shard, p.visible_after limit 1)
      union all
      (select p.ring, p.namespace, true, p.route_ring, p.task_queue, p.shard, p.visible_after, true
       from outbox.pending as p
       where p.ripe and not w.wrapped
         and (p.ring, p.namespace) >= (case when (outbox.ring(w.upto), w.upto) <= (w.ring, w.namespace) then outbox.ring(w.upto) else -2147483648 end,
                                       case when (outbox.ring(w.upto), w.upto) <= (w.ring, w.namespace) then w.upto else '' end)
       order by p.ring, p.namespace, p.route_ring, p.task_queue, p.shard, p.visible_after limit 1)
      limit 1
    ) as x
    where w.n <= walk_namespaces.size
      and not (x.wrapped and (x.ring, x.namespace) > (outbox.ring(walk_namespaces.until), walk_namespaces.until collate "C"))
  )
  select w.n, w.namespace, w.wrapped, w.task_queue, w.shard, w.head, w.nth = 1, w.pages, w.pages_within, w.detoured,
         case when w.most = 4 then case w.nth when 2 then array[w.task_queue, w.task_queue_2] when 3 then array[w.task_queue, w.task_queue_2, w.task_queue_3] end end,
         w.shard_2, w.head_2, w.shard_3, w.head_3
  from (select w.*, lead(w.nth, 1, 1) over (order by w.n, w.nth) = 1 as is_last from walk as w) as w
  where w.is_last and w.n between 1 and walk_namespaces.size; -- the last of a namespace has all of it
end;
comment on function outbox.walk_namespaces is 'Namespaces with ripe messages, by loose index scan';
revoke all on function outbox.walk_namespaces from public;
-- <<< sql/functions/walk_namespaces.sql

-- >>> sql/functions/gate.sql
create or replace function outbox.gate(destination outbox.destination, now timestamptz, probes boolean)
returns int
language sql stable
-- How many messages of a destination one claim may take: null for any number. None while it is held; one,
-- the probe, when the time of the hold is over, none is out, and the claim may probe. What a probe has come to is
-- a report in the moment when it is not out any more: until that is read, too, there is no other one, or a settle
-- beside the claim would make two of it. And after the hold 1, 2, 4 and so on, twice as many each second, for ten seconds.
begin atomic
  select case
    when (gate.destination).state = 'held' then
      case when gate.probes and (gate.destination).held_until <= gate.now
                and (select c.id from outbox.claimed as c
                     where c.id = (gate.destination).probe_id and c.claim_token + 0 = (gate.destination).probe_token) is null
                and (select r.id from outbox.report as r
                     where r.message_id = (gate.destination).probe_id and r.claim_token = (gate.destination).probe_token
                     order by r.message_id, r.claim_token limit 1) is null
           then 1 else 0 end
    when (gate.destination).state = 'recovering' and gate.now < (gate.destination).lifted_at + interval '10 s' then
      1 << greatest(floor(extract(epoch from gate.now - (gate.destination).lifted_at)), 0)::int
  end;
end;
comment on function outbox.gate is 'How many messages of a destination one claim may take';
revoke all on function outbox.gate from public;
-- <<< sql/functions/gate.sql

-- >>> sql/functions/route_gate.sql
-- requires: gate.sql
create or replace function outbox.route_gate(namespace text, task_queue text, now timestamptz, gates int)
returns table (own int, common int)
language sql stable
-- The gates of a route: of the destination that it is itself, and of the route of all. gates says which of
-- them there can be, as gates() has it. (A table of one row, since a query inlines those.)
begin atomic
  select (select outbox.gate(d, route_gate.now, route_gate.gates & 2 > 0) from outbox.destination as d
          where route_gate.gates & 1 > 0 and d.state in ('held', 'recovering')
            and hashtextextended(d.task_queue, hashtextextended(d.namespace, 0)) -- destination_gate_of: one page, however many are held
                = hashtextextended(route_gate.task_queue collate "C", hashtextextended(route_gate.namespace collate "C", 0))
            and d.task_queue || '' = route_gate.task_queue and d.namespace || '' = route_gate.namespace), -- not by another index
         (select outbox.gate(d, route_gate.now, route_gate.gates & 2 > 0) from outbox.destination as d
          where route_gate.gates & 4 > 0 and d.state in ('held', 'recovering') and d.task_queue = route_gate.task_queue and d.namespace is null);
end;
comment on function outbox.route_gate is 'How many messages of a route one claim may take';
revoke all on function outbox.route_gate from public;
-- <<< sql/functions/route_gate.sql

-- >>> sql/functions/claim_walk.sql
-- requires: walk_detour.sql walk_namespaces.sql due_routes.sql route_start.sql namespace_paused.sql route_paused.sql gate.sql route_gate.sql node_ceiling.sql ceil_div.sql
create or replace function outbox.claim_walk(
  node text, next_held int[], held int, batch int, cursor text, round bigint, now timestamptz,
  oldest_token bigint, "only" text, for_claim boolean, gates int, config outbox.config, inout detours outbox.detour[],
  out visits outbox.visit[], out active int, out ended text, out width int, out several boolean,
  out gated int[], out gated_routes text[], out caps int[], out shared_routes text[],
  out shared_left int[], out passed int)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- The first part of a claim: whom to serve. Visits namespaces with ripe messages in the order of
-- the ring, from behind the cursor on, until one of these ends the walk:
--
--   full    as many namespaces are eligible as the batch is large: more are never needed
--   cut     config.max_visits are visited, or the search for due routes has made too many vain
--           descents, the larger of 1,000 and 2 * max_visits, or has taken too long
--   around  it came once around: all that are eligible are among the visits
--   detour  the same, but for what lies on the stretches that it has passed over
--
--   parameter       what it is
--   node            whose route cursors count
--   batch, config   of the claim, and the settings
--   next_held, held the shards that the claim holds, as next_held() gives them, and how many
--   cursor, round   where the last walk ended, and how often it had come around by then
--   now             the claim's instant
--   oldest_token    on held shards, nothing is claimed with an older claim token: where a long
--                   transaction keeps dead rows, those of older claims are not waded through
--   only            visits this namespace alone
--   for_claim       false for explain_claim and why: it locks nothing, and counts what is claimed of
--                   each namespace, also of one that can get nothing anyway
--   gates           of which destinations there are some that are held or coming back, and whether this claim
--                   may probe those whose time is over: as gates() has it
--   detours         stretches of the ring to pass over; out: those that this walk found (see walk_detour)
--
-- Each visit: namespace; round, that of the cursor, and one more behind the end of the ring; quota;
-- claimed and ceiling, on held shards, or on all for a strict namespace whose quota leaves it less
-- than its ceiling does (for a claim, claimed may be of all namespaces together, where that leaves the
-- ceiling room for the batch); sole, if it has ripe messages in one route only; and the verdict:
--
--   eligible  has due messages on held shards, is not paused, and is below its ceiling. Then routes
--             are its due routes, in the order of the ring: all, but at most width of them, where
--             it has more than three routes, and as many more as there are routes of all that let something
--             through, since those before it may have taken that; looked_to is set then where there may be more
--   paused    by its name, or with all
--   ceiling   as many are claimed as its ceiling allows, or more
--   idle      nothing due on held shards, on a route that is neither paused nor held. Where the search for
--             one was cut, looked_to is the last route that it looked at
--   locked    strict, and another claim is counting its quota
--
-- active counts the eligible ones; several says that one of the visited is not sole. Of the routes of
-- eligible visits that have a gate, gated is the visit, gated_routes the route, and caps how many messages
-- of it the claim may take: what the route of all lets through is given to those who come first. shared_routes are
-- the routes of all that were met so, and shared_left what each of them still lets through. Where it did not
-- let all through that the walk came to, and that came once around, passed is the last visit that it let through: the next
-- walk goes on behind it, or the same one would come first for ever.
--
-- It goes in strides, so that one statement visits many namespaces: the first is of batch
-- namespaces, each later one at least as long as all before it together. It runs under
-- the settings of its caller, which pin the plans.
declare
  v_any_pause boolean;
  v_any_quota boolean;        -- there are namespaces with settings of their own
  v_few       bigint;         -- no more than these are claimed of all namespaces together; null: unknown, or many
  -- Half of what the statement may take is left to the rest of the claim.
  v_deadline  timestamptz := least(claim_walk.now + interval '2 s',
                                   statement_timestamp() + nullif(current_setting('statement_timeout')::interval, '0') / 2);
  v_vain      int := greatest(1000, 2 * (claim_walk.config).max_visits); -- descents that may still be in vain
  v_spent     int;            -- used up in this stride
  v_wrapped   boolean := false;
  v_size      int;
  v_stride    outbox.visit[];
  v_count     int;
  v_eligible  int;            -- of the stride
  v_search    int[];          -- of the stride, those without a verdict yet: their routes must be looked at
  v_searched  int;            -- how many of them were
  v_stricts   int[];          -- of the stride, the strict ones
  v_slow      int[];          -- of the stride, those that took very many pages,
  v_pages     bigint[];       --   how many to come to each, and how many within it
  v_within    bigint[];
  v_detoured  boolean[];      --   and whether a detour led to it
  v_from      text;           -- the namespace that the stride starts behind
  v_took      boolean := false; -- a detour was taken
  v_found     outbox.detour[];
  v_row       record;
  v_all       int;            -- claimed on all shards
  v_last      int;            -- of the stride, the last one visited
  v_gated     int[];          -- of the stride, the gates of its routes, by visit: the visit,
  v_routes    text[];         --   the route,
  v_owns      int[];          --   and both gates
  v_commons   int[];
  v_shut      int;            -- how many routes of all have a gate that lets something through
  v_gate      int;            -- the next of these
  v_cap       int;
  v_at        int;
  v_denied    boolean := false; -- a route of all did not let all through
begin
  visits := '{}';
  active := 0;
  several := false;
  ended := 'around';
  if claim_walk.for_claim and exists (select from outbox.pause as p where p.namespace is null and p.task_queue is null and coalesce(p.until > claim_walk.now, true)) then
    detours := null;
    return; -- all is paused
  end if;
  select exists (select from outbox.pause), (select n.namespace from outbox.namespace as n order by n.namespace limit 1) is not null,
         case when claim_walk.for_claim and claim_walk.oldest_token > 0
                and (select t.last_value from outbox.claim_token as t) - claim_walk.oldest_token < 16 * 4194304 -- of about 16 claims
              then (select count(*) from (select from outbox.claimed as c where c.claim_token >= claim_walk.oldest_token
                                          order by c.claim_token limit 10 * claim_walk.batch::bigint) as x) end
  into v_any_pause, v_any_quota, v_few;
  v_few := nullif(v_few, 10 * claim_walk.batch::bigint);
  loop
    v_size := least(greatest(claim_walk.batch - active, cardinality(visits)),
                    (claim_walk.config).max_visits - cardinality(visits));
    v_from := coalesce((visits[cardinality(visits)]).namespace, claim_walk.cursor);
    select array_agg(row(x.namespace, claim_walk.round + x.wrapped::int, x.verdict, x.quota, x.claimed, x.ceiling, x.sole,
                         case when x.verdict = 'eligible' then coalesce(x.routes, array[x.task_queue]) end, null)::outbox.visit),
           count(*) filter (where x.verdict = 'eligible'), array_agg(x.n) filter (where x.verdict is null), array_agg(x.n) filter (where x.is_strict),
           array_agg(x.n) filter (where x.is_slow), array_agg(x.pages) filter (where x.is_slow),
           array_agg(x.pages_within) filter (where x.is_slow), array_agg(x.detoured) filter (where x.is_slow),
           bool_or(x.wrapped), coalesce(bool_or(not x.sole), false) or several, coalesce(bool_or(x.detoured), false) or v_took,
           array_agg(x.n) filter (where x.has_gate), array_agg(x.task_queue) filter (where x.has_gate),
           array_agg(x.own) filter (where x.has_gate), array_agg(x.common) filter (where x.has_gate)
    into v_stride, v_eligible, v_search, v_stricts, v_slow, v_pages, v_within, v_detoured, v_wrapped, several, v_took,
         v_gated, v_routes, v_owns, v_commons
    from (
      select w.*, q.*, c.claimed, r.routes, g.own, g.common, least(g.own, g.common) > 0 as has_gate, w.pages >= 1000 or w.pages_within >= 1000 as is_slow,
             case when s.paused then 'paused'
                  when q.ceiling = 0 or c.claimed >= q.ceiling then 'ceiling'
                  when w.sole and v_any_pause
                    and (select r.paused from outbox.route_paused(w.namespace, w.task_queue, claim_walk.now) as r) then 'idle'
                  when least(g.own, g.common) = 0 then 'idle'
                  when w.sole and w.ready or r.routes is not null then 'eligible'
             end as verdict
      from (
        select 1 as n, claim_walk."only" as namespace, false as wrapped, null as task_queue, false as sole,
               0 as pages, 0 as pages_within, false as detoured, null as task_queues, null as ready
        where claim_walk."only" is not null
        union all
        select w.n, w.namespace, w.wrapped, w.task_queue, w.sole, w.pages, w.pages_within, w.detoured, w.task_queues,
               w.head <= claim_walk.now and claim_walk.next_held[w.shard + 1] = w.shard
               and (w.sole or cardinality(w.task_queues) <= (claim_walk.config).max_routes
                              and w.head_2 <= claim_walk.now and claim_walk.next_held[w.shard_2 + 1] = w.shard_2
                              and (cardinality(w.task_queues) = 2
                                   or w.head_3 <= claim_walk.now and claim_walk.next_held[w.shard_3 + 1] = w.shard_3)) as ready
        from outbox.walk_namespaces(v_from, v_wrapped, claim_walk.cursor, v_size, claim_walk.detours) as w
        where claim_walk."only" is null
      ) as w
      cross join lateral (
        select v_any_pause and (select z.paused from outbox.namespace_paused(w.namespace, claim_walk.now) as z) as paused offset 0
      ) as s
      left join lateral (
        select n.quota, n.strict from outbox.namespace as n where v_any_quota and n.namespace = w.namespace
      ) as o on true
      cross join lateral (
        select coalesce(o.quota, (claim_walk.config).default_quota) as quota, coalesce(o.strict, false) as is_strict,
               outbox.node_ceiling(coalesce(o.quota, (claim_walk.config).default_quota), claim_walk.held,
                                   (claim_walk.config).shard_count) as ceiling
      ) as q
      left join lateral (
        select r.* from outbox.route_gate(w.namespace, w.task_queue, claim_walk.now, claim_walk.gates) as r
        where claim_walk.gates > 0 and w.sole and w.ready
      ) as g on true
      cross join lateral (
        select case when not (claim_walk.for_claim and (s.paused or q.ceiling = 0 or coalesce(least(g.own, g.common) = 0, false))) then case
          when v_few <= q.ceiling - claim_walk.batch then v_few::int -- it cannot come to its ceiling: no need to count its own
          else (
          select (count(*) filter (where claim_walk.next_held[c.shard + 1] = c.shard))::int
          from outbox.claimed as c -- compared as pairs, which fit claimed_namespace alone
          where (c.namespace, c.claim_token) >= (w.namespace, claim_walk.oldest_token)
            and (c.namespace, c.claim_token) <= (w.namespace, 9223372036854775807)) end end as claimed
        offset 0
      ) as c
      left join lateral ( -- of two or three routes that are all due, in turn; unless one is paused or has a gate
        select array_agg(u.task_queue order by coalesce((outbox.ring(u.task_queue), u.task_queue collate "C") > (outbox.ring(t.task_queue), t.task_queue), true) desc, u.n) as routes
        from outbox.route_start(w.namespace, claim_walk.node, claim_walk.next_held) as t
        cross join lateral unnest(w.task_queues) with ordinality as u(task_queue, n)
        left join lateral (
          select h.* from outbox.route_gate(w.namespace, u.task_queue, claim_walk.now, claim_walk.gates) as h where claim_walk.gates > 0
        ) as h on true
        where w.task_queues is not null and w.ready and c.claimed < q.ceiling
        having not bool_or(least(h.own, h.common) is not null
                           or v_any_pause and (select z.paused from outbox.route_paused(w.namespace, u.task_queue, claim_walk.now) as z))
      ) as r on true
      order by w.n
    ) as x;
    v_count := coalesce(cardinality(v_stride), 0);
    exit when v_count = 0;

    -- Detours for the next claims: around what lies before a namespace, or, where that is its own doing,
    -- around itself. Where a detour did not help, it is the namespace before the detour.
    if claim_walk.for_claim and v_slow is not null then
      for i in 1 .. cardinality(v_slow) loop
        if v_within[i] >= 1000 then
          v_found := v_found || outbox.walk_detour(case when v_slow[i] > 1 then v_stride[v_slow[i] - 1].namespace else v_from end,
                                                   v_stride[v_slow[i]].namespace, v_within[i], true);
        elsif not v_detoured[i] then
          v_found := v_found || outbox.walk_detour(case when v_slow[i] > 1 then v_stride[v_slow[i] - 1].namespace else v_from end,
                                                   v_stride[v_slow[i]].namespace, v_pages[i], false);
        elsif v_slow[i] > 1 then
          v_found := v_found || outbox.walk_detour(case when v_slow[i] > 2 then v_stride[v_slow[i] - 2].namespace else v_from end,
                                                   v_stride[v_slow[i] - 1].namespace, v_pages[i], true);
        end if;
      end loop;
    end if;

    -- The due routes of the others, a first guess of how many: claim_read looks for more where the slice is longer.
    width := coalesce(width, least(outbox.ceil_div(claim_walk.batch, v_count), (claim_walk.config).max_routes));
    v_searched := 0;
    v_spent := 0;
    if v_search is not null then -- to start the statement costs more than a little
      if v_shut is null then -- so many due routes may turn out to be shut, as those before took all there was
        v_shut := case when claim_walk.gates & 4 = 0 then 0 else (
          select count(*) from outbox.destination as d
          where d.state in ('held', 'recovering') and d.namespace is null
            and outbox.gate(d, claim_walk.now, claim_walk.gates & 2 > 0) > 0) end;
      end if;
      for v_row in
        with recursive search(k, routes, looked_to, vain, pages, owns, commons) as (
          select 0, null::text[], null::text collate "C", 0, 0::bigint, null::int[], null::int[]
          union all
          select s.k + 1, r.routes, r.looked_to, s.vain + r.vain,
                 pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) - u.pages - r.vain, r.owns, r.commons
          from search as s
          cross join lateral (
            select v.namespace, case when not v.sole then (
                     select t.task_queue from outbox.route_start(v.namespace, claim_walk.node, claim_walk.next_held) as t) end as start,
                   pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) as pages
            from (select (v_stride[v_search[s.k + 1]]).namespace, (v_stride[v_search[s.k + 1]]).sole) as v
            offset 0
          ) as u
          cross join lateral (
            select array_agg(d.task_queue order by d.n) filter (where d.due) as routes,
                   max(d.task_queue) filter (where not d.due) as looked_to, max(d.vain) as vain,
                   array_agg(d.own order by d.n) filter (where d.due) as owns, array_agg(d.common order by d.n) filter (where d.due) as commons
            from (select d.*
                  from outbox.due_routes(u.namespace, u.start, claim_walk.next_held, claim_walk.now,
                                         (claim_walk.config).max_routes, v_vain - s.vain, claim_walk.gates) as d
                  limit claim_walk.width + v_shut) as d
          ) as r
          where s.k < cardinality(v_search) and s.vain < v_vain and (s.k = 0 or clock_timestamp() < v_deadline)
        )
        select s.k, v_search[s.k] as n, s.routes, s.looked_to, s.vain, s.pages, s.owns, s.commons from search as s where s.k > 0
      loop
        v_searched := v_row.k;
        v_spent := v_row.vain;
        v_stride[v_row.n].verdict := case when v_row.routes is null then 'idle' else 'eligible' end;
        v_stride[v_row.n].routes := v_row.routes;
        v_eligible := v_eligible + (v_row.routes is not null)::int;
        v_stride[v_row.n].looked_to := case
          when v_row.routes is null then v_row.looked_to
          when v_shut > 0 and cardinality(v_row.routes) >= width then v_row.routes[cardinality(v_row.routes)] end;
        if claim_walk.gates > 0 and v_row.routes is not null then
          for i in 1 .. cardinality(v_row.routes) loop
            if least(v_row.owns[i], v_row.commons[i]) is not null then
              v_gated := array_append(v_gated, v_row.n);
              v_routes := array_append(v_routes, v_row.routes[i]);
              v_owns := array_append(v_owns, v_row.owns[i]);
              v_commons := array_append(v_commons, v_row.commons[i]);
            end if;
          end loop;
        end if;
        if claim_walk.for_claim and v_row.pages >= 1000 then
          v_found := v_found || outbox.walk_detour(case when v_row.n > 1 then v_stride[v_row.n - 1].namespace else v_from end,
                                                   v_stride[v_row.n].namespace, v_row.pages, true);
        end if;
      end loop;
      v_vain := v_vain - v_spent;
    end if;

    -- What the gates let through, strict ones, and where the walk ends.
    if v_gated is not null then
      select array_agg(g.visit order by g.visit), array_agg(g.route order by g.visit),
             array_agg(g.own order by g.visit), array_agg(g.common order by g.visit)
      into v_gated, v_routes, v_owns, v_commons
      from unnest(v_gated, v_routes, v_owns, v_commons) as g(visit, route, own, common);
    end if;
    v_gate := 1;
    v_last := 0;
    if v_gated is null and v_stricts is null and v_searched >= coalesce(cardinality(v_search), 0)
       and (active + v_eligible < claim_walk.batch
            or active + v_eligible = claim_walk.batch and v_stride[v_count].verdict = 'eligible') then
      -- None of that: the stride is visited to its end.
      v_last := v_count;
      active := active + v_eligible;
    else
      v_eligible := null;
    end if;
    loop
      ended := case when active = claim_walk.batch then 'full'
                    when v_last + 1 = v_search[v_searched + 1] or cardinality(visits) + v_last = (claim_walk.config).max_visits then 'cut'
                    else 'around' end;
      exit when v_eligible is not null or ended <> 'around' or v_last = v_count;
      v_last := v_last + 1;
      if v_last = any (v_stricts) and (v_stride[v_last].verdict = 'eligible' or not claim_walk.for_claim) then
        if claim_walk.for_claim then
          -- Whoever holds this row is the only one to claim from the namespace, until it
          -- commits. Only a statement that starts after that sees all that is claimed.
          perform from outbox.namespace as n where n.namespace = v_stride[v_last].namespace for no key update skip locked;
          if not found then
            v_stride[v_last].verdict := 'locked';
          end if;
        end if;
        v_all := (select count(*) from outbox.claimed as c where c.namespace = v_stride[v_last].namespace);
        if v_stride[v_last].quota - v_all <= v_stride[v_last].ceiling - v_stride[v_last].claimed then
          v_stride[v_last].claimed := v_all;
          v_stride[v_last].ceiling := v_stride[v_last].quota;
          if v_stride[v_last].verdict = 'eligible' and v_all >= v_stride[v_last].quota then
            v_stride[v_last].verdict := 'ceiling';
          end if;
        end if;
      end if;
      while v_gated[v_gate] = v_last loop
        if v_stride[v_last].verdict = 'eligible' then
          v_cap := v_owns[v_gate];
          if v_commons[v_gate] is not null then
            v_at := array_position(shared_routes, v_routes[v_gate]);
            if v_at is null then
              shared_routes := array_append(shared_routes, v_routes[v_gate]);
              shared_left := array_append(shared_left, v_commons[v_gate]);
              v_at := cardinality(shared_routes);
            end if;
            v_cap := least(v_cap, shared_left[v_at], outbox.ceil_div(v_commons[v_gate], 10));
            shared_left[v_at] := shared_left[v_at] - v_cap;
            if v_cap > 0 then
              passed := cardinality(visits) + v_last;
            else
              v_denied := true;
            end if;
          end if;
          if v_cap > 0 then
            gated := array_append(gated, cardinality(visits) + v_last);
            gated_routes := array_append(gated_routes, v_routes[v_gate]);
            caps := array_append(caps, v_cap);
          elsif cardinality(v_stride[v_last].routes) > 1 then
            v_stride[v_last].routes := array_remove(v_stride[v_last].routes, v_routes[v_gate]);
          else -- the next claim looks for another route
            v_stride[v_last].verdict := 'idle';
            v_stride[v_last].routes := null;
            v_stride[v_last].looked_to := case when not v_stride[v_last].sole then v_routes[v_gate] end;
          end if;
        end if;
        v_gate := v_gate + 1;
      end loop;
      active := active + (v_stride[v_last].verdict = 'eligible')::int;
    end loop;
    visits := visits || v_stride[:v_last];
    exit when ended <> 'around' or v_count < v_size or claim_walk."only" is not null;
  end loop;
  -- A detour may lead past the end, and to nobody.
  if ended = 'around' and (v_took or exists (
       select from unnest(claim_walk.detours) as d
       where d.after = coalesce((visits[cardinality(visits)]).namespace, claim_walk.cursor))) then
    ended := 'detour';
  end if;
  if not v_denied or ended in ('full', 'cut') then
    passed := null;
  end if;
  detours := v_found;
end $$;
comment on function outbox.claim_walk is 'Whom a claim serves: the namespaces it visits, and a verdict on each';
revoke all on function outbox.claim_walk from public;
-- <<< sql/functions/claim_walk.sql

-- >>> sql/functions/claim_read.sql
-- requires: due_routes.sql route_start.sql claim_lanes.sql ceil_div.sql
create or replace function outbox.claim_read(
  node text, visits outbox.visit[], active int, width int, held int[], next_held int[], batch int, now timestamptz,
  for_claim boolean, gates int, gated int[], gated_routes text[], caps int[], shared_routes text[],
  shared_left int[], config outbox.config,
  out of_visit int[], out of_route int[], out ids bigint[], out tids tid[], out due_ats timestamptz[], out shards int[],
  out attempts int[], out suspects int[], out sizes int[],
  out wanted int[], out rotating text[], out queues text[], out wading int, out pages bigint,
  out route_caps int[])
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- The second part of a claim: how many messages from each eligible namespace, and which. That is
-- max-min fairness by progressive filling: everybody gets the same, until somebody has no more or
-- is at its ceiling; what they leave is shared out equally among the others, and so on.
-- The first filling is the slice, ceil(batch / active). Within a namespace its routes
-- share what it gets in the same way. Each filling reads again, with larger parts: only so
-- many messages are read as may be taken. Most often the slices fill the batch, and one reading does.
--
--   parameter            what it is
--   node                 whose route cursors count
--   visits .. width      what claim_walk() returned
--   held, next_held      the shards that the claim holds, and as next_held() gives them
--   now                  the claim's instant: what is due later is not read
--   gates                as claim_walk() has it
--   gated .. shared_left routes of which only so many messages may be taken, and what routes of all still let
--                        through: what claim_walk() returned
--   for_claim            locks what it reads, and leaves out what others have locked; false for
--                        explain_claim, which locks nothing
--
-- Candidates are what was read, null if there are none: the visit and the route, as indexes, id and
-- place, when it came due, shard, attempts so far, how often it was suspect, and its bytes
-- (of_visit .. sizes; arrays of plain values, since those of rows cost several times as much). They
-- stand by visit, and those of a visit in the order in which they may be taken: round-robin over its
-- routes, of each the oldest first, lane by lane. wanted is by visit: so many of its candidates it may
-- get. By route are queues, its name, rotating, its namespace, unless that is sole, and route_caps, how many of
-- it may be taken, null for any number. wading is the visit whose reading took very many pages of
-- outbox.pending for few messages, if one did, and pages how many: see walk_detour().
--
-- The lanes of a route start at a shard drawn by hash from the namespace and the round, so that no
-- rhythm of the claims can pass one over. Where others have locked all that is due on the routes
-- at hand, more routes are looked at. It runs under the settings of its caller.
declare
  v_count  int := cardinality(claim_read.visits);
  v_most   int := (claim_read.config).max_routes;
  v_slice  int := outbox.ceil_div(claim_read.batch, claim_read.active);
  -- by visit:
  v_rooms  int[];          -- rows that its ceiling allows
  v_look   int[];          -- routes to look for,
  v_wide   int[];          --   and those looked for: if it has fewer, it has no more
  v_known  int[];          -- routes at hand
  v_nth    int[];          -- a counter of them
  v_got    int[];          -- rows read
  v_open   int[];          -- routes that may have more rows
  -- by route:
  v_of     int[];          -- its visit
  v_names  text[];         -- its namespace
  v_firsts int[];          -- the shard of the lane that it starts at
  v_parts  int[];          -- rows asked for
  v_have   int[];          -- rows read: if fewer, it has no more
  v_gates  int[];          -- of a route that was found later, what the route of all lets through
  v_search int[];          -- visits of which more routes are needed
  v_first  boolean;        -- the first filling, whose parts are known
  v_again  boolean;
  v_sum    int := 0;       -- rows read in all
  v_before bigint;
  v_starts bigint[];       -- by row: how many pages had been read when the reading of its route began
  v_spent  bigint[];       -- by route: how many were read between its rows and those of the next route with rows
  v_start  bigint;
  v_end    bigint;
  v_left   int;
  v_hungry int;
  v_gate   int;
  i        int;
begin
  -- The slices, and the part of each route: what its namespace wants, in equal parts.
  select array_agg(x.room) filter (where x.of_visit), array_agg(x.wide) filter (where x.of_visit),
         array_agg(x.known) filter (where x.of_visit), array_agg(x.wanted) filter (where x.of_visit),
         array_agg(least(x.wanted, v_most)) filter (where x.of_visit),
         array_agg(x.n) filter (where x.known > 0), array_agg(x.namespace) filter (where x.known > 0),
         array_agg(x.task_queue) filter (where x.known > 0),
         array_agg(case when not x.sole then x.namespace end) filter (where x.known > 0),
         array_agg(claim_read.held[1 + (hashtextextended(x.namespace collate "C", x.round) & 9223372036854775807)
                                       % cardinality(claim_read.held)]) filter (where x.known > 0),
         array_agg(case when x.nth <= x.wanted then outbox.ceil_div(x.wanted, least(x.known, x.wanted)) else 0 end) filter (where x.known > 0),
         not bool_or(x.known = x.wide and x.wide < least(x.wanted, v_most)) and claim_read.gated is null
  into v_rooms, v_wide, v_known, wanted, v_look, v_of, v_names, queues, rotating, v_firsts, v_parts, v_first
  from (
    select v.*, r.task_queue, r.nth, coalesce(r.nth, 1) = 1 as of_visit, least(v.room, v_slice) as wanted
    from (
      select v.*, case when v.verdict = 'eligible' then v.ceiling - v.claimed else 0 end as room,
             case when v.sole then v_most
                  when v.verdict = 'eligible' and v.looked_to is not null then cardinality(v.routes)
                  else claim_read.width end as wide,
             case when v.verdict = 'eligible' then cardinality(v.routes) else 0 end as known
      from unnest(claim_read.visits) with ordinality
           as v(namespace, round, verdict, quota, claimed, ceiling, sole, routes, looked_to, n)
    ) as v
    left join lateral unnest(v.routes) with ordinality as r(task_queue, nth) on v.verdict = 'eligible'
  ) as x;
  pages := pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass);
  if not v_first then
    v_parts := array_fill(null::int, array[cardinality(v_of)]);
  end if;
  v_have := array_fill(null::int, array[cardinality(v_of)]);
  route_caps := v_have;
  v_gates := v_have;
  if claim_read.gated is not null then
    v_gate := 1;
    for r in 1 .. cardinality(v_of) loop -- both by visit
      while claim_read.gated[v_gate] < v_of[r] loop
        v_gate := v_gate + 1;
      end loop;
      i := v_gate;
      while claim_read.gated[i] = v_of[r] loop
        if claim_read.gated_routes[i] = queues[r] then
          route_caps[r] := claim_read.caps[i];
        end if;
        i := i + 1;
      end loop;
    end loop;
  end if;
  v_got := array_fill(0, array[v_count]);
  v_open := v_got;

  loop
    if not v_first then
      -- Routes, where more are needed than are at hand.
      v_search := array(select u.n from unnest(v_known, v_wide, v_look) with ordinality as u(known, wide, look, n)
                        where u.known = u.wide and u.wide < u.look);
      if v_search <> '{}' then
        select array_agg(x.i order by x.i, x.n), array_agg(x.name order by x.i, x.n), array_agg(x.queue order by x.i, x.n),
               array_agg(x.rotating order by x.i, x.n), array_agg(x.first order by x.i, x.n), array_agg(x.part order by x.i, x.n),
               array_agg(x.have order by x.i, x.n), array_agg(x.cap order by x.i, x.n), array_agg(x.gate order by x.i, x.n)
        into v_of, v_names, queues, rotating, v_firsts, v_parts, v_have, route_caps, v_gates
        from (
          select u.* from unnest(v_of, v_names, queues, rotating, v_firsts, v_parts, v_have, route_caps, v_gates) with ordinality
                          as u(i, name, queue, rotating, first, part, have, cap, gate, n)
          where u.i <> all (v_search)
          union all
          select o.i, o.name, r.task_queue, o.name, o.first, null, null, r.cap, r.gate, r.n
          from (select distinct on (u.i) u.* from unnest(v_of, v_names, v_firsts) as u(i, name, first)
                where u.i = any (v_search) order by u.i) as o
          cross join lateral (
            select d.task_queue, d.n, coalesce(g.cap, d.own) as cap, case when g.cap is null then d.common end as gate
            from outbox.route_start(o.name, claim_read.node, claim_read.next_held) as s
            cross join lateral outbox.due_routes(o.name, s.task_queue, claim_read.next_held, claim_read.now, v_most, 1000,
                                               claim_read.gates) as d
            left join lateral (
              select u.cap from unnest(claim_read.gated, claim_read.gated_routes, claim_read.caps) as u(visit, route, cap)
              where u.visit = o.i and u.route = d.task_queue
            ) as g on least(d.own, d.common) is not null
            where d.due limit v_look[o.i]
          ) as r
        ) as x;
        foreach i in array v_search loop
          v_wide[i] := v_look[i];
        end loop;
        for r in 1 .. coalesce(cardinality(v_of), 0) loop -- what is left of what the routes of all let through
          if v_gates[r] is not null then
            i := array_position(claim_read.shared_routes, queues[r]);
            if i is null then
              shared_routes := array_append(claim_read.shared_routes, queues[r]);
              shared_left := array_append(claim_read.shared_left, v_gates[r]);
              i := cardinality(claim_read.shared_routes);
            end if;
            route_caps[r] := least(route_caps[r], claim_read.shared_left[i], outbox.ceil_div(v_gates[r], 10));
            shared_left[i] := claim_read.shared_left[i] - route_caps[r];
            v_gates[r] := null;
            gated := array_append(claim_read.gated, v_of[r]); -- should it be looked for again
            gated_routes := array_append(claim_read.gated_routes, queues[r]);
            caps := array_append(claim_read.caps, route_caps[r]);
          end if;
        end loop;
        v_known := array_fill(0, array[v_count]);
        foreach i in array coalesce(v_of, '{}') loop
          v_known[i] := v_known[i] + 1;
        end loop;
        continue when v_of is not null;
        ids := null; -- their routes are gone: others have taken, cancelled or paused them
        exit;
      end if;

      -- The part of each route: what its namespace wants, or still wants, in equal parts.
      v_nth := array_fill(0, array[v_count]);
      for r in 1 .. cardinality(v_of) loop
        i := v_of[r];
        v_nth[i] := v_nth[i] + 1;
        if v_parts[r] is null then
          v_parts[r] := case when v_nth[i] <= wanted[i] then outbox.ceil_div(wanted[i], least(v_known[i], wanted[i])) else 0 end;
        elsif v_have[r] = v_parts[r] and v_got[i] < wanted[i] and v_have[r] is distinct from route_caps[r] then
          v_parts[r] := v_parts[r] + outbox.ceil_div(wanted[i] - v_got[i], v_open[i]);
        end if;
        v_parts[r] := least(v_parts[r], route_caps[r]);
      end loop;
    end if;

    if claim_read.for_claim then
      select array_agg(x.visit), array_agg(x.route), array_agg(x.id), array_agg(x.tid), array_agg(x.due_at), array_agg(x.shard),
             array_agg(x.attempt), array_agg(x.suspect), array_agg(x.payload_bytes), array_agg(x.start)
      into of_visit, of_route, ids, tids, due_ats, shards, attempts, suspects, sizes, v_starts
      from (
        select u.visit, u.route, u.start, m.*
        from (
          select u.*, pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) as start
          from unnest(v_of, v_names, queues, v_firsts, v_parts) with ordinality as u(visit, namespace, task_queue, first, part, route)
          where u.part > 0
        ) as u
        cross join lateral (
          select row_number() over () as nth, x.*
          from (
            select p.*
            from outbox.claim_lanes(u.namespace, u.task_queue, u.first, claim_read.next_held, claim_read.now) as l
            cross join lateral (
              select p.id, p.ctid as tid, p.visible_after as due_at, p.shard, p.attempt, p.suspect, p.payload_bytes
              from outbox.pending as p
              where p.ripe and p.ring = outbox.ring(u.namespace) and p.namespace = u.namespace
                and p.route_ring = outbox.ring(u.task_queue) and p.task_queue = u.task_queue
                and p.shard = l.shard and p.visible_after <= claim_read.now
              order by p.visible_after, p.id limit u.part
              for update skip locked
            ) as p
            limit u.part
          ) as x
        ) as m
        order by u.visit, m.nth, u.route
      ) as x;
    else -- the same without the lock
      select array_agg(x.visit), array_agg(x.route), array_agg(x.id), array_agg(x.tid), array_agg(x.due_at), array_agg(x.shard),
             array_agg(x.attempt), array_agg(x.suspect), array_agg(x.payload_bytes), array_agg(x.start)
      into of_visit, of_route, ids, tids, due_ats, shards, attempts, suspects, sizes, v_starts
      from (
        select u.visit, u.route, u.start, m.*
        from (
          select u.*, pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) as start
          from unnest(v_of, v_names, queues, v_firsts, v_parts) with ordinality as u(visit, namespace, task_queue, first, part, route)
          where u.part > 0
        ) as u
        cross join lateral (
          select row_number() over () as nth, x.*
          from (
            select p.*
            from outbox.claim_lanes(u.namespace, u.task_queue, u.first, claim_read.next_held, claim_read.now) as l
            cross join lateral (
              select p.id, p.ctid as tid, p.visible_after as due_at, p.shard, p.attempt, p.suspect, p.payload_bytes
              from outbox.pending as p
              where p.ripe and p.ring = outbox.ring(u.namespace) and p.namespace = u.namespace
                and p.route_ring = outbox.ring(u.task_queue) and p.task_queue = u.task_queue
                and p.shard = l.shard and p.visible_after <= claim_read.now
              order by p.visible_after, p.id limit u.part
            ) as p
            limit u.part
          ) as x
        ) as m
        order by u.visit, m.nth, u.route
      ) as x;
    end if;

    v_sum := v_sum + coalesce(cardinality(ids), 0);
    -- Every route had its part, and so every namespace its slice, and the slices fill the batch: nothing to ask again.
    if v_first and cardinality(ids) = (select sum(u.part) from unnest(v_parts) as u(part))
       and (select sum(u.wanted) from unnest(wanted) as u(wanted)) >= claim_read.batch then
      v_have := v_parts;
      exit;
    end if;
    v_first := false;
    v_have := array_fill(0, array[cardinality(v_of)]);
    foreach i in array coalesce(of_route, '{}') loop
      v_have[i] := v_have[i] + 1;
    end loop;
    v_got := array_fill(0, array[v_count]);
    v_open := v_got;
    for r in 1 .. cardinality(v_of) loop
      v_got[v_of[r]] := v_got[v_of[r]] + v_have[r];
      v_open[v_of[r]] := v_open[v_of[r]] + (v_have[r] = v_parts[r] and v_have[r] is distinct from route_caps[r])::int;
    end loop;

    -- Within a namespace, routes that have more fill up what others lack. Where others have
    -- locked all that its routes have due, look at more of them.
    v_again := false;
    v_left := claim_read.batch;
    v_hungry := 0;
    for n in 1 .. v_count loop
      if v_got[n] < wanted[n] and (v_open[n] > 0 or v_known[n] = v_wide[n] and v_wide[n] < v_most) then
        v_again := true;
        if v_open[n] = 0 then
          v_look[n] := v_most;
        end if;
      end if;
      v_left := v_left - least(v_got[n], wanted[n]);
      v_hungry := v_hungry + (v_got[n] >= wanted[n] and wanted[n] < v_rooms[n])::int;
    end loop;
    continue when v_again;

    -- The next filling.
    exit when v_left <= 0 or v_hungry = 0;
    for n in 1 .. v_count loop
      if v_got[n] >= wanted[n] then
        wanted[n] := least(wanted[n] + outbox.ceil_div(v_left, v_hungry), v_rooms[n]);
        v_look[n] := least(greatest(v_look[n], wanted[n]), v_most);
      end if;
    end loop;
  end loop;

  -- Some pages a message and a lane are as it should be. Where it was very many more, look whose, unless each has
  -- its small part of them. (A route without rows may have had what the one before it seems to have.)
  v_start := pages;
  v_end := pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass);
  pages := v_end - v_start;
  if claim_read.for_claim and pages > 1000 + 4 * v_sum + 20 * cardinality(v_of) then
    v_spent := array_fill(null::bigint, array[cardinality(v_of)]);
    for n in 1 .. coalesce(cardinality(ids), 0) loop
      v_spent[of_route[n]] := v_starts[n];
    end loop;
    for r in 1 .. cardinality(v_of) loop
      v_start := coalesce(v_spent[r], v_start);
      v_spent[r] := v_start;
    end loop;
    for r in reverse cardinality(v_of) .. 1 loop
      v_start := v_spent[r];
      v_spent[r] := v_end - v_start;
      if v_have[r] > 0 then
        v_end := v_start;
      end if;
    end loop;
    for r in 1 .. cardinality(v_of) loop
      continue when v_spent[r] <= 1000;
      v_before := pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass);
      perform from outbox.walk_lanes(v_names[r], queues[r], 0, claim_read.next_held) as l
      cross join lateral (
        select from outbox.pending as p
        where p.ripe and p.ring = outbox.ring(v_names[r]) and p.namespace = v_names[r]
          and p.route_ring = outbox.ring(queues[r]) and p.task_queue = queues[r]
          and p.shard = l.shard and p.visible_after <= claim_read.now
        order by p.visible_after, p.id limit v_parts[r]
      ) as p limit v_parts[r];
      pages := pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) - v_before;
      if pages > 1000 + 4 * v_have[r] then
        wading := v_of[r];
        exit;
      end if;
    end loop;
  end if;
end $$;
comment on function outbox.claim_read is 'How many messages a claim takes from each namespace, and which it may take';
revoke all on function outbox.claim_read from public;
-- <<< sql/functions/claim_read.sql

-- >>> sql/functions/claim_order.sql
-- requires: ceil_div.sql
create or replace function outbox.claim_order(
  of_visit int[], sizes int[], wanted int[], slice int, batch int, max_bytes bigint, turn bigint,
  out picked int[], out passes int[], out left_out int)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- The third part of a claim: the order of service. picked are the messages to take, as indexes of
-- the candidates, in that order; passes says of each whether it is part of its namespace's slice, 1, or
-- of what was left, 2. Both null: there are no candidates.
--
--   parameter                what it is
--   of_visit, sizes, wanted  what claim_read() returned
--   slice                    ceil(batch / active namespaces)
--   max_bytes                null, or the payload bytes that end the claim
--   turn                     null, or, where all eligible namespaces are here, the walk's round
--
-- The candidates of each namespace have ranks, in their order; rank 1 of all namespaces comes before
-- rank 2 of any. Ranks up to the slice are pass 1. So one order gives both passes, and the claim is its
-- first batch messages, or up to the one that reaches max_bytes.
--
-- Within a rank the order is that of the walk, unless there is a turn: then the first place moves on
-- by one each round, among the namespaces that have a message of that rank, and with it the odd
-- remainder of the batch.
--
-- A payload of max_bytes or more would end the claim wherever it stands. So it goes behind all
-- others, and no other namespace loses its message; but the first message of the claim stays first, so
-- that large payloads are served, too. left_out is the first visit whose message of rank 1 max_bytes
-- kept out: the next walk begins there.
declare
  v_before int[]; -- of each namespace: the candidates before its own,
  v_counts int[]; --   and how many of them it may get
  v_least  int;   -- the least of these
  v_rank   int := 0;
  v_places int;   -- namespaces that have a message of this rank
  v_start  int;   -- which of them is first
  v_taken  int := 0;
  v_slices int;   -- how many are taken by the end of the last rank of the slice
begin
  select array_agg(x.before order by x.visit), array_agg(x.count order by x.visit), min(x.count)
  into v_before, v_counts, v_least
  from (
    select u.visit, min(u.n)::int - 1 as before, least(count(*), claim_order.wanted[u.visit])::int as count
    from unnest(claim_order.of_visit) with ordinality as u(visit, n)
    group by u.visit
  ) as x;
  if v_before is null then
    return;
  end if;

  if claim_order.max_bytes is null or (select sum(u.size) from unnest(claim_order.sizes) as u(size)) < claim_order.max_bytes then
    -- No payload counts. Rank by rank; it comes here with more than a few messages, so not by windows over them.
    picked := '{}';
    loop
      v_rank := v_rank + 1;
      if v_rank > v_least then -- some have no more
        select array_agg(u.before order by u.n), array_agg(u.count order by u.n), min(u.count)
        into v_before, v_counts, v_least
        from unnest(v_before, v_counts) with ordinality as u(before, count, n)
        where u.count >= v_rank;
        exit when v_before is null;
      end if;
      v_places := cardinality(v_before);
      v_start := coalesce(claim_order.turn % v_places, 0);
      for n in 1 .. least(v_places, claim_order.batch - v_taken) loop
        picked[v_taken + n] := v_before[(v_start + n - 1) % v_places + 1] + v_rank;
      end loop;
      v_taken := cardinality(picked);
      if v_rank <= claim_order.slice then
        v_slices := v_taken;
      end if;
      exit when v_taken = claim_order.batch;
    end loop;
    passes := array_fill(1, array[v_slices]) || array_fill(2, array[v_taken - v_slices]);
    return;
  end if;

  with ranked as (
    select u.*, row_number() over (partition by u.visit order by u.i) as rank
    from unnest(claim_order.of_visit, claim_order.sizes) with ordinality as u(visit, payload_bytes, i)
  ), placed as materialized (
    select r.*, row_number() over (partition by r.rank order by r.visit) - 1 as place,
           count(*) over (partition by r.rank) as places
    from ranked as r
    where r.rank <= claim_order.wanted[r.visit]
  ), ordered as (
    select p.*, row_number() over w as n,
           coalesce(sum(p.payload_bytes) over (w rows between unbounded preceding and 1 preceding), 0) as bytes_before
    from placed as p
    window w as (order by (p.payload_bytes >= claim_order.max_bytes and (p.rank > 1 or p.place > 0)) is true, p.rank,
      -- Not where max_bytes may end the claim within rank 1: it might end before it comes to those
      -- in front of the first place, and the next walk would skip them. Then the walk's order stands.
      case when claim_order.turn is not null
                and (select sum(f.payload_bytes) from placed as f where f.rank = 1) < claim_order.max_bytes
           then (p.place - claim_order.turn % p.places + p.places) % p.places else p.place end)
  ), cut as (
    select o.*, o.n <= claim_order.batch and o.bytes_before < claim_order.max_bytes as taken
    from ordered as o
  )
  select array_agg(c.i::int) filter (where c.taken),
         array_agg(case when c.rank <= claim_order.slice then 1 else 2 end) filter (where c.taken),
         min(c.visit) filter (where not c.taken and c.rank = 1)
  into picked, passes, left_out
  from (select c.* from cut as c order by c.n) as c;
end $$;
comment on function outbox.claim_order is 'The order in which a claim serves, and where it ends';
revoke all on function outbox.claim_order from public;
-- <<< sql/functions/claim_order.sql

-- >>> sql/functions/fold_report.sql
-- requires: hold_step.sql retry_delay.sql span.sql
create or replace function outbox.fold_report(
  inout destination outbox.destination, report outbox.report, fresh boolean, now timestamptz, config outbox.config)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- What a report makes of a destination: in, as it was; out, as it is now.
--
--   kind         what was seen                               the destination
--   up           a message was delivered                     is reached: its failures in a row are over
--   unreachable  it could not be reached, or turned away     4 for a message, 1 for one that counted already
--                whoever calls
--   broken       it broke on the message                     1 for a message
--   busy         it asked for time                           is held for that long, at least for a step, at most 1 h
--   gone         it is no more                               is held until somebody lifts it
--
-- It is held at 4 * config.hold_after: after that many messages in a row that could not reach it. The
-- route of all counts for itself, to 8 * hold_after from hold_after namespaces at least, and there busy
-- and gone are as unreachable: they may be one tenant's. Where it has just come back, two are enough.
--
-- While the route of all is held, not each probe that fails makes the hold longer than the last one, but every
-- hold_after namespaces, or when a second one of the same namespace fails: some may be broken for themselves, and the
-- others, whose probe would lift it, should not wait ever longer for each of them.
--
-- A fresh destination, one that was well until now, counts one report only: what was delivered at the
-- same time was not reported. Of a held one the probe alone says something: a success lifts the hold,
-- a failure makes it longer. What was claimed before the last lift says nothing.
declare
  v_is_all  boolean := (fold_report.destination).namespace is null;
  v_held    boolean := (fold_report.destination).state = 'held';
  v_counted boolean := (fold_report.report).message_id = any ((fold_report.destination).failed);
  v_after   int     := (fold_report.config).hold_after;
  v_enough  int     := 4 * v_after;
  v_step    int     := outbox.hold_step(destination, fold_report.now, outbox.span((fold_report.config).hold_cap));
  v_holds   boolean;
  v_until   timestamptz;
begin
  if v_held and ((fold_report.report).message_id, (fold_report.report).claim_token)
                is distinct from ((fold_report.destination).probe_id, (fold_report.destination).probe_token)
     or (fold_report.report).claim_token < (fold_report.destination).lift_token then
    return;
  end if;

  if (fold_report.report).kind = 'up' then
    if v_held then
      destination.lifted_at := fold_report.now;
      destination.lift_token := nextval('outbox.claim_token');
      destination.held_since := null;
      destination.held_until := null;
      destination.state := 'recovering';
    elsif (fold_report.destination).state = 'failing'
          or fold_report.now >= (fold_report.destination).lifted_at + interval '10 s' then
      destination.state := 'well';
    end if;
    destination.score := 0;
    destination.failed := '{}';
    destination.failed_of := '{}';
    return;
  end if;

  if not v_held then
    if fold_report.fresh and (fold_report.destination).score > 0 then
      v_holds := false;
    elsif not v_counted then
      destination.score := (fold_report.destination).score + case when (fold_report.report).kind = 'broken' then 1 else 4 end;
      destination.failed := (array_prepend((fold_report.report).message_id, (fold_report.destination).failed))[:8 * v_after];
      if v_is_all and cardinality((fold_report.destination).failed_of) < v_after and (fold_report.report).namespace <> all (destination.failed_of) then
        destination.failed_of := (fold_report.destination).failed_of || (fold_report.report).namespace; -- as many as decide it
      end if;
    elsif (fold_report.report).kind <> 'broken' then
      destination.score := (fold_report.destination).score + 1;
    end if;
    if (fold_report.destination).state = 'well' then
      destination.state := 'failing';
    end if;
    if v_is_all then
      v_enough := 8 * v_after;
    elsif (fold_report.destination).state = 'recovering' and fold_report.now < (fold_report.destination).lifted_at + interval '10 s' then
      v_enough := least(v_enough, 8);
    end if;
    v_holds := coalesce(v_holds, (fold_report.destination).score >= v_enough
                                 and (not v_is_all or cardinality((fold_report.destination).failed_of) >= v_after))
               or not v_is_all and (fold_report.report).kind in ('busy', 'gone');
    if not v_holds then
      return;
    end if;
  end if;
  if not v_held or (fold_report.destination).step = 0 then -- until now an operator held it
    destination.held_since := fold_report.now;
  end if;

  if v_is_all and v_held and (fold_report.destination).step > 0 and cardinality((fold_report.destination).failed_of) < v_after
     and (fold_report.report).namespace <> all ((fold_report.destination).failed_of) then
    destination.failed_of := (fold_report.destination).failed_of || (fold_report.report).namespace;
    v_step := v_step - 1; -- as long as the last one
  elsif v_is_all then
    destination.failed_of := array[(fold_report.report).namespace];
  end if;
  v_until := fold_report.now + outbox.retry_delay(v_step + 1, (fold_report.config).hold_base, 2, (fold_report.config).hold_cap,
                                                  0.2, random());
  if (fold_report.report).kind = 'busy' then
    v_until := greatest(v_until, fold_report.now + least(outbox.span((fold_report.report).hold), interval '1 h'));
  end if;
  if (fold_report.report).kind = 'gone' and not v_is_all
     or fold_report.now >= (fold_report.destination).held_since + outbox.span((fold_report.config).hold_give_up) then
    v_until := 'infinity';
  end if;
  destination.state := 'held';
  destination.step := least(v_step + 1, 60);
  destination.held_until := v_until;
  destination.held_by := (fold_report.report).node;
  destination.reason := (fold_report.report).reason;
  destination.probe_id := null;
  destination.probe_token := null;
end $$;
comment on function outbox.fold_report is 'What a report makes of a destination';
revoke all on function outbox.fold_report from public;
-- <<< sql/functions/fold_report.sql

-- >>> sql/functions/fold_reports.sql
-- requires: fold_report.sql save_destination.sql add_hold_event.sql span.sql
create or replace function outbox.fold_reports(now timestamptz, late boolean)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
-- Takes up to 500 reports of settles, and makes of outbox.destination what they say: each that they
-- concern is read once and saved once, however many there are of it. The caller has the lock
-- fold_lock(). late also takes those that were committed after reports with larger ids had been taken:
-- that is a search from the beginning, which reads past dead rows where a long transaction keeps them.
declare
  v_config  outbox.config;
  v_edge    bigint := (select e.last_value from outbox.report_edge as e);
  v_reports outbox.report[];
  v_report  outbox.report;
  v_own     int[]; -- of each report, the number of its destination: 1 to 500, of a route of all 501 to 1000
  v_common  int[];
  v_read    boolean[] := array_fill(false, array[1000]); -- of each destination: is it in these?
  v_saved   outbox.destination[] := array_fill(null::outbox.destination, array[1000]); -- as it is in the table; null: it has no row
  v_folded  outbox.destination[] := v_saved; -- as it is to be
  v_fresh   boolean[] := v_read;
  v_was     outbox.destination;
  v_is      outbox.destination;
  v_key     text;
  v_n       int := 0; -- of the report
  v_d       int;      -- of the destination
  v_all     boolean; -- the route of all is held
begin
  with r as (
    delete from outbox.report as d
    where d.id = any (array(select r.id from outbox.report as r
                            where r.id >= case when fold_reports.late then 0 else v_edge end
                            order by r.id limit 500))
    returning d.*
  )
  select array_agg(r order by r.id) into v_reports from r;
  if v_reports is null then
    return;
  end if;
  if fold_reports.late and v_edge > (select s.last_value from outbox.report_id_seq as s) then
    perform setval('outbox.report_edge', 1); -- the ids went back, as where tables were copied without sequences
  end if;
  -- To the first of them, since this may yet be rolled back, and the edge is not.
  perform setval('outbox.report_edge', min(r.id)) from unnest(v_reports) as r where r.id > v_edge having min(r.id) is not null;
  select c.* into strict v_config from outbox.config as c;

  select array_agg(x.own order by x.id), array_agg(x.common order by x.id) into v_own, v_common
  from (select r.id, (dense_rank() over (order by r.task_queue, r.namespace))::int as own, 500 + (dense_rank() over (order by r.task_queue))::int as common
        from unnest(v_reports) as r) as x;

  foreach v_report in array v_reports loop
    v_n := v_n + 1;
    foreach v_d in array array[v_common[v_n], v_own[v_n]] loop
      v_key := case when v_d <= 500 then v_report.namespace end;
      if v_read[v_d] then
        v_was := v_folded[v_d];
      else
        v_was := null;
        if v_key is null then
          select d.* into v_was from outbox.destination as d where d.namespace is null and d.task_queue = v_report.task_queue;
        else
          select d.* into v_was from outbox.destination as d where d.namespace = v_key and d.task_queue = v_report.task_queue;
        end if;
        v_read[v_d] := true;
        if v_was.task_queue is not null then
          v_saved[v_d] := v_was;
          v_folded[v_d] := v_was;
        end if;
      end if;
      if v_key is null then
        v_all := coalesce(v_was.state, 'well') = 'held';
        -- One that is held hears of its probe whoever shares it; one that is in trouble, of whom it reached.
        continue when not v_all
          and not case when v_report.kind = 'up' then coalesce(v_was.state, 'well') <> 'well'
                       else v_report.shared is not null and coalesce(v_was.shared, v_report.shared) end;
      else
        -- What is wrong with the endpoint of all is not held against one of them.
        continue when v_all and v_report.kind in ('unreachable', 'broken') and (v_was.state = 'held') is not true;
      end if;
      if v_was.lift_token > (select s.last_value from outbox.claim_token as s) then
        v_was.lift_token := 0; -- the database went back: what is claimed now has smaller tokens
      end if;
      if v_was.task_queue is null then
        continue when v_report.kind = 'up';
        v_was.namespace := v_key;
        v_was.task_queue := v_report.task_queue;
        v_was.state := 'well';
        v_was.score := 0;
        v_was.failed := '{}';
        v_was.failed_of := '{}';
        v_was.step := 0;
        v_was.lift_token := 0;
      end if;
      if v_was.state = 'well' then
        v_fresh[v_d] := true;
      end if;
      v_is := outbox.fold_report(v_was, v_report, v_fresh[v_d], fold_reports.now, v_config);
      if v_is.state = 'well' and v_is.shared is null
         -- not sooner: it has the steps, and the token that tells what was claimed before the lift
         and coalesce(v_is.lifted_at + outbox.span(v_config.hold_cap) <= fold_reports.now, true) then
        v_folded[v_d] := null;
        continue;
      end if;
      v_folded[v_d] := v_is;
      if v_is.state = 'held' and v_is.held_since is distinct from v_was.held_since then
        perform outbox.add_hold_event('held', v_is, fold_reports.now, v_report.node);
      elsif v_was.state = 'held' and v_is.state <> 'held' then
        perform outbox.add_hold_event('lifted', v_was, fold_reports.now, v_report.node);
      end if;
      if v_is.held_until = 'infinity' and v_was.held_until is distinct from v_is.held_until then
        perform outbox.add_hold_event('gave_up', v_is, fold_reports.now, v_report.node);
      end if;
    end loop;
  end loop;

  for i in 1 .. 1000 loop
    continue when not v_read[i] or v_folded[i] is not distinct from v_saved[i];
    v_is := v_folded[i];
    if v_is.task_queue is not null then
      perform outbox.save_destination(v_is, fold_reports.now);
      continue;
    end if;
    v_was := v_saved[i];
    if v_was.namespace is null then
      delete from outbox.destination as d where d.namespace is null and d.task_queue = v_was.task_queue;
    else
      delete from outbox.destination as d where d.namespace = v_was.namespace and d.task_queue = v_was.task_queue;
    end if;
  end loop;
end $$;
comment on function outbox.fold_reports is 'Makes of outbox.destination what settles reported';
revoke all on function outbox.fold_reports from public;
-- <<< sql/functions/fold_reports.sql

-- >>> sql/functions/claim_fair.sql
-- requires: check_claim.sql next_held.sql walk_start.sql ripen.sql claim_walk.sql claim_read.sql claim_order.sql walk_detour.sql bound_transaction.sql ceil_div.sql lock_class.sql node_lock.sql fold_lock.sql fold_reports.sql gates.sql span.sql
create or replace function outbox.claim_fair(node text, shards int[], batch int, max_bytes bigint default null,
                                             payloads boolean default true)
returns table (id bigint, claim_token bigint, namespace text, task_queue text, dispatch_key text, shard int,
               attempt int, content_type text, headers jsonb, payload bytea, lease_until timestamptz, pass int,
               payload_bytes int, suspect int,
               created_at timestamptz, due_at timestamptz, claimed_at timestamptz)
language plpgsql security definer rows 100
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
-- Claims up to batch due messages on these shards for this node, fairly: every active namespace
-- gets its slice of the batch, capped by its headroom; what is left is shared out in rounds.
-- With max_bytes the claim ends with the message that reaches it, and a payload of that many
-- bytes comes last, unless it would be the first. Messages come back in the order of service. A
-- claim never waits for another one. Until its transaction ends, the session may not be idle for
-- longer than config.claim_idle_timeout, and current_setting('outbox.claim_outcome') says how the
-- claim ended:
--
--   served        it brought messages, and was not cut
--   cut           with messages or without, it stopped before it had looked at every namespace
--                 (see claim_walk), or more has come due than it could make ripe (see ripen): claim
--                 again at once, the next walk goes on there
--   cut_past_end  the same, and the walk came past the end of the ring
--   all_round     it brought no messages: nothing is due that it may claim, or max_bytes is below 1
--   shut_out      it brought no messages, and another claim has some of the shards, or the node's name
--
-- Without payloads, payload and headers are null: whoever claims reads them with payloads(),
-- as they fit into its memory, once the claim is committed. Small ones come along all the same, up
-- to 1 MiB in all: to look their rows up again would cost more. The messages have not begun then,
-- and those that are suspect (see rescue) come without, and must be reported to begin_delivery()
-- before they are read. With payloads, all that a claim returns has begun together.
--
-- The order of the steps is what makes the quota hold. A claim first locks its shards;
-- only statements that start after that, and so see every claim that held one of them
-- before, count what is claimed. Hence read committed: an older snapshot would miss it.
declare
  v_config  outbox.config;
  v_shards  int[];
  v_class   int;
  v_held    int[];
  v_next    int[];
  v_now     timestamptz;
  v_until   timestamptz; -- the end of the lease
  v_start   record;      -- where the walk goes on
  v_ripe    record;
  v_walk    record;      -- whom to serve,
  v_read    record;      --   what may be taken from them,
  v_order   record;      --   and what is, in the order of service
  v_gates   int := 0;    -- as claim_walk has it
  v_late    boolean;
  v_probes  bigint[];
  v_last    int;         -- the last visit that the next walk need not repeat
  v_moved   int;
  v_along   int;         -- payloads of so many bytes come along, if others do not
  v_token   bigint;
begin
  -- 1. Arguments, and the transaction that this claim is part of.
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    raise exception 'outbox.claim_fair: the transaction''s isolation is %', current_setting('transaction_isolation')
      using errcode = 'OB002', hint = 'Call it in a transaction that begins with: begin isolation level read committed.';
  end if;
  if current_setting('transaction_read_only')::boolean then
    raise exception 'outbox.claim_fair: the transaction is read-only%', case when pg_is_in_recovery() then ', as this server is a standby' else '' end
      using errcode = 'read_only_sql_transaction', hint = 'Claim on the primary; explain_claim() works here.';
  end if;
  select c.* into strict v_config from outbox.config as c;
  v_shards := outbox.check_claim('claim_fair', claim_fair.node, claim_fair.shards, claim_fair.batch, v_config);
  if claim_fair.payloads is null then
    perform outbox.bad_argument('claim_fair', 'payloads', 'is null', 'Give true to get payloads, false to read them later.');
  end if;
  if claim_fair.max_bytes <= 0 or cardinality(v_shards) = 0 then
    perform set_config('outbox.claim_outcome', 'all_round', true);
    return;
  end if;
  perform set_config('outbox.claim_outcome', 'shut_out', true); -- unless it gets further
  perform outbox.bound_transaction(v_config.claim_idle_timeout); -- left open, it would hold its shards

  -- 2. The node's lock, then those of the shards; all are released when the transaction ends.
  v_class := outbox.lock_class();
  if not pg_try_advisory_xact_lock(v_class, outbox.node_lock(claim_fair.node)) then
    return;
  end if;
  select array_agg(s.shard order by s.shard) into v_held
  from unnest(v_shards) as s(shard) where pg_try_advisory_xact_lock(v_class, s.shard);
  if v_held is null then
    return;
  end if;
  v_next := outbox.next_held(v_held, v_config.shard_count);
  v_now := clock_timestamp();
  v_until := v_now + outbox.span(v_config.lease);

  -- 3. What settles reported of destinations. One claim at a time reads that, and may probe; the
  -- others go by what is committed.
  v_late := random() < 0.1;
  if exists (select from outbox.report as r
             where r.id >= case when v_late then 0 else (select e.last_value from outbox.report_edge as e) end)
     or exists (select from outbox.destination as d where d.state in ('held', 'recovering')) then
    if pg_try_advisory_xact_lock(v_class, outbox.fold_lock()) then
      perform outbox.fold_reports(v_now, v_late);
      v_gates := outbox.gates(true);
    else
      v_gates := outbox.gates(false);
    end if;
  end if;

  -- 4. What has come due becomes ripe.
  select w.* into strict v_start from outbox.walk_start(claim_fair.node, v_shards) as w;
  if v_start.edge_shards is null or not v_held <@ v_start.edge_shards then
    -- of some of them it does not know the edges: start from nothing
    v_start.edge_shards := v_held;
    v_start.edge := 0;
    v_start.unripe_all_at := '-infinity'::timestamptz;
  elsif v_held = v_shards then
    v_start.edge_shards := v_held; -- some of them: what it knows of more shards holds for these
  end if;
  select r.* into v_ripe
  from outbox.ripen(v_held, v_next, v_now, v_start.unripe_from, v_start.unripe_from_id, v_start.unripe_all_at,
                    v_start.unripe_namespace, v_start.unripe_rest) as r;

  -- 5. Whom to serve, with how many messages, in which order.
  select w.* into v_walk
  from outbox.claim_walk(claim_fair.node, v_next, cardinality(v_held), claim_fair.batch, v_start.namespace, v_start.round,
                         v_now, v_start.edge, null, true, v_gates, v_config, v_start.detours) as w;
  select r.* into v_read
  from outbox.claim_read(claim_fair.node, v_walk.visits, v_walk.active, v_walk.width, v_held, v_next, claim_fair.batch,
                         v_now, true, v_gates, v_walk.gated, v_walk.gated_routes, v_walk.caps,
                         v_walk.shared_routes, v_walk.shared_left, v_config) as r
  where v_walk.active > 0;
  select o.* into v_order
  from outbox.claim_order(v_read.of_visit, v_read.sizes, v_read.wanted, outbox.ceil_div(claim_fair.batch, greatest(v_walk.active, 1)),
                          claim_fair.batch,
                          claim_fair.max_bytes, case when v_walk.ended = 'around' then v_walk.visits[1].round end) as o
  where v_read.ids is not null;

  if v_read.wading is not null then
    v_walk.detours := v_walk.detours || outbox.walk_detour(
      case when v_read.wading = 1 then v_start.namespace else v_walk.visits[v_read.wading - 1].namespace end,
      v_walk.visits[v_read.wading].namespace, v_read.pages, true);
  end if;

  if v_order.picked is null and v_walk.ended = 'around' and not v_ripe.again and v_ripe.unripe_all_at < v_now then
    -- Before it says that nothing is due: what was committed late.
    select r.* into v_ripe
    from outbox.ripen(v_held, v_next, v_now, '-infinity', 0, '-infinity', v_ripe.unripe_namespace, v_ripe.unripe_rest) as r;
    v_ripe.again := v_ripe.again or v_ripe.ripened > 0;
  end if;

  v_last := least(v_order.left_out - 1, v_walk.passed, cardinality(v_walk.visits));
  perform set_config('outbox.claim_outcome', case
    when v_walk.ended = 'cut' then case when v_walk.visits[v_last].round > v_start.round then 'cut_past_end' else 'cut' end
    when v_walk.ended = 'detour' or v_ripe.again then 'cut'
    when v_order.picked is not null then 'served'
    when v_held <> v_shards then 'shut_out'
    else 'all_round' end, true);

  -- 6. Where the next claim goes on: behind the last namespace that the walk came to,
  -- or, where max_bytes left some out, with the first of those, or behind the last one that a route of all let
  -- through. Nothing is saved if the walk went all around, served nobody, and found nothing to do next time.
  if v_order.picked is not null or v_walk.passed is not null or v_walk.ended <> 'around' or v_ripe.again or v_walk.detours is not null then
    v_token := nextval('outbox.claim_token') + floor(random() * 4194304)::bigint; -- see the sequence's migration
    if v_token <= (select max(w.edge) from outbox.walk as w) then
      -- The sequence was set back: below an edge, what is claimed would not be counted.
      perform setval('outbox.claim_token', (select max(w.edge) from outbox.walk as w) + 1000 * 4194304::bigint); -- see pass_token
      v_token := nextval('outbox.claim_token') + floor(random() * 4194304)::bigint;
    end if;
    if v_start.edge_shards = v_held then -- else it has looked at some of them only
      -- Nobody else claims on these shards before this claim ends, and then with a later
      -- token than this one's. So the oldest one there now stays the oldest.
      v_start.unripe_from := v_ripe.unripe_from;
      v_start.unripe_from_id := v_ripe.unripe_from_id;
      v_start.unripe_all_at := v_ripe.unripe_all_at;
      v_start.edge := coalesce((select c.claim_token from outbox.claimed as c
                                where c.claim_token >= v_start.edge and v_next[c.shard + 1] = c.shard
                                order by c.claim_token limit 1), v_token);
    end if;
    insert into outbox.walk as w (node, namespace, round, claimed_at, claimed, batch, edge, edge_shards,
                                  unripe_from, unripe_from_id, unripe_all_at, unripe_namespace, unripe_rest, detours)
    values (claim_fair.node, case when v_last > 0 then v_walk.visits[v_last].namespace else v_start.namespace end,
            case when v_last > 0 then v_walk.visits[v_last].round else v_start.round end, v_now,
            coalesce(cardinality(v_order.picked), 0), claim_fair.batch, v_start.edge, v_start.edge_shards,
            v_start.unripe_from, v_start.unripe_from_id, v_start.unripe_all_at, v_ripe.unripe_namespace, v_ripe.unripe_rest,
            -- new detours, and the former ones, for one claim less
            (select array_agg(row(d.after, d.upto, d.claims)::outbox.detour)
             from (select n.* from unnest(v_walk.detours) as n
                   union all
                   select f.after, f.upto, f.claims - 1 from unnest(v_start.detours) as f where f.claims > 1
                   limit 8) as d))
    on conflict on constraint walk_pkey do update
      set namespace = excluded.namespace, round = excluded.round, claimed_at = excluded.claimed_at,
          claimed = excluded.claimed, batch = excluded.batch, edge = excluded.edge, edge_shards = excluded.edge_shards,
          unripe_from = excluded.unripe_from, unripe_from_id = excluded.unripe_from_id,
          unripe_all_at = excluded.unripe_all_at, unripe_namespace = excluded.unripe_namespace, unripe_rest = excluded.unripe_rest, detours = excluded.detours;
  end if;
  if v_walk.several then
    -- For each namespace the route that was served last, or the one where a search in vain was cut.
    -- Without joins: of arrays they would be quadratic.
    insert into outbox.route as t (namespace, node, task_queue, served_at, shard)
    select distinct on (x.namespace) x.namespace, claim_fair.node, x.task_queue, v_now, v_held[1]
    from (
      select max(r.namespace) as namespace, max(r.task_queue) as task_queue, max(r.n) as n
      from (
        select u.route, u.namespace, u.task_queue, null::bigint as n
        from unnest(v_read.rotating, v_read.queues) with ordinality as u(namespace, task_queue, route)
        union all
        select v_read.of_route[p.i], null, null, p.n
        from unnest(v_order.picked) with ordinality as p(i, n)
      ) as r
      group by r.route
      union all
      select v.namespace, v.looked_to, 0 from unnest(v_walk.visits) as v where v.verdict = 'idle' and v.looked_to is not null
    ) as x
    where x.n is not null and x.namespace is not null
    order by x.namespace, x.n desc
    on conflict on constraint route_pkey do update
      set task_queue = excluded.task_queue, served_at = excluded.served_at, shard = excluded.shard
      where t.task_queue <> excluded.task_queue;
  end if;
  if v_order.picked is null then
    return;
  end if;

  -- 7. Move the rows, and return them with what outbox.message has of them.
  if v_gates & 2 > 0 and array_remove(v_read.route_caps, null) <> '{}' then -- which of them are probes
    with x as materialized (
      select v_read.ids[u.i] as id, (v_walk.visits[v_read.of_visit[u.i]]).namespace, v_read.queues[v_read.of_route[u.i]] as task_queue
      from unnest(v_order.picked) as u(i) where v_read.route_caps[v_read.of_route[u.i]] is not null
    ), own as (
      update outbox.destination as d set probe_id = x.id, probe_token = v_token, changed_at = v_now
      from x where d.state in ('held', 'recovering') and d.state = 'held' and d.task_queue = x.task_queue and d.namespace = x.namespace
      returning x.id
    ), common as (
      update outbox.destination as d set probe_id = x.id, probe_token = v_token, changed_at = v_now
      from x where d.state in ('held', 'recovering') and d.state = 'held' and d.task_queue = x.task_queue and d.namespace is null
      returning x.id
    )
    select array_agg(p.id) into v_probes from (select o.id from own as o union all select c.id from common as c) as p;
  end if;
  with p as (
    delete from outbox.pending as d
    where d.ctid = any (array(select v_read.tids[u.i] from unnest(v_order.picked) as u(i))) returning d.*
  )
  insert into outbox.claimed as c (id, namespace, task_queue, shard, visible_after, attempt, payload_bytes,
                                   claim_token, claimed_by, claimed_at, lease_until, suspect, begun)
  select p.id, p.namespace, p.task_queue, p.shard, p.visible_after,
         least(p.attempt, 2147483646) + 1, -- it must not overflow
         p.payload_bytes, v_token, claim_fair.node, v_now, v_until, p.suspect,
         case when claim_fair.payloads then least(cardinality(v_order.picked), 32767) else 0 end
  from p;
  get diagnostics v_moved = row_count;
  if v_moved <> cardinality(v_order.picked) then
    raise exception 'outbox.claim_fair: locked % rows and found % of them again', cardinality(v_order.picked), v_moved
      using errcode = 'internal_error';
  end if;
  v_along := 1048576 / v_moved; -- all together no more than 1 MiB
  return query
  select m.id, v_token, m.namespace, m.task_queue, m.dispatch_key, v_read.shards[u.i], least(v_read.attempts[u.i], 2147483646) + 1,
         m.content_type, case when m.along then m.headers end, case when m.along then m.payload end,
         v_until, case when m.id = any (v_probes) then 0 else u.pass end, v_read.sizes[u.i], v_read.suspects[u.i],
         m.created_at, v_read.due_ats[u.i], v_now
  from (select p.* from unnest(v_order.picked, v_order.passes) with ordinality as p(i, pass, n) order by p.n) as u
  cross join lateral ( -- a look-up each, in this order: a join could read every message there is, and payloads be sorted
    select m.*, claim_fair.payloads or v_read.suspects[u.i] = 0 and v_read.sizes[u.i] + pg_column_size(m.headers) <= v_along as along
    from outbox.message as m where m.id = v_read.ids[u.i] offset 0
  ) as m;
end $$;
comment on function outbox.claim_fair is 'Claims due messages, fairly over namespaces';
revoke all on function outbox.claim_fair from public;
-- <<< sql/functions/claim_fair.sql

-- >>> sql/functions/claim_obstacles.sql
-- requires: claim_locks.sql
create or replace function outbox.claim_obstacles(claims boolean default false)
returns table (session text, shards int[], others int, remedy text)
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
  -- Who holds locks of this outbox and is not claiming: a row for each session, and each transaction
  -- that was prepared with a claim in it and forgotten. Nothing is claimed from the shards that it
  -- holds until it ends. shards are these, others is how many other locks it holds: those of
  -- nodes, of heartbeats, of cancels and of destinations. remedy is the SQL that ends the session or
  -- transaction. With claims, those who claim at this moment are listed, too: for a caller that has been
  -- shut out for long.
  select l.session, coalesce(array_agg(l.key order by l.key) filter (where l.key between 0 and 1023), '{}'),
         (count(*) filter (where l.key < 0 or l.key > 1023))::int, l.remedy
  from outbox.claim_locks() as l
  where l.stray or claim_obstacles.claims
  group by l.session, l.remedy
  order by l.session;
$$;
comment on function outbox.claim_obstacles is 'Who holds locks of claims and is not claiming';
revoke all on function outbox.claim_obstacles from public;
-- <<< sql/functions/claim_obstacles.sql

-- >>> sql/functions/clear_quota.sql
-- requires: check_key.sql
create or replace function outbox.clear_quota(namespace text)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Goes back to the default quota, not strict. False: the namespace had no other.
begin
  perform outbox.check_key('clear_quota', 'namespace', clear_quota.namespace);
  delete from outbox.namespace as n where n.namespace = clear_quota.namespace collate "C";
  return found;
end $$;
comment on function outbox.clear_quota is 'Gives a namespace the default quota again';
revoke all on function outbox.clear_quota from public;
-- <<< sql/functions/clear_quota.sql

-- >>> sql/functions/report_up.sql
create or replace function outbox.report_up(ids bigint[], now timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- Reports, of claimed messages that were delivered, those destinations that are in trouble, or of which a failure
-- is reported that nobody has read yet: one report for each, of the message claimed last, and while it is held none
-- but the probe's. Of such failures it looks at the last 500 reports. It reads what is there and waits for nobody.
begin
  insert into outbox.report (at, kind, message_id, claim_token, namespace, task_queue)
  with unread as materialized (
    select distinct r.namespace, r.task_queue, coalesce(d.shared, r.shared) and r.shared is not null as shared
    from (select r.* from outbox.report as r
          where r.id >= (select e.last_value from outbox.report_edge as e) order by r.id desc limit 500) as r
    left join lateral (
      select d.shared from outbox.destination as d where d.namespace is null and d.task_queue = r.task_queue
    ) as d on true
    where r.kind <> 'up'
  )
  select report_up.now, 'up', x.id, x.token, r.namespace, r.task_queue
  from (select c.namespace, c.task_queue, array_agg(c.id order by c.claim_token desc) as ids, array_agg(c.claim_token order by c.claim_token desc) as tokens
        from unnest(report_up.ids) as u(id)
        cross join lateral ( -- a look-up each: a scan could read all there are
          select c.* from outbox.claimed as c where c.id = u.id offset 0
        ) as c
        group by c.namespace, c.task_queue) as r
  cross join lateral (
    select case when t.state = 'held' then t.probe_id else r.ids[1] end as id,
           case when t.state = 'held' then t.probe_token else r.tokens[1] end as token
    from (select d.state, d.probe_id, d.probe_token from outbox.destination as d
          where d.state <> 'well' and d.task_queue = r.task_queue and d.namespace = r.namespace
          union all
          select d.state, d.probe_id, d.probe_token from outbox.destination as d
          where d.state <> 'well' and d.task_queue = r.task_queue and d.namespace is null
          union all
          select 'failing', null, null from unread as f
          where f.task_queue = r.task_queue and (f.namespace = r.namespace or f.shared)) as t
    where t.state <> 'held' or r.tokens[array_position(r.ids, t.probe_id)] = t.probe_token
    order by t.state = 'held' desc limit 1
  ) as x;
end $$;
comment on function outbox.report_up is 'Reports that destinations in trouble were reached';
revoke all on function outbox.report_up from public;
-- <<< sql/functions/report_up.sql

-- >>> sql/functions/complete.sql
-- requires: check_settle.sql lock_claimed.sql report_up.sql
create or replace function outbox.complete(ids bigint[], tokens bigint[])
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan -- told how many pairs there are, it may find them too many to hash
as $$
-- Settles delivered messages as done, in the caller's transaction: a consumer that does
-- its work in the same one has exactly-once effects. Returns the ids settled; the rest
-- were lost: claimed anew, cancelled, or settled already.
declare
  v_now timestamptz;
begin
  perform outbox.check_settle('complete', complete.ids, complete.tokens);
  if exists (select from outbox.destination as t where t.state <> 'well')
     or exists (select from outbox.report as r where r.id >= (select e.last_value from outbox.report_edge as e)) then
    perform outbox.report_up(outbox.lock_claimed(complete.ids, complete.tokens), clock_timestamp());
  end if;
  v_now := clock_timestamp();
  -- One pass deletes what still has its claim token (INV-9): the index gives the rows in the order of their
  -- ids, so that settles never deadlock, and the pairs are a filter, in a hash table. "is true" keeps
  -- the planner from a join instead, in an order of its own.
  return query
  with c as (
    delete from outbox.claimed as d
    where d.id = any (complete.ids)
      and ((d.id, d.claim_token) in (select u.id, u.token from unnest(complete.ids, complete.tokens) as u(id, token)
                                        where (u.id, u.token) is not null)) is true
    returning d.id, d.namespace, d.task_queue, d.shard, d.attempt, d.claimed_by
  )
  insert into outbox.settled as s (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by)
  select c.id, c.namespace, c.task_queue, c.shard, 'done', c.attempt, v_now, c.claimed_by
  from c
  returning s.id;
end $$;
comment on function outbox.complete is 'Settles delivered messages as done; the ids settled, the rest were lost';
revoke all on function outbox.complete from public;
-- <<< sql/functions/complete.sql

-- >>> sql/functions/enqueue.sql
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
-- <<< sql/functions/enqueue.sql

-- >>> sql/functions/enqueue_batch.sql
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
-- <<< sql/functions/enqueue_batch.sql

-- >>> sql/functions/explain_claim.sql
-- requires: gates.sql check_claim.sql next_held.sql walk_start.sql claim_walk.sql claim_read.sql claim_order.sql ceil_div.sql unripe_due.sql unripe_namespaces.sql hold_reason.sql paused_routes.sql count_due.sql claim_locks.sql node_lock.sql shards_text.sql
create or replace function outbox.explain_claim(
  node text, shards int[], batch int, max_bytes bigint default null, "only" text default null)
returns table (namespace text, due bigint, claimed int, quota int, ceiling int, headroom int, slice int,
               pass1 int, pass2 int, reason text)
language plpgsql security definer
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
-- What claim_fair with these arguments would do now, and why: a row for each namespace
-- that it would visit, in the order of the walk, and for some of those that it would not come to,
-- since all their messages wait for their time. It runs the same plan (claim_walk, claim_read,
-- claim_order), writes nothing and takes no lock. So what others have locked at this instant,
-- which claim_fair leaves out, counts here; and what has come due and is not ripe yet, which
-- claim_fair makes ripe first, counts as due, and is not in the passes. "only" answers for one
-- namespace, wherever the walk stands. due counts no further than config.count_cap. What
-- stands in the way of the claim itself comes first, in rows without a namespace.
declare
  v_config outbox.config;
  v_shards int[];
  v_held   int[];
  v_next   int[];
  v_now    timestamptz := clock_timestamp();
  v_to     text;
  v_turn   bigint;
  v_row    record;
  v_unripe bigint;
  v_others text[];
  v_gates  int := outbox.gates(true);
begin
  select c.* into strict v_config from outbox.config as c;
  v_shards := outbox.check_claim('explain_claim', explain_claim.node, explain_claim.shards, explain_claim.batch, v_config);
  v_held := v_shards;
  for v_row in
    select l.session || case when l.stray then format(', which is not claiming (to end it: %s)', l.remedy) else '' end as session,
           bool_or(l.key < 0) as is_node, bool_or(l.stray) as stray, array_agg(l.key order by l.key) filter (where l.key = any (v_shards)) as shards
    from outbox.claim_locks() as l
    where l.key between 0 and 1023 or l.key = outbox.node_lock(explain_claim.node)
    group by 1, l.pid order by l.pid
  loop
    if v_row.is_node then
      reason := format(case when v_row.stray then 'the claim would be empty: the lock of node %s is held by %s'
                            else 'the claim would be empty: node %s is claiming in %s' end, quote_literal(explain_claim.node), v_row.session);
      return next;
    end if;
    if v_row.shards is not null then
      v_held := array(select s.shard from unnest(v_held) as s(shard) where s.shard <> all (v_row.shards));
      reason := format('shards %s are held by %s and left out', outbox.shards_text(v_row.shards), v_row.session);
      return next;
    end if;
  end loop;
  if explain_claim.max_bytes <= 0 then
    reason := format('the claim would be empty: max_bytes is %s', explain_claim.max_bytes);
    return next;
    return;
  elsif cardinality(v_held) = 0 then
    reason := 'the claim would be empty: it has no shards';
    return next;
    return;
  end if;
  v_next := outbox.next_held(v_held, v_config.shard_count);

  select w.namespace, w.round into strict v_to, v_turn from outbox.walk_start(explain_claim.node, v_shards) as w;
  -- The one asked for, if the walk ends before it, or some that have nothing ripe.
  v_others := case when explain_claim."only" is not null then array[explain_claim."only" collate "C"] else array(
    select u.namespace from outbox.unripe_namespaces(100) as u
    where (select p.id from outbox.pending as p -- not as an anti join, which could read all there are
           where p.ripe and p.ring = outbox.ring(u.namespace) and p.namespace = u.namespace
           order by p.ring, p.namespace, p.route_ring, p.task_queue, p.shard, p.visible_after, p.id limit 1) is null) end;
  for v_row in
    with walk as materialized (
      select w.* from outbox.claim_walk(explain_claim.node collate "C", v_next, cardinality(v_held), explain_claim.batch,
                                        v_to, v_turn, v_now, 0, null, false, v_gates, v_config, null) as w
    ), pick as materialized (
      select r.of_visit[x.i] as visit, count(*) filter (where x.pass = 1) as pass1, count(*) filter (where x.pass = 2) as pass2
      from walk as w
      cross join lateral outbox.claim_read(explain_claim.node collate "C", w.visits, w.active, w.width, v_held, v_next, explain_claim.batch,
                                           v_now, false, v_gates, w.gated, w.gated_routes, w.caps,
                                           w.shared_routes, w.shared_left, v_config) as r
      cross join lateral outbox.claim_order(r.of_visit, r.sizes, r.wanted, outbox.ceil_div(explain_claim.batch, w.active), explain_claim.batch,
                                            explain_claim.max_bytes, case when w.ended = 'around' then w.visits[1].round end) as o
      cross join lateral unnest(o.picked, o.passes) as x(i, pass)
      where w.active > 0
      group by 1
    ), visited as (
      select v.* from walk as w
      cross join lateral unnest(w.visits) with ordinality
                         as v(namespace, round, verdict, quota, claimed, ceiling, sole, routes, looked_to, n)
      union all
      select o.visits[1].*, null
      from unnest(v_others) as u(namespace)
      cross join lateral outbox.claim_walk(explain_claim.node collate "C", v_next, cardinality(v_held), 1, v_to, v_turn, v_now, 0,
                                           u.namespace, false, v_gates, v_config, null) as o
      where u.namespace <> all (select v.namespace from walk as w cross join lateral unnest(w.visits) as v)
    )
    select v.*, w.active, coalesce(p.pass1, 0) as pass1, coalesce(p.pass2, 0) as pass2
    from visited as v
    cross join walk as w
    left join pick as p on p.visit = v.n
    where explain_claim."only" is null or v.namespace = explain_claim."only" collate "C"
    order by v.n
  loop
    namespace := v_row.namespace;
    due := outbox.count_due(v_row.namespace, v_next, v_now, v_config.count_cap);
    claimed := v_row.claimed;
    quota := v_row.quota;
    ceiling := v_row.ceiling;
    headroom := greatest(v_row.ceiling - v_row.claimed, 0);
    slice := case when v_row.active > 0 then outbox.ceil_div(explain_claim.batch, v_row.active) end;
    pass1 := v_row.pass1;
    pass2 := v_row.pass2;
    v_unripe := (select count(*) from outbox.unripe_due(v_row.namespace, v_next, v_now, v_config.count_cap) as u);
    reason := coalesce(
      outbox.hold_reason(v_row.namespace, v_row.verdict, v_row.claimed, v_row.ceiling, v_row.quota, v_next, v_now),
      case when pass1 + pass2 = 0 then 'not reached this sweep'
           else format('served %s of %s%s', pass1 + pass2, greatest(due, pass1 + pass2),
                       case when due >= v_config.count_cap then ' or more' else '' end)
                || case when pass1 + pass2 >= due then ''
                        when pass1 + pass2 >= headroom then format(', up to its ceiling of %s', ceiling)
                        when v_unripe > 0 then format(', and %s more that the claim first makes ripe', v_unripe)
                        else coalesce('; ' || outbox.paused_routes(v_row.namespace, v_next, v_now),
                                      ', as many as the claim holds for it') end
      end);
    return next;
  end loop;
end $$;
comment on function outbox.explain_claim is 'What claim_fair would do now, and why; writes nothing';
revoke all on function outbox.explain_claim from public;
-- <<< sql/functions/explain_claim.sql

-- >>> sql/functions/fail_destination.sql
-- requires: bad_argument.sql check_settle.sql failed_attempts.sql span.sql
create or replace function outbox.fail_destination(
  ids bigint[], tokens bigint[], kinds text[], errors text[] default null, holds interval[] default null,
  shared boolean[] default null, reached text[] default null)
returns table (id bigint, charged boolean)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- Gives messages back that failed by their destination's doing, not by their own, and reports that, so
-- that claims hold back what goes there. As complete(). kinds says, of each, what was seen:
--
--   unreachable  no connection, or an answer that whoever calls would get
--   broken       the destination broke on the message, perhaps on this one alone
--   busy         it asked for time: holds says how much
--   gone         it is no more
--
-- What fails at a destination that is held, or was claimed before the last hold of it was lifted, or made longer by an
-- operator, says nothing of it: it is not reported, not charged, and due as it was. What is reported of a destination that is held, the
-- probe, or that is held from now on, since it is busy or gone, is not charged either, and due config.hold_base
-- from now, behind the others. All else is as retry() does it. shared says of each whether other namespaces'
-- messages of the route go to the same endpoint. What is claimed before a claim has read the reports goes on.
-- charged says of each whether it cost an attempt: only then may it have been the last one.
--
-- A call has no order within itself, and "in a row" means: nothing got through meanwhile. So reached says of each who
-- got through there since it failed, before this call: 'namespace', another message of its namespace: then what was
-- unreachable or broken is an attempt like any other, and not reported; 'others', one of another namespace: then it
-- counts for the namespace alone, not for the route of all.
declare
  v_now  timestamptz;
  v_base interval;
begin
  perform outbox.check_settle('fail_destination', fail_destination.ids, fail_destination.tokens);
  if fail_destination.kinds is null then
    perform outbox.bad_argument('fail_destination', 'kinds', 'is null', 'Give one for each id: unreachable, broken, busy or gone.');
  elsif cardinality(fail_destination.kinds) <> cardinality(fail_destination.ids) then
    perform outbox.bad_argument('fail_destination', 'kinds', 'has another length than ids', 'Give one for each id.');
  elsif exists (select from unnest(fail_destination.kinds) as k(kind)
                where k.kind is null or k.kind not in ('unreachable', 'broken', 'busy', 'gone')) then
    perform outbox.bad_argument('fail_destination', 'kinds', 'has an unknown element',
      'Give unreachable, broken, busy or gone.');
  elsif cardinality(fail_destination.errors) <> cardinality(fail_destination.ids) then
    perform outbox.bad_argument('fail_destination', 'errors', 'has another length than ids', 'Give one for each id, or null.');
  elsif cardinality(fail_destination.holds) <> cardinality(fail_destination.ids) then
    perform outbox.bad_argument('fail_destination', 'holds', 'has another length than ids', 'Give one for each id, or null.');
  elsif cardinality(fail_destination.shared) <> cardinality(fail_destination.ids) then
    perform outbox.bad_argument('fail_destination', 'shared', 'has another length than ids', 'Give one for each id, or null.');
  elsif cardinality(fail_destination.reached) <> cardinality(fail_destination.ids) then
    perform outbox.bad_argument('fail_destination', 'reached', 'has another length than ids', 'Give one for each id, or null.');
  elsif exists (select from unnest(fail_destination.reached) as r(reached) where r.reached not in ('namespace', 'others')) then
    perform outbox.bad_argument('fail_destination', 'reached', 'has an unknown element', 'Give namespace, others or null.');
  end if;
  v_now := clock_timestamp();
  v_base := outbox.span((select c.hold_base from outbox.config as c));
  return query
  with u as materialized ( -- what is still claimed so, locked in the order of the ids, as all settles do
    select c.*, x.kind, x.hold, case when x.reached is null then coalesce(x.shared, false) end as shared,
           x.reached = 'namespace' and x.kind in ('unreachable', 'broken') as passed,
           case when length(x.error) > 2000 then left(x.error, 999) || '…' || right(x.error, 1000)
                else coalesce(nullif(x.error, ''), 'no reason given') end as error
    from (select distinct on (x.id, x.token) x.*
          from unnest(fail_destination.ids, fail_destination.tokens, fail_destination.kinds, fail_destination.errors,
                      fail_destination.holds, fail_destination.shared, fail_destination.reached) as x(id, token, kind, error, hold, shared, reached)
          order by x.id, x.token) as x
    cross join lateral (
      select d.* from outbox.claimed as d where d.id = x.id and d.claim_token + 0 = x.token for update
    ) as c
  ), f as materialized (
    select u.*, s.held, s.counts, s.held or not s.counts or u.kind in ('busy', 'gone') as uncharged
    from u
    cross join lateral (
      select coalesce(bool_or(d.held), false) as held,
             coalesce(bool_or(d.probe and not d.old), false) or not coalesce(bool_or(d.held or d.old), false) as counts
      from (select d.state = 'held' as held, d.state = 'held' and (d.probe_id, d.probe_token) = (u.id, u.claim_token) as probe,
                   u.claim_token < d.lift_token -- where the database went back, its token says nothing
                     and d.lift_token <= (select t.last_value from outbox.claim_token as t) as old
            from (select d.* from outbox.destination as d where d.task_queue = u.task_queue and d.namespace = u.namespace
                  union all
                  select d.* from outbox.destination as d where d.task_queue = u.task_queue and d.namespace is null) as d
      ) as d
    ) as s
  ), reported as (
    insert into outbox.report (at, kind, message_id, claim_token, namespace, task_queue, shared, hold, node, reason)
    select v_now, f.kind, f.id, f.claim_token, f.namespace, f.task_queue, f.shared, greatest(f.hold, '0'), f.claimed_by, left(f.error, 500)
    from f where f.counts and (f.held or f.passed is not true)
    order by f.id
  ), back as (
    delete from outbox.claimed as d
    where d.id = any (array(select f.id from f where f.uncharged))
  ), logged as (
    insert into outbox.failure (id, attempt, at, node, error)
    select f.id, f.attempt, v_now, f.claimed_by,
           f.error || case when f.held then ' (not charged: its destination is held)'
                           when f.counts then ' (not charged: its destination is held from now on)'
                           else ' (not charged: claimed before the hold of its destination was lifted)' end
    from f where f.uncharged
  ), again as (
    insert into outbox.pending as p (id, namespace, task_queue, shard, visible_after, ripe, attempt, payload_bytes)
    select f.id, f.namespace, f.task_queue, f.shard, case when f.counts then v_now + v_base else f.visible_after end, not f.counts,
           greatest(f.attempt - 1, 0), f.payload_bytes
    from f where f.uncharged
    returning p.id
  )
  select a.id, false from again as a;
  return query -- of the rest, which are claimed still
  select f.id, true from outbox.failed_attempts(fail_destination.ids, fail_destination.tokens, fail_destination.errors, null, false) as f;
end $$;
comment on function outbox.fail_destination is 'Gives messages back whose destination failed; the ids settled, and whether each was charged; the rest were lost';
revoke all on function outbox.fail_destination from public;
-- <<< sql/functions/fail_destination.sql

-- >>> sql/functions/failed.sql
-- requires: bad_argument.sql check_key.sql
create or replace function outbox.failed(
  in_namespace text default null, in_task_queue text default null, with_error text default null,
  since timestamptz default null, until timestamptz default null, max int default 100, newest boolean default true,
  after_at timestamptz default null, after_id bigint default null)
returns table (id bigint, namespace text, task_queue text, dispatch_key text, attempts int,
               created_at timestamptz, failed_at timestamptz, error text, matches boolean)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
set jit = off
as $$
-- The dead letters: messages that failed. Each argument that is not null leaves out what does
-- not match it: a namespace, a route of it or of all, a text within the last error (in capital
-- or small letters), failed at since or later, and before until. One call looks at max dead
-- letters, so that it is short however many there are. For the next ones call it again with the
-- failed_at and the id of the last row as after_at and after_id, until it looks at fewer. The last
-- one that a full call looked at is returned in any case: matches says whether it does.
--
-- Of a namespace, the order is that of the ids, so that of enqueueing; of all, that of the
-- times at which they failed. newest: backwards.
declare
  v_ids bigint[];
begin
  if failed.in_namespace is not null then
    perform outbox.check_key('failed', 'in_namespace', failed.in_namespace);
  end if;
  if failed.in_task_queue is not null then
    perform outbox.check_key('failed', 'in_task_queue', failed.in_task_queue);
  end if;
  if coalesce(failed.max, 0) < 1 then
    perform outbox.bad_argument('failed', 'max', 'is null or below 1', 'Give the most dead letters to look at.');
  elsif failed.newest is null then
    perform outbox.bad_argument('failed', 'newest', 'is null', 'Give true or false.');
  elsif failed.until <= failed.since then
    perform outbox.bad_argument('failed', 'until', 'is not later than since', 'Nothing lies between them: give a later until, or an earlier since.');
  elsif (failed.after_at is null) <> (failed.after_id is null) then
    perform outbox.bad_argument('failed', 'after_id', 'or after_at is null, and the other is not', 'Give failed_at and id of the last row, or neither.');
  end if;
  if failed.in_namespace is not null and failed.newest then -- by settled_failed, with bounds of pairs, for no other index to come into question
    v_ids := array(select s.id from outbox.settled as s
                   where s.outcome = 'failed'
                     and (s.namespace, s.id) >= (failed.in_namespace collate "C", 0)
                     and (s.namespace, s.id) < (failed.in_namespace collate "C", coalesce(failed.after_id, 9223372036854775807))
                   order by s.namespace desc, s.id desc limit failed.max);
  elsif failed.in_namespace is not null then
    v_ids := array(select s.id from outbox.settled as s
                   where s.outcome = 'failed'
                     and (s.namespace, s.id) > (failed.in_namespace collate "C", coalesce(failed.after_id, 0))
                     and (s.namespace, s.id) <= (failed.in_namespace collate "C", 9223372036854775807)
                   order by s.namespace, s.id limit failed.max);
  elsif failed.newest then -- by settled_retention; only those of one instant, which one call settled, are sorted
    v_ids := array(select s.id from outbox.settled as s
                   where s.outcome = 'failed'
                     and s.settled_at >= coalesce(failed.since, '-infinity')
                     and s.settled_at <= least(failed.until, failed.after_at, 'infinity')
                     and (failed.after_at is null or s.settled_at < failed.after_at or s.id < failed.after_id)
                   order by s.settled_at desc, s.id desc limit failed.max);
  else
    v_ids := array(select s.id from outbox.settled as s
                   where s.outcome = 'failed'
                     and s.settled_at >= greatest(failed.since, failed.after_at, '-infinity')
                     and s.settled_at <= coalesce(failed.until, 'infinity')
                     and (failed.after_at is null or s.settled_at > failed.after_at or s.id > failed.after_id)
                   order by s.settled_at, s.id limit failed.max);
  end if;
  return query
  select s.id, s.namespace::text, s.task_queue::text, m.dispatch_key::text, s.attempts, m.created_at, s.settled_at, e.error, x.matches
  from unnest(v_ids) with ordinality as u(id, n)
  cross join lateral ( -- look-ups, as in redrive()
    select s.* from outbox.settled as s where s.id = u.id offset 0
  ) as s
  cross join lateral (
    select coalesce(s.error, (select f.error from outbox.failure as f where f.id = s.id order by f.at desc limit 1)) as error
  ) as e
  cross join lateral (
    select (failed.in_task_queue is null or s.task_queue = failed.in_task_queue)
           and (failed.with_error is null or strpos(lower(e.error), lower(failed.with_error)) > 0) is true
           and (failed.since is null or s.settled_at >= failed.since)
           and (failed.until is null or s.settled_at < failed.until) as matches
    offset 0
  ) as x
  left join lateral (
    select m.dispatch_key, m.created_at from outbox.message as m where m.id = s.id offset 0
  ) as m on true
  where x.matches or u.n = failed.max
  order by u.n;
end $$;
comment on function outbox.failed is 'The dead letters that match, page by page';
revoke all on function outbox.failed from public;
-- <<< sql/functions/failed.sql

-- >>> sql/functions/hold.sql
-- requires: bad_argument.sql change_destination.sql save_destination.sql add_hold_event.sql span.sql
create or replace function outbox.hold(namespace text, task_queue text, duration interval default null, reason text default null)
returns timestamptz
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Holds a destination from the next claim on: a route of a namespace, or, with a null namespace, the
-- route of all. For a time, after which one message is tried, or, without duration, until somebody
-- lifts it. A hold that is there already gets longer, never shorter; a probe that is out then says
-- nothing any more, and there is no other one before it is back. What is claimed goes on; what
-- is held stays pending, unwritten and uncharged. Returns until when. Not the same as pause(), which
-- nothing but resume() or its own end takes back.
declare
  v_is    outbox.destination;
  v_now   timestamptz;
  v_until timestamptz;
begin
  if hold.duration is not null and (outbox.span(hold.duration) <= interval '0' or outbox.span(hold.duration) > interval '366 days') then
    perform outbox.bad_argument('hold', 'duration', format('is %s', hold.duration),
      'Give more than nothing and up to a year, or null to hold it until somebody lifts it.');
  end if;
  v_is := outbox.change_destination('hold', hold.namespace, hold.task_queue);
  v_now := clock_timestamp();
  v_until := case when hold.duration is null then 'infinity' else v_now + outbox.span(hold.duration) end;
  if v_is.state <> 'held' then
    v_is.state := 'held';
    v_is.held_since := v_now;
    v_is.step := 0;
    v_is.failed := '{}';
    v_is.failed_of := '{}';
    v_is.score := 0;
    v_is.probe_id := null; -- of a hold that is over
    v_is.probe_token := null;
  end if;
  if v_until > v_is.held_until or v_is.held_until is null then
    v_is.held_until := v_until;
    v_is.lift_token := nextval('outbox.claim_token'); -- a probe that is out stays the one that is out, and lifts nothing any more
  end if;
  v_is.held_by := session_user;
  v_is.reason := coalesce(left(nullif(hold.reason, ''), 1000), case when v_is.held_since < v_now then v_is.reason end);
  perform outbox.save_destination(v_is, v_now);
  if v_is.held_since = v_now then
    perform outbox.add_hold_event('held', v_is, v_now, session_user::text);
  end if;
  return v_is.held_until;
end $$;
comment on function outbox.hold is 'Holds a destination, for a time or until it is lifted; until when';
revoke all on function outbox.hold from public;
-- <<< sql/functions/hold.sql

-- >>> sql/functions/hold_events.sql
-- requires: bad_argument.sql bound_transaction.sql lock_class.sql
create or replace function outbox.hold_events(max int default 1000)
returns table (id bigint, at timestamptz, event text, namespace text, task_queue text, since timestamptz, by text, reason text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
-- What became of holds since this was called last, in whatever session, the oldest first and max of it at
-- most: for the node that tells people of it. What a call has returned no other one returns, even where
-- it is rolled back. Until the transaction of a call ends, other sessions' calls return nothing, and wait for nobody.
--
--   held     nothing is claimed for the destination since then; by failures where until then an
--            operator held it
--   lifted   the hold is over
--   gave_up  it is tried no more until somebody lifts the hold: since config.hold_give_up is over, or
--            since the destination says that it is gone
--
-- What is older than a day is not returned, and a hold that ends because its namespace is purged is not told.
declare
  v_edge   bigint;
  v_since  timestamptz := clock_timestamp() - interval '1 day';
  v_events outbox.hold_event[];
  v_last   bigint; -- the last one there is, and then, the last one that is told now
begin
  if coalesce(hold_events.max, 0) not between 1 and 10000 then
    perform outbox.bad_argument('hold_events', 'max', 'is not 1 to 10000', 'Give the most events to return.');
  end if;
  perform outbox.bound_transaction((select c.claim_idle_timeout from outbox.config as c)); -- while it is open, nobody else is told
  if not pg_try_advisory_xact_lock(outbox.lock_class(), 1028) then -- another call has read the edge, and not yet set it
    return;
  end if;
  v_edge := (select e.last_value from outbox.hold_event_edge as e);
  select (select array_agg(x order by x.id)
          from (select e.* from outbox.hold_event as e
                where e.id >= v_edge and e.at > v_since order by e.id limit hold_events.max) as x),
         (select e.id from outbox.hold_event as e where e.id >= v_edge order by e.id desc limit 1)
  into v_events, v_last;
  if cardinality(v_events) = hold_events.max then
    v_last := v_events[hold_events.max].id;
  end if;
  perform setval('outbox.hold_event_edge', v_last + 1)
  where v_last >= v_edge;
  return query
  select e.id, e.at, e.event::text, e.namespace::text, e.task_queue::text, e.since, e.by, e.reason from unnest(v_events) as e;
end $$;
comment on function outbox.hold_events is 'What became of holds since the last call: who began, ended or gave up';
revoke all on function outbox.hold_events from public;
-- <<< sql/functions/hold_events.sql

-- >>> sql/functions/hold_reasons.sql
-- requires: gates.sql bad_argument.sql check_key.sql next_held.sql claim_walk.sql hold_reason.sql
create or replace function outbox.hold_reasons(namespaces text[])
returns table (namespace text, next_due_at timestamptz, reason text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- Why a claim of all shards would take nothing from each of these namespaces, up to 1000, in the words of
-- explain_claim(): a row each, in their order. reason null: a claim that comes to the namespace takes
-- something from it. next_due_at: when the next of its messages that are not due comes due; null: there is
-- none. Writes nothing and takes no lock; the walk of a claim plays no part, so that this costs each namespace
-- a look, whatever else waits.
declare
  v_config outbox.config;
  v_next   int[];
  v_now    timestamptz := clock_timestamp();
  v_name   text;
  v_gates  int := outbox.gates(true);
begin
  if hold_reasons.namespaces is null or cardinality(hold_reasons.namespaces) > 1000 then
    perform outbox.bad_argument('hold_reasons', 'namespaces', 'is null or has more than 1000', 'Give the names of up to 1000 namespaces.');
  end if;
  select c.* into strict v_config from outbox.config as c;
  v_next := outbox.next_held(array(select generate_series(0, v_config.shard_count - 1)), v_config.shard_count);
  foreach v_name in array hold_reasons.namespaces loop
    perform outbox.check_key('hold_reasons', 'namespaces', v_name);
    namespace := v_name;
    next_due_at := (
      select p.visible_after from outbox.pending as p -- by pending_unripe_namespace
      where not p.ripe and p.ring = outbox.ring(v_name) and p.namespace = v_name and p.visible_after > v_now
      order by p.visible_after, p.id limit 1);
    reason := (
      select outbox.hold_reason(v.namespace, v.verdict, v.claimed, v.ceiling, v.quota, v_next, v_now)
      from outbox.claim_walk('', v_next, v_config.shard_count, 1, '', 0, v_now, 0, v_name, false, v_gates, v_config, null) as w
      cross join lateral unnest(w.visits) as v);
    return next;
  end loop;
end $$;
comment on function outbox.hold_reasons is 'Why claims would take nothing from some namespaces';
revoke all on function outbox.hold_reasons from public;
-- <<< sql/functions/hold_reasons.sql

-- >>> sql/functions/known_namespaces.sql
-- requires: bad_argument.sql
create or replace function outbox.known_namespaces(after text default null, max int default 100)
returns setof text
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- The next max namespaces with claimed messages, dead letters, a quota of their own or a pause, in the
-- order of their names, from behind a name on (null: from the beginning). Some of them have pending
-- messages too; for those see unripe_namespaces() and walk_namespaces().
begin
  if coalesce(known_namespaces.max, 0) not between 1 and 10000 then
    perform outbox.bad_argument('known_namespaces', 'max', 'is not 1 to 10000', 'Give the most namespaces to return.');
  end if;
  return query
  with recursive walk(n, namespace) as (
    select 0, coalesce(known_namespaces.after, '') collate "C"
    union all
    select w.n + 1, x.namespace
    from walk as w
    cross join lateral (
      select least(
        (select c.namespace from outbox.claimed as c where c.namespace > w.namespace order by c.namespace limit 1),
        (select s.namespace from outbox.settled as s
         where s.namespace > w.namespace and s.outcome = 'failed' order by s.namespace limit 1),
        (select n.namespace from outbox.namespace as n where n.namespace > w.namespace order by n.namespace limit 1),
        (select u.namespace from outbox.pause as u where u.namespace > w.namespace order by u.namespace limit 1)
      ) as namespace
    ) as x
    where x.namespace is not null and w.n < known_namespaces.max
  )
  select w.namespace::text from walk as w where w.n > 0;
end $$;
comment on function outbox.known_namespaces is 'Namespaces with claimed or failed messages or settings, page by page';
revoke all on function outbox.known_namespaces from public;
-- <<< sql/functions/known_namespaces.sql

-- >>> sql/functions/redrive.sql
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
-- <<< sql/functions/redrive.sql

-- >>> sql/functions/prune.sql
-- requires: bad_argument.sql span.sql lock_class.sql node_lock.sql fold_lock.sql redrive.sql gate.sql bound_transaction.sql
create or replace function outbox.prune(older_than interval default null, max int default 1000, failed boolean default false)
returns int
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
set jit = off
as $$
-- Deletes up to max messages that were done or cancelled (and failed, when asked) longer
-- ago than older_than (null: config.retention), with payloads and failures, the walks
-- of nodes that are gone, quotas that were lowered long ago, pauses that are over, and what was known of
-- destinations that nothing goes to any more. Their dispatch keys are
-- free again. Returns how many messages; call it until that is below max.
declare
  v_before  timestamptz;
  v_outcome text;
  v_ids     bigint[];
  v_tids    tid[];
  v_done    int := 0;
  v_now     timestamptz;
  v_edge    bigint; -- up to where holds have been looked at
  v_node    text;
  v_newest  outbox.walk; -- the walk of the node that claimed last
  v_kept    interval := (select c.retention from outbox.config as c);
  -- Spans, which are what counts: '-10 years 3607 days' compares as 7 days, and is less than none.
  v_age     interval := outbox.span(coalesce(prune.older_than, v_kept));
  v_invoker name := coalesce(nullif(current_setting('role'), 'none'), session_user); -- the role that is set, if one is
begin
  if extract(epoch from prune.older_than) < 0 then
    perform outbox.bad_argument('prune', 'older_than', 'is negative', 'Give an age, as in ''7 days''.');
  elsif coalesce(prune.max, 0) < 1 then
    perform outbox.bad_argument('prune', 'max', 'is null or below 1', 'Give the most messages to delete.');
  end if;
  if (prune.failed or v_age < outbox.span(v_kept))
     and not has_function_privilege(v_invoker, 'outbox.redrive(bigint[])', 'execute') then
    raise exception 'outbox.prune: only operators prune failed messages, or others before their retention of %', v_kept
      using errcode = 'insufficient_privilege', hint = 'outbox.grant_operator makes an operator.';
  end if;
  v_before := clock_timestamp() - v_age;
  foreach v_outcome in array case when prune.failed then '{done,cancelled,failed}' else '{done,cancelled}' end::text[] loop
    select array_agg(x.id), array_agg(x.tid) into v_ids, v_tids
    from (select s.id, s.ctid as tid from outbox.settled as s
          where s.outcome = v_outcome and s.settled_at <= v_before
          order by s.settled_at limit prune.max - v_done
          for update skip locked) as x;
    continue when v_ids is null;
    delete from outbox.failure as f where f.id = any (v_ids);
    delete from outbox.message as m where m.id = any (v_ids);
    delete from outbox.settled as s where s.ctid = any (v_tids);
    v_done := v_done + cardinality(v_ids);
    exit when v_done >= prune.max;
  end loop;
  delete from outbox.went_back as b where b.ctid = any (array(
    select w.ctid from outbox.went_back as w
    where w.at < clock_timestamp() - interval '30 days' limit 100 for update skip locked));
  delete from outbox.former_quota as q where q.ctid = any (array(
    select f.ctid from outbox.former_quota as f
    where f.until < clock_timestamp() - interval '30 days' limit 100 for update skip locked));
  delete from outbox.pause as p where p.ctid = any (array(
    select u.ctid from outbox.pause as u
    where u.until < clock_timestamp() - interval '1 day' limit 100 for update skip locked));
  perform outbox.bound_transaction(c.claim_idle_timeout) from outbox.config as c; -- left open, it would hold the locks that follow
  if pg_try_advisory_xact_lock(outbox.lock_class(), outbox.fold_lock()) then
    -- Not sooner: a message alone may wait for its backoff, and then fail again.
    delete from outbox.destination as d where d.ctid = any (array(
      select i.ctid from outbox.destination as i
      where i.state <> 'held' and i.shared is null
        and i.changed_at < clock_timestamp() - (select interval '1 day' + 2 * outbox.span(c.retry_cap) from outbox.config as c)
      order by i.changed_at limit 100));
    -- Held, and nothing has been there to be tried for a day, nor is out: mostly its tenant has left. Each call
    -- looks at some, behind those of the call before: of many that stay, as of paused tenants, none is in the way.
    -- Of one moment there are 500 at most, as one claim holds them.
    v_now := clock_timestamp();
    with turn as materialized (
      select i.ctid as tid, i as destination, i.namespace, i.task_queue, i.held_until from outbox.destination as i
      where i.state = 'held' and i.held_until < v_now - interval '1 day'
        and i.held_until > timestamptz 'epoch' + (select e.last_value from outbox.held_edge as e) * interval '1 microsecond'
      order by i.held_until fetch first 50 rows with ties
    ), idle as materialized (
      select t.* from turn as t
      where t.namespace is not null
        and (select p.id from outbox.pending as p
             where p.ripe and p.ring = outbox.ring(t.namespace) and p.namespace = t.namespace
               and p.route_ring = outbox.ring(t.task_queue) and p.task_queue = t.task_queue
             order by p.shard, p.visible_after, p.id limit 1) is null
        and (select p.id from outbox.pending as p
             where not p.ripe and p.ring = outbox.ring(t.namespace) and p.namespace = t.namespace
             order by p.visible_after, p.id limit 1) is null
    ), gone as (
      delete from outbox.destination as d
      where d.ctid = any (array(select i.tid from idle as i where outbox.gate(i.destination, v_now, true) = 1))
      returning d.*
    ), told as (
      insert into outbox.hold_event (at, event, namespace, task_queue, since, reason)
      select v_now, 'lifted', g.namespace, g.task_queue, coalesce(g.held_since, v_now), g.reason from gone as g
    )
    select case when count(*) < 50 then 1 else (extract(epoch from max(t.held_until)) * 1000000)::bigint end into v_edge from turn as t;
    if v_edge <> (select e.last_value from outbox.held_edge as e) then
      perform setval('outbox.held_edge', v_edge);
    end if;
    delete from outbox.hold_event as e where e.ctid = any (array(
      select o.ctid from (select x.ctid, x.at from outbox.hold_event as x order by x.id limit 500) as o
      where o.at < clock_timestamp() - interval '1 day'));
  end if;
  -- Nodes that are gone: a new one goes on at the newest walk of any, the others are of no
  -- use. Only under the node's lock: its claim would have to wait for this transaction.
  delete from outbox.node as n where n.node in (
    select o.node from outbox.node as o
    where o.heartbeat_at < clock_timestamp() - interval '1 day' limit 100 for update skip locked);
  select w.* into v_newest from outbox.walk as w order by w.claimed_at desc limit 1;
  for v_node in
    select w.node from outbox.walk as w
    where w.claimed_at < clock_timestamp() - interval '1 hour' and w.claimed_at < v_newest.claimed_at
    order by random() limit 100 -- so that those that stay, for the sake of a route, are in nobody's way
  loop
    if pg_try_advisory_xact_lock(outbox.lock_class(), outbox.node_lock(v_node)) then
      delete from outbox.route as r
      where r.ctid = any (array( -- ordered, which the primary key, that holds the node too, is not
              select x.ctid from outbox.route as x where x.node >= v_node and x.node <= v_node order by x.node limit 1000))
        and (r.served_at < clock_timestamp() - interval '30 days'
             -- Another node has a newer one: mostly the node that claimed last, so that comes first.
             -- All nodes there ever were may have one.
             or exists (select from outbox.route as l
                        where (l.namespace, l.node) >= (r.namespace, v_newest.node)
                          and (l.namespace, l.node) <= (r.namespace, v_newest.node) and l.served_at > r.served_at)
             or exists (select from outbox.route as l where l.namespace = r.namespace and l.served_at > r.served_at));
      if not exists (select from outbox.route as x where x.node >= v_node and x.node <= v_node order by x.node limit 1) then
        delete from outbox.walk as w where w.node = v_node;
      end if;
    end if;
  end loop;
  return v_done;
end $$;
comment on function outbox.prune is 'Deletes old settled messages; how many';
revoke all on function outbox.prune from public;
-- <<< sql/functions/prune.sql

-- >>> sql/functions/purge.sql
-- requires: bad_argument.sql bound_transaction.sql check_key.sql cancel_lock.sql lock_class.sql node_lock.sql fold_lock.sql settle_cancelled.sql
create or replace function outbox.purge(namespace text, max int default 1000, after bigint default 0)
returns table (purged bigint, next bigint, enqueued boolean)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
set jit = off
as $$
-- Deletes all there is of a namespace, in whatever state: messages with their payloads and
-- failures, and in the end its quota, its pauses and holds, and where claims stand among its routes.
-- What is pending or claimed is cancelled first: a delivery under way may go on, its settle is
-- lost. Nothing of this can be undone, and the dispatch keys are free again.
--
-- One call looks at up to 10 x max messages, in the order of their ids, those of others too (no
-- index has the settled ones by namespace), and deletes up to max. Commit, and call it again with next
-- as after, until next is null. Then enqueued says whether there are messages again, of a
-- producer that went on: stop that, and begin anew.
declare
  v_ids   bigint[];
  v_gone  bigint[];
  v_left  bigint[];
  v_nodes text[];
  v_some  bigint;
begin
  perform outbox.check_key('purge', 'namespace', purge.namespace);
  if coalesce(purge.max, 0) not between 1 and 100000 then
    perform outbox.bad_argument('purge', 'max', 'is null, below 1 or above 100000', 'Give the most messages to delete in this call.');
  elsif purge.after is null then
    perform outbox.bad_argument('purge', 'after', 'is null', 'Give 0 to begin, then what the last call returned as next.');
  end if;
  -- In one statement: by the next one others may have been deleted, and more ids would be behind it.
  with looked_at as materialized (
    select m.id, m.namespace from outbox.message as m where m.id > purge.after order by m.id limit 10 * purge.max
  )
  select array(select l.id from looked_at as l where l.namespace = purge.namespace collate "C" limit purge.max),
         (select max(l.id) from looked_at as l)
  into v_ids, next;
  purged := 0;
  if cardinality(v_ids) = purge.max then
    next := v_ids[purge.max];
  end if;
  if cardinality(v_ids) > 0 then
    perform outbox.cancel_lock();
    v_left := v_ids;
    loop
      perform outbox.settle_cancelled(v_left, clock_timestamp());
      v_gone := array(
        select s.id from unnest(v_left) as u(id)
        cross join lateral (select s.id from outbox.settled as s where s.id = u.id for update) as s);
      delete from outbox.failure as f where f.id = any (v_gone);
      delete from outbox.message as m where m.id = any (v_gone);
      get diagnostics v_some = row_count; -- without those that somebody else has deleted meanwhile
      purged := purged + v_some;
      delete from outbox.settled as s where s.id = any (v_gone);
      -- One that moved meanwhile, from claimed to pending or from failed to pending, is met again.
      v_left := array(
        select u.id from unnest(v_left) as u(id)
        cross join lateral (
          (select p.id from outbox.pending as p where p.id = u.id offset 0)
          union all
          (select c.id from outbox.claimed as c where c.id = u.id offset 0)
          union all
          (select s.id from outbox.settled as s where s.id = u.id offset 0)
          limit 1
        ) as x);
      exit when cardinality(v_left) = 0;
    end loop;
    -- what check() finds in no state at all
    delete from outbox.failure as f where f.id = any (v_ids);
    delete from outbox.message as m where m.id = any (v_ids);
    get diagnostics v_some = row_count;
    purged := purged + v_some;
  end if;
  if next is not null then
    return next;
    return;
  end if;
  -- The end. First what somebody may have changed in a transaction that he has left open: to wait for him must
  -- keep nobody else from anything. Then what is folded. Claims write to outbox.route under the lock of their node's
  -- name alone: so with that none of them has to wait for this transaction. With that lock, it waits for nothing more.
  perform outbox.bound_transaction(c.claim_idle_timeout) from outbox.config as c;
  delete from outbox.namespace as n where n.namespace = purge.namespace collate "C";
  delete from outbox.former_quota as q where q.namespace = purge.namespace collate "C"; -- nothing is claimed under it any more
  delete from outbox.pause as p where p.namespace = purge.namespace collate "C";
  perform pg_advisory_xact_lock(outbox.lock_class(), outbox.fold_lock());
  delete from outbox.report as r where r.namespace = purge.namespace collate "C";
  delete from outbox.destination as d where d.namespace = purge.namespace collate "C";
  update outbox.destination as d set failed_of = array_remove(d.failed_of, purge.namespace collate "C")
  where d.namespace is null and d.state <> 'well' and purge.namespace collate "C" = any (d.failed_of);
  delete from outbox.hold_event as e where e.namespace = purge.namespace collate "C";
  v_nodes := array(select r.node from outbox.route as r
                   where (r.namespace, r.node) >= (purge.namespace collate "C", '') and r.namespace <= purge.namespace collate "C"
                   order by r.namespace, r.node limit 1000);
  perform pg_advisory_xact_lock(outbox.lock_class(), n.lock)
  from (select distinct outbox.node_lock(u.node) as lock from unnest(v_nodes) as u(node) order by 1) as n;
  delete from outbox.route as r where r.namespace = purge.namespace collate "C" and r.node = any (v_nodes);
  enqueued := exists (select from outbox.pending as p
                      where p.ripe and p.ring = outbox.ring(purge.namespace) and p.namespace = purge.namespace collate "C"
                      order by p.route_ring limit 1)
    or exists (select from outbox.pending as p
               where not p.ripe and p.ring = outbox.ring(purge.namespace) and p.namespace = purge.namespace collate "C"
               order by p.visible_after limit 1)
    or exists (select from outbox.claimed as c
               where (c.namespace, c.claim_token) >= (purge.namespace collate "C", 0) and c.namespace <= purge.namespace collate "C"
               order by c.namespace, c.claim_token limit 1)
    or exists (select from outbox.settled as s
               where s.outcome = 'failed' and (s.namespace, s.id) >= (purge.namespace collate "C", 0) and s.namespace <= purge.namespace collate "C"
               order by s.namespace, s.id limit 1);
  return next;
end $$;
comment on function outbox.purge is 'Deletes all there is of a namespace, in chunks';
revoke all on function outbox.purge from public;
-- <<< sql/functions/purge.sql

-- >>> sql/functions/queue_text.sql
-- requires: walk_start.sql walk_namespaces.sql ceil_div.sql
create or replace function outbox.queue_text(namespace text, shard int, node text, config outbox.config)
returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
-- How far the walk of a node (null: of the last one that claimed from the shard) has to go to a namespace
-- with ripe messages: past how many others, and in about how many claims (INV-18). Counts up to
-- config.count_cap.
declare
  v_cursor text;
  v_batch  int;
  v_before bigint;
begin
  select w.namespace into v_cursor from outbox.walk_start(coalesce(queue_text.node, ''), array[queue_text.shard]) as w;
  v_batch := coalesce((select w.batch from outbox.walk as w
                       where w.node = queue_text.node or w.namespace = v_cursor
                       order by w.node = queue_text.node desc, w.claimed_at desc limit 1), 100);
  select w.n - 1 into v_before
  from outbox.walk_namespaces(v_cursor, false, v_cursor, (queue_text.config).count_cap, null) as w
  where w.namespace = queue_text.namespace;
  return case when v_before is null then format('more than %s namespaces come before it in the walk', (queue_text.config).count_cap)
              when v_before = 0 then 'it comes next in the walk'
              else format('%s before it in the walk, about %s of %s messages',
                          case v_before when 1 then '1 namespace comes' else v_before || ' namespaces come' end,
                          case when v_before < v_batch then '1 claim' else v_before / v_batch + 1 || ' claims' end, v_batch) end;
end $$;
comment on function outbox.queue_text is 'How far a walk has to go to a namespace, as text';
revoke all on function outbox.queue_text from public;
-- <<< sql/functions/queue_text.sql

-- >>> sql/functions/quota.sql
-- requires: check_key.sql
create or replace function outbox.quota(namespace text)
returns table (quota int, strict boolean, claimed bigint, known boolean)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
set jit = off
as $$
-- The quota in force for a namespace, its own or the default, and how much of it is used. known:
-- the namespace has a quota of its own, a pause, or messages that are pending, claimed or failed;
-- otherwise its name may be mistyped.
begin
  perform outbox.check_key('quota', 'namespace', quota.namespace);
  return query
  select coalesce(n.quota, g.default_quota), coalesce(n.strict, false),
         (select count(*) from outbox.claimed as c where c.namespace = quota.namespace collate "C"),
         n.namespace is not null
         or exists (select from outbox.pause as p where p.namespace = quota.namespace collate "C")
         or (select c.id from outbox.claimed as c -- bounds of pairs, here and below: no other index serves them
             where (c.namespace, c.claim_token) >= (quota.namespace collate "C", 0) and c.namespace <= quota.namespace collate "C"
             order by c.namespace, c.claim_token limit 1) is not null
         or (select p.id from outbox.pending as p
             where p.ripe and p.ring = outbox.ring(quota.namespace) and p.namespace = quota.namespace collate "C"
             order by p.route_ring limit 1) is not null
         or (select p.id from outbox.pending as p
             where not p.ripe and p.ring = outbox.ring(quota.namespace) and p.namespace = quota.namespace collate "C"
             order by p.visible_after limit 1) is not null
         or (select s.id from outbox.settled as s
             where s.outcome = 'failed' and (s.namespace, s.id) >= (quota.namespace collate "C", 0) and s.namespace <= quota.namespace collate "C"
             order by s.namespace, s.id limit 1) is not null
  from outbox.config as g
  left join outbox.namespace as n on n.namespace = quota.namespace collate "C";
end $$;
comment on function outbox.quota is 'The quota in force for a namespace, and how much of it is used';
revoke all on function outbox.quota from public;
-- <<< sql/functions/quota.sql

-- >>> sql/functions/resume.sql
create or replace function outbox.resume(namespace text, task_queue text default null)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Takes back the pause() with these very arguments; resume(null) that of everything. False: there
-- was none, or it was over.
declare
  v_now    timestamptz := clock_timestamp();
  v_paused boolean;
begin
  delete from outbox.pause as p
  where p.namespace is not distinct from resume.namespace collate "C" and p.task_queue is not distinct from resume.task_queue collate "C"
  returning coalesce(p.until > v_now, true) into v_paused;
  return coalesce(v_paused, false);
end $$;
comment on function outbox.resume is 'Takes a pause back';
revoke all on function outbox.resume from public;
-- <<< sql/functions/resume.sql

-- >>> sql/functions/retry_now.sql
-- requires: bad_argument.sql check_key.sql make_due.sql
create or replace function outbox.retry_now(dispatch_keys text[])
returns setof text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- Makes pending messages due now: those that wait for their backoff, or were enqueued with a
-- delay. Their attempts stay as they are. Returns the keys made due; those that are due
-- already, are not pending or do not exist are left out. A message that somebody has locked is
-- waited for. (In psql, a bare '{a,b}' would be taken for a namespace: write
-- retry_now(array['a', 'b']).)
declare
  v_now timestamptz := clock_timestamp();
  v_ids bigint[];
begin
  if retry_now.dispatch_keys is null then
    perform outbox.bad_argument('retry_now', 'dispatch_keys', 'is null', 'Give the keys of the messages to make due.');
  end if;
  v_ids := array(
    select m.id
    from (select distinct u.dispatch_key collate "C" as dispatch_key from unnest(retry_now.dispatch_keys) as u(dispatch_key)) as u
    cross join lateral (select m.id from outbox.message as m where m.dispatch_key = u.dispatch_key offset 0) as m);
  loop
    return query
    select (select m.dispatch_key::text from outbox.message as m where m.id = d.id)
    from outbox.make_due(v_ids, v_now) as d(id);
    -- One that went from claimed back to pending meanwhile is met again.
    exit when not exists (
      select from unnest(v_ids) as u(id)
      cross join lateral (
        select p.id from outbox.pending as p
        where p.id >= u.id and p.id <= u.id and (not p.ripe or p.visible_after > v_now) order by p.id limit 1
      ) as p);
  end loop;
end $$;
comment on function outbox.retry_now(text[]) is 'Makes pending messages due now; the keys made due';
revoke all on function outbox.retry_now(text[]) from public;

create or replace function outbox.retry_now(namespace text, max int default null)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
-- retry_now() for all that waits of a namespace, what is due first at the head, up to max (null:
-- all); returns how many. On a large backlog call it with a max until it returns less:
-- each transaction is short then.
declare
  v_now  timestamptz := clock_timestamp();
  v_ids  bigint[];
  v_last bigint := (select max(m.id) from outbox.message as m); -- what comes after this call stays
  v_done bigint := 0;
begin
  perform outbox.check_key('retry_now', 'namespace', retry_now.namespace);
  if retry_now.max < 1 then
    perform outbox.bad_argument('retry_now', 'max', 'is below 1', 'Give the most messages to make due, or null for all.');
  end if;
  loop -- what moves in between is met in the next turn
    v_ids := array(select p.id from outbox.pending as p -- by pending_unripe_namespace
                   where not p.ripe and p.ring = outbox.ring(retry_now.namespace) and p.namespace = retry_now.namespace collate "C"
                     and p.id <= v_last
                   order by p.visible_after, p.id limit retry_now.max - v_done);
    v_done := v_done + (select count(*) from outbox.make_due(v_ids, v_now) as d);
    exit when cardinality(v_ids) = 0 or v_done >= retry_now.max;
  end loop;
  return v_done;
end $$;
comment on function outbox.retry_now(text, int) is 'Makes all that waits of a namespace due now; how many';
revoke all on function outbox.retry_now(text, int) from public;
-- <<< sql/functions/retry_now.sql

-- >>> sql/functions/route_state.sql
-- requires: bad_argument.sql check_key.sql next_held.sql walk_routes.sql walk_lanes.sql pause_text.sql holds_of.sql
create or replace function outbox.route_state(namespace text, max int default 100)
returns table (task_queue text, due bigint, not_due bigint, next_due_at timestamptz, oldest_due_at timestamptz,
               oldest_key text, claimed bigint, failed bigint, reason text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- How the routes of a namespace are, up to max, those first whose oldest message has been due longest. Of
-- what is due, the counts of all routes together go no further than config.count_cap, and so of what is
-- not due, claimed, and failed: of each, that many messages are looked at. oldest_key is the dispatch key
-- of the oldest due message. reason: what holds the route back, a pause or a hold; null: nothing does.
declare
  v_now  timestamptz := clock_timestamp();
  v_cap  int;
  v_next int[];
begin
  perform outbox.check_key('route_state', 'namespace', route_state.namespace);
  if coalesce(route_state.max, 0) not between 1 and 1000 then
    perform outbox.bad_argument('route_state', 'max', 'is not 1 to 1000', 'Give the most routes to return.');
  end if;
  select outbox.next_held(array(select generate_series(0, c.shard_count - 1)), c.shard_count), c.count_cap into strict v_next, v_cap
  from outbox.config as c;
  return query
  with lane as materialized ( -- where ripe messages stand
    select r.task_queue, l.shard, l.head
    from outbox.walk_routes(route_state.namespace) as r
    cross join lateral outbox.walk_lanes(route_state.namespace, r.task_queue, 0, v_next) as l
    limit v_cap
  ), ripe as materialized ( -- what is due there
    select l.task_queue, p.id, p.visible_after
    from lane as l
    cross join lateral (
      select p.id, p.visible_after from outbox.pending as p
      where p.ripe and p.ring = outbox.ring(route_state.namespace) and p.namespace = route_state.namespace collate "C"
        and p.route_ring = outbox.ring(l.task_queue) and p.task_queue = l.task_queue and p.shard = l.shard
        and p.visible_after <= v_now
      order by p.visible_after, p.id limit v_cap
    ) as p
    limit v_cap
  ), unripe as materialized (
    select p.task_queue, p.id, p.visible_after from outbox.pending as p
    where not p.ripe and p.ring = outbox.ring(route_state.namespace) and p.namespace = route_state.namespace collate "C"
    order by p.visible_after, p.id limit v_cap
  ), seen(task_queue, what, id, at) as (
    select r.task_queue, 'due', r.id, r.visible_after from ripe as r
    union all
    select l.task_queue, 'due', null, l.head from lane as l where l.head <= v_now -- no count, but a time, where ripe ends early
    union all
    select u.task_queue, case when u.visible_after <= v_now then 'due' else 'not due' end, u.id, u.visible_after from unripe as u
    union all
    (select c.task_queue, 'claimed', c.id, null from outbox.claimed as c
     where (c.namespace, c.claim_token) >= (route_state.namespace collate "C", 0)
       and (c.namespace, c.claim_token) <= (route_state.namespace collate "C", 9223372036854775807)
     order by c.namespace, c.claim_token limit v_cap)
    union all
    (select s.task_queue, 'failed', s.id, null from outbox.settled as s
     where s.outcome = 'failed' and (s.namespace, s.id) >= (route_state.namespace collate "C", 0)
       and (s.namespace, s.id) <= (route_state.namespace collate "C", 9223372036854775807)
     order by s.namespace desc, s.id desc limit v_cap)
    union all
    (select u.task_queue, 'paused', null, null from outbox.pause as u
     where u.namespace = route_state.namespace collate "C" and u.task_queue is not null and coalesce(u.until > v_now, true)
     order by u.task_queue limit v_cap)
    union all
    (select d.task_queue, 'held', null, null from outbox.destination as d
     where d.namespace = route_state.namespace collate "C" and d.state = 'held' order by d.task_queue limit v_cap)
  ), route as materialized (
    select s.task_queue, count(s.id) filter (where s.what = 'due') as due, count(*) filter (where s.what = 'not due') as not_due,
           min(s.at) filter (where s.what = 'not due') as next_due_at, min(s.at) filter (where s.what = 'due') as oldest_due_at,
           (array_agg(s.id order by s.at, s.id) filter (where s.what = 'due' and s.id is not null))[1] as oldest_id,
           count(*) filter (where s.what = 'claimed') as claimed, count(*) filter (where s.what = 'failed') as failed
    from seen as s
    group by s.task_queue
    order by min(s.at) filter (where s.what = 'due'), s.task_queue limit route_state.max
  )
  select r.task_queue::text, r.due, r.not_due, r.next_due_at, r.oldest_due_at,
         (select m.dispatch_key::text from outbox.message as m where m.id = r.oldest_id),
         r.claimed, r.failed,
         nullif(concat_ws('; ',
           (select outbox.pause_text(u, v_now) from outbox.pause as u
            where (u.task_queue = r.task_queue or u.task_queue is null) and (u.namespace = route_state.namespace collate "C" or u.namespace is null)
              and coalesce(u.until > v_now, true)
            order by u.namespace nulls last, u.task_queue nulls last limit 1),
           (select h.reason from outbox.holds_of(route_state.namespace, r.task_queue, v_now) as h)), '')
  from route as r
  order by r.oldest_due_at, r.task_queue;
end $$;
comment on function outbox.route_state is 'How the routes of a namespace are, those first that have waited longest';
revoke all on function outbox.route_state from public;
-- <<< sql/functions/route_state.sql

-- >>> sql/functions/survey.sql
-- requires: unowned_shards.sql
create or replace function outbox.survey()
returns table (due bigint, unripe bigint, claimed bigint, failed bigint, exact_to int, expired bigint,
               failing int, held int, recovering int, pauses int, shard_count int, unowned int, held_of_all int)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
set jit = off
as $$
-- The outbox as a whole, in one row: how many messages are due, wait for their time (unripe), are
-- claimed, and have failed; leases that have expired and that no rescue has taken back; destinations
-- by state, and how many of those held are routes of all; pauses in force; and how many of the shards no live node owns.
--
-- Counts are exact up to exact_to, ten times config.count_cap; there the counting of pauses, leases
-- and destinations stops. More messages than that are an estimate, by what the server's
-- statistics say of the tables at the moment, and of indexes at their last vacuum or analyze. So are due, unripe and
-- claimed ones where many dead rows stand in a table, behind a transaction that holds vacuum back:
-- to count would be to read these.
declare
  v_now    timestamptz := clock_timestamp();
  v_most   bigint;
  v_total  int;
  v_rows   bigint := greatest(pg_stat_get_live_tuples('outbox.pending'::regclass), 0);
  v_ripe   bigint;
  v_came   bigint; -- have come due and are not ripe yet
begin
  select 10::bigint * c.count_cap, c.shard_count into strict v_most, v_total from outbox.config as c;
  exact_to := least(v_most, 2147483647);
  shard_count := v_total;
  unowned := cardinality(outbox.unowned_shards());

  if pg_stat_get_dead_tuples('outbox.pending'::regclass) > 10 * v_most then
    unripe := (select greatest(x.reltuples, 0) from pg_class as x where x.oid = 'outbox.pending_unripe_due'::regclass);
    due := greatest(v_rows - unripe, 0);
  else
    select count(*) filter (where x.visible_after > v_now), count(*) filter (where x.visible_after <= v_now) into unripe, v_came
    from (select p.visible_after from outbox.pending as p where not p.ripe
          order by p.ring, p.namespace, p.visible_after, p.id limit v_most) as x;
    if unripe + v_came >= v_most then -- the oldest of each shard: by pending_unripe_due
      v_came := (select count(*)
                 from (select from generate_series(0, v_total - 1) as s(shard)
                       cross join lateral (
                         select from outbox.pending as p
                         where not p.ripe and p.shard = s.shard and p.visible_after <= v_now
                         order by p.shard, p.visible_after, p.id limit v_most
                       ) as p
                       limit v_most) as x);
      unripe := greatest((select x.reltuples from pg_class as x where x.oid = 'outbox.pending_unripe_due'::regclass)::bigint - v_came,
                         v_most - v_came, 0);
    end if;
    v_ripe := (select count(*)
               from (select from outbox.pending as p where p.ripe
                     order by p.ring, p.namespace, p.route_ring, p.task_queue, p.shard, p.visible_after, p.id limit v_most) as x);
    due := v_came + case when v_ripe < v_most then v_ripe else greatest(v_rows - unripe - v_came, v_ripe) end;
  end if;

  v_rows := greatest(pg_stat_get_live_tuples('outbox.claimed'::regclass), 0);
  if pg_stat_get_dead_tuples('outbox.claimed'::regclass) > 10 * v_most then
    claimed := v_rows;
    expired := null;
  else
    claimed := (select count(*) from (select from outbox.claimed as c order by c.claim_token limit v_most) as x);
    claimed := case when claimed < v_most then claimed else greatest(v_rows, claimed) end;
    expired := (select count(*) from (select from outbox.claimed as c where c.lease_until < v_now
                                      order by c.lease_until limit v_most) as x);
  end if;

  failed := (select count(*) from (select from outbox.settled as s where s.outcome = 'failed'
                                   order by s.namespace, s.id limit v_most) as x);
  if failed >= v_most then
    failed := greatest(failed, (select x.reltuples from pg_class as x where x.oid = 'outbox.settled_failed'::regclass)::bigint);
  end if;

  select count(*) filter (where x.state = 'failing'), count(*) filter (where x.state = 'held'), count(*) filter (where x.state = 'recovering')
  into failing, held, recovering
  from (select d.state from outbox.destination as d where d.state <> 'well' order by d.task_queue, d.namespace limit v_most) as x;
  held_of_all := (select count(*) from (select from outbox.destination as d where d.state = 'held' and d.namespace is null
                                        order by d.task_queue limit v_most) as x);
  pauses := (select count(*) from (select from outbox.pause as p where coalesce(p.until > v_now, true) limit v_most) as x);
  return next;
end $$;
comment on function outbox.survey is 'The outbox as a whole: messages by state, held destinations, pauses, shards without an owner';
revoke all on function outbox.survey from public;
-- <<< sql/functions/survey.sql

-- >>> sql/functions/survey_namespaces.sql
-- requires: bad_argument.sql check_key.sql namespace_paused.sql
create or replace function outbox.survey_namespaces(
  after text default null, size int default 100, names text[] default null, max_time interval default '1 s')
returns table (namespace text, oldest_due_at timestamptz, due bigint, unripe bigint, claimed bigint, failed bigint,
               quota int, strict boolean, paused boolean, partial boolean, at timestamptz,
               free_due_at timestamptz)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
set jit = off
as $$
-- The next size namespaces that have pending messages, in the order of the ring that claims walk: from
-- behind after, or from its beginning. A call ends early where max_time is over, but never
-- without a row if there is one: so a call that returns none has come to the end of the ring. With
-- names the namespaces are these, in the order given, whether or not they have messages.
--
-- All counts stop at config.count_cap. due and unripe together are what is pending: unripe waits for
-- its time, due is what claims take, or make ripe first. oldest_due_at is exact where partial is
-- false; else there are more than count_cap lanes (a route on a shard), and an older message may
-- stand in one of the others. free_due_at is the same of the messages whose destination is not held; what has
-- come due and is not ripe yet counts there. at is the instant that all is judged by.
--
-- What a namespace costs is bounded by count_cap, whatever else there is: two descents to find it, a
-- read of each index that has its rows, and, where more are ripe than count_cap, a descent for each
-- lane; and while a destination is held, two look-ups for each route that these have come to. All of a
-- call is one snapshot, which holds vacuum back for max_time at most.
declare
  v_now       timestamptz := clock_timestamp();
  v_config    outbox.config;
  v_ring      int := -2147483648; -- how far the walk is
  v_name      text collate "C" := '';
  v_ripe_ring int := -2147483648; -- the next namespace with ripe messages, once it is beyond the walk; null: none
  v_ripe      text collate "C" := '';
  v_wait_ring int := -2147483648; -- and with others
  v_wait      text collate "C" := '';
  v_n         int := 0;
  v_ripe_n    bigint;
  v_lanes     int;
  v_held      boolean := exists (select from outbox.destination as d where d.state = 'held');
begin
  select c.* into strict v_config from outbox.config as c;
  if survey_namespaces.size is null or survey_namespaces.size < 1 then
    perform outbox.bad_argument('survey_namespaces', 'size', 'is null or below 1', 'Give the most namespaces to return.');
  elsif survey_namespaces.max_time is null then
    perform outbox.bad_argument('survey_namespaces', 'max_time', 'is null', 'Give a time; 0 is for one namespace.');
  elsif survey_namespaces.after is not null then
    perform outbox.check_key('survey_namespaces', 'after', survey_namespaces.after);
    v_ring := outbox.ring(survey_namespaces.after);
    v_name := survey_namespaces.after;
  end if;
  at := v_now;
  loop
    v_n := v_n + 1;
    if survey_namespaces.names is not null then
      exit when v_n > cardinality(survey_namespaces.names);
      v_name := survey_namespaces.names[v_n];
      perform outbox.check_key('survey_namespaces', 'names', v_name);
      v_ring := outbox.ring(v_name);
    else
      exit when v_n > survey_namespaces.size or v_n > 1 and clock_timestamp() - v_now >= survey_namespaces.max_time;
      if (v_ripe_ring, v_ripe) <= (v_ring, v_name) then -- by pending_ripe
        select p.ring, p.namespace into v_ripe_ring, v_ripe from outbox.pending as p
        where p.ripe and (p.ring, p.namespace) > (v_ring, v_name)
        order by p.ring, p.namespace, p.route_ring, p.task_queue, p.shard, p.visible_after, p.id limit 1;
      end if;
      if (v_wait_ring, v_wait) <= (v_ring, v_name) then -- by pending_unripe_namespace
        select p.ring, p.namespace into v_wait_ring, v_wait from outbox.pending as p
        where not p.ripe and (p.ring, p.namespace) > (v_ring, v_name)
        order by p.ring, p.namespace, p.visible_after, p.id limit 1;
      end if;
      exit when v_ripe is null and v_wait is null;
      if v_wait is null or (v_ripe_ring, v_ripe) <= (v_wait_ring, v_wait) then
        v_ring := v_ripe_ring;
        v_name := v_ripe;
      else
        v_ring := v_wait_ring;
        v_name := v_wait;
      end if;
    end if;
    namespace := v_name;

    select coalesce(sum(r.n), 0), coalesce(sum(r.due), 0), min(r.head), min(r.head) filter (where not h.held)
    into v_ripe_n, due, oldest_due_at, free_due_at
    from (select x.task_queue, count(*) as n, count(*) filter (where x.visible_after <= v_now) as due, min(x.visible_after) as head
          from (select p.task_queue, p.visible_after from outbox.pending as p
                where p.ripe and p.ring = v_ring and p.namespace = v_name
                order by p.route_ring, p.task_queue, p.shard, p.visible_after, p.id limit v_config.count_cap) as x
          group by x.task_queue) as r
    cross join lateral (
      select v_held and (exists (select from outbox.destination as d where d.state = 'held' and d.task_queue = r.task_queue and d.namespace = v_name)
                         or exists (select from outbox.destination as d where d.state = 'held' and d.task_queue = r.task_queue and d.namespace is null)) as held
    ) as h;
    v_lanes := 0;
    if v_ripe_n >= v_config.count_cap then
      with recursive lane(n, route_ring, task_queue, shard, head) as (
        (select 1, p.route_ring, p.task_queue, p.shard, p.visible_after from outbox.pending as p
         where p.ripe and p.ring = v_ring and p.namespace = v_name
         order by p.route_ring, p.task_queue, p.shard, p.visible_after, p.id limit 1)
        union all
        select l.n + 1, x.route_ring, x.task_queue, x.shard, x.visible_after
        from lane as l
        cross join lateral (
          select p.route_ring, p.task_queue, p.shard, p.visible_after from outbox.pending as p
          where p.ripe and p.ring = v_ring and p.namespace = v_name
            and (p.route_ring, p.task_queue, p.shard) > (l.route_ring, l.task_queue, l.shard)
          order by p.route_ring, p.task_queue, p.shard, p.visible_after, p.id limit 1
        ) as x
        where l.n < v_config.count_cap
      )
      select coalesce(sum(r.n), 0), min(r.head), min(r.head) filter (where not h.held) into v_lanes, oldest_due_at, free_due_at
      from (select l.task_queue, count(*) as n, min(l.head) as head from lane as l group by l.task_queue) as r
      cross join lateral (
        select v_held and (exists (select from outbox.destination as d where d.state = 'held' and d.task_queue = r.task_queue and d.namespace = v_name)
                           or exists (select from outbox.destination as d where d.state = 'held' and d.task_queue = r.task_queue and d.namespace is null)) as held
      ) as h;
    end if;
    partial := v_lanes >= v_config.count_cap;

    select count(*) filter (where x.visible_after > v_now), least(due + count(*) filter (where x.visible_after <= v_now), v_config.count_cap),
           least(oldest_due_at, min(x.visible_after)), least(free_due_at, min(x.visible_after))
    into unripe, due, oldest_due_at, free_due_at
    from (select p.visible_after from outbox.pending as p
          where not p.ripe and p.ring = v_ring and p.namespace = v_name
          order by p.visible_after, p.id limit v_config.count_cap) as x;
    if oldest_due_at > v_now then
      oldest_due_at := null;
    end if;
    if free_due_at > v_now then
      free_due_at := null;
    end if;

    claimed := (select count(*) from (select from outbox.claimed as c
                                      where (c.namespace, c.claim_token) >= (v_name, 0)
                                        and (c.namespace, c.claim_token) <= (v_name, 9223372036854775807)
                                      order by c.namespace, c.claim_token limit v_config.count_cap) as x);
    failed := (select count(*) from (select from outbox.settled as s
                                     where s.outcome = 'failed' and (s.namespace, s.id) >= (v_name, 0)
                                       and (s.namespace, s.id) <= (v_name, 9223372036854775807)
                                     order by s.namespace, s.id limit v_config.count_cap) as x);
    select n.quota, n.strict into quota, "strict" from outbox.namespace as n where n.namespace = v_name;
    quota := coalesce(quota, v_config.default_quota);
    "strict" := coalesce("strict", false);
    paused := (select x.paused from outbox.namespace_paused(v_name, v_now) as x);
    return next;
  end loop;
end $$;
comment on function outbox.survey_namespaces is 'Namespaces with pending messages, page by page around the ring: how many, and since when';
revoke all on function outbox.survey_namespaces from public;
-- <<< sql/functions/survey_namespaces.sql

-- >>> sql/functions/why.sql
-- requires: is_live.sql queue_text.sql claim_locks.sql suspect_text.sql live_shards.sql check_key.sql next_held.sql claim_walk.sql hold_reason.sql time_text.sql pause_text.sql holds_of.sql
create or replace function outbox.why(dispatch_key text)
returns table (id bigint, namespace text, task_queue text, shard int, state text, attempts int,
               reason text, next_at timestamptz, failures text[])
language plpgsql security definer
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
-- Where one message stands: its state, attempts, what holds it back, when it can go next
-- (null: never by itself; a pause or a hold without an end, its namespace at its ceiling), and its last failures.
-- Always one row, also for a key that no message has.
declare
  v_now     timestamptz := clock_timestamp();
  v_config  outbox.config;
  v_pending outbox.pending;
  v_claimed outbox.claimed;
  v_settled outbox.settled;
  v_next    int[];
  v_hold    text;
  v_verdict text;
  v_paused  timestamptz; -- until when
  v_held    record; -- by its destination
  v_nodes   bigint;
  v_owners  text;
  v_owner   text; -- the first of them
begin
  perform outbox.check_key('why', 'dispatch_key', why.dispatch_key);
  select c.* into strict v_config from outbox.config as c;
  select m.id, m.namespace, m.task_queue into id, namespace, task_queue
  from outbox.message as m where m.dispatch_key = why.dispatch_key collate "C";
  if not found then
    state := 'unknown';
    reason := 'no message has this key: it was never enqueued, its transaction has not committed or was rolled back, or it was pruned';
    return next;
    return;
  end if;
  select array_agg(format('attempt %s at %s on %s: %s', x.attempt, outbox.time_text(x.at, v_now), x.node, x.error)) into failures
  from (select f.* from outbox.failure as f where f.id = why.id order by f.at desc limit 5) as x;

  select p.* into v_pending from outbox.pending as p where p.id = why.id;
  if found then
    state := 'pending';
    attempts := v_pending.attempt;
    shard := v_pending.shard;
    select h.* into v_held from outbox.holds_of(v_pending.namespace, v_pending.task_queue, v_now) as h;
    v_next := outbox.next_held(array(select generate_series(0, v_config.shard_count - 1)), v_config.shard_count);
    select v.verdict, outbox.hold_reason(v.namespace, v.verdict, v.claimed, v.ceiling, v.quota, v_next, v_now) into v_verdict, v_hold
    from outbox.claim_walk('', v_next, v_config.shard_count, 1, '', 0, v_now, 0, v_pending.namespace, false, 0, v_config, null) as w
    cross join lateral unnest(w.visits) as v
    where v.verdict in ('paused', 'ceiling');
    v_hold := nullif(concat_ws('; ', v_hold,
      (select outbox.pause_text(p, v_now) from outbox.pause as p
       where p.task_queue = v_pending.task_queue and (p.namespace = v_pending.namespace or p.namespace is null) and coalesce(p.until > v_now, true)
       order by p.namespace nulls last limit 1)), '');
    select max(coalesce(p.until, 'infinity')) into v_paused
    from (select u.until from outbox.pause as u
          where u.namespace = v_pending.namespace and (u.task_queue = v_pending.task_queue or u.task_queue is null) and coalesce(u.until > v_now, true)
          union all
          select u.until from outbox.pause as u
          where u.namespace is null and (u.task_queue = v_pending.task_queue or u.task_queue is null) and coalesce(u.until > v_now, true)) as p;
    next_at := case when v_verdict is distinct from 'ceiling'
                    then nullif(greatest(v_pending.visible_after, v_held.until, v_paused), 'infinity') end;
    v_hold := nullif(concat_ws('; ', v_hold, v_held.reason), '');
    select string_agg(o.node, ', ' order by o.node), min(o.node) into v_owners, v_owner from outbox.live_shards(v_now) as o where o.shard = v_pending.shard;
    select count(*) into v_nodes from outbox.node as n
    where outbox.is_live(n.heartbeat_at, v_now, v_config.node_lapse);
    reason := concat_ws('; ',
      case when v_pending.visible_after > v_now
           then format('%s until %s', case when v_pending.attempt > 0 then 'waits after a failed attempt' else 'delayed' end,
                       outbox.time_text(v_pending.visible_after, v_now)) end,
      v_hold,
      case when v_nodes > 0 and v_owners is null then format('no live node owns its shard %s', v_pending.shard) end,
      (select format('nothing is claimed from its shard %s: that is locked by %s, which is not claiming; to end it: %s',
                     v_pending.shard, l.session, l.remedy)
       from outbox.claim_locks() as l where l.key = v_pending.shard and l.stray limit 1));
    if reason = '' then
      reason := format('due: %s, on %s',
        case when v_pending.ripe then outbox.queue_text(v_pending.namespace, v_pending.shard, v_owner, v_config)
             else 'the next claim from its shard makes it ripe' end,
        coalesce(v_owners, 'whichever sweep claims its shard next; no node sends heartbeats'))
        || coalesce((select format('; a claim of %s holds its shard %s until its transaction ends', l.session, v_pending.shard)
                     from outbox.claim_locks() as l where l.key = v_pending.shard limit 1), '');
    end if;
    reason := reason || outbox.suspect_text(v_pending.suspect);
    return next;
    return;
  end if;

  select c.* into v_claimed from outbox.claimed as c where c.id = why.id;
  if found then
    state := 'claimed';
    attempts := v_claimed.attempt;
    shard := v_claimed.shard;
    next_at := v_claimed.lease_until;
    reason := format('claimed by %s since %s, ', v_claimed.claimed_by, outbox.time_text(v_claimed.claimed_at, v_now))
      || case when v_claimed.lease_until > v_now
              then format('lease until %s', outbox.time_text(v_claimed.lease_until, v_now))
              else format('lease ran out at %s: the next rescue takes it back', outbox.time_text(v_claimed.lease_until, v_now)) end
      || outbox.suspect_text(v_claimed.suspect);
    return next;
    return;
  end if;

  select s.* into v_settled from outbox.settled as s where s.id = why.id;
  state := coalesce(v_settled.outcome, 'moving');
  attempts := v_settled.attempts;
  shard := v_settled.shard;
  reason := case when v_settled.id is null then 'changed its state during this call: ask again'
                 else format('%s at %s by %s', v_settled.outcome, outbox.time_text(v_settled.settled_at, v_now),
                             v_settled.settled_by)
                      || coalesce(': ' || v_settled.error, '')
                      || case when v_settled.outcome <> 'done' then '; redrive() brings it back' else '' end end;
  return next;
end $$;
comment on function outbox.why is 'Where one message stands, and what holds it back';
revoke all on function outbox.why from public;
-- <<< sql/functions/why.sql

-- Those rights again, on what bears the names now.
do $rights$
declare
  v_statement text;
begin
  if coalesce(pg_catalog.current_setting('outbox.rights', true), '') = '' then
    raise exception 'the rights on the former functions are not known any more'
      using errcode = 'OB005', hint = 'Run each migration as one transaction: psql -1.';
  end if;
  for v_statement in
    with was as (
      select r.*
      from pg_catalog.jsonb_to_recordset(pg_catalog.current_setting('outbox.rights')::pg_catalog.jsonb)
           as r (kind text, name text, args text, col text, grantee oid, privilege text, grantable boolean)
    ), now as (
      select p.oid, p.proname::text as name, pg_catalog.oidvectortypes(p.proargtypes) as args
      from pg_catalog.pg_proc as p
      where p.pronamespace = 'outbox'::pg_catalog.regnamespace
    ), old as (
      select w.name, w.args, exists (select from now as n where n.name = w.name and n.args = w.args) as stays
      from was as w where w.kind = 'function' group by w.name, w.args
    ), new as (
      select n.oid, n.name, n.args, exists (select from old as o where o.name = n.name and o.args = n.args) as stays
      from now as n
    )
    select pg_catalog.format('grant %s on routine %s to %s%s', w.privilege, n.oid::pg_catalog.regprocedure,
                             w.grantee::pg_catalog.regrole, case when w.grantable then ' with grant option' end)
    from was as w
    join old as o on o.name = w.name and o.args = w.args
    join new as n on n.name = w.name
    where w.kind = 'function' and w.grantee is not null
      and case when n.args = w.args then true
               when n.stays then not o.stays and not exists (select from new as m where m.name = n.name and not m.stays)
               else not o.stays or not exists (select from old as q where q.name = n.name and not q.stays) end
    union
    select pg_catalog.format('grant %s%s on %s to %s%s', w.privilege, '(' || pg_catalog.quote_ident(w.col) || ')', c.oid::pg_catalog.regclass,
                             case when w.grantee = 0 then 'public' else w.grantee::pg_catalog.regrole::text end,
                             case when w.grantable then ' with grant option' end)
    from was as w
    join pg_catalog.pg_class as c on c.relnamespace = 'outbox'::pg_catalog.regnamespace and c.relname = w.name
    where w.kind = 'view'
      and (w.col is null or exists (select from pg_catalog.pg_attribute as t where t.attrelid = c.oid and t.attname = w.col and not t.attisdropped))
  loop
    execute v_statement;
  end loop;
end $rights$;

-- <<< snapshot

-- claim_read() returns arrays of plain values.
drop type outbox.candidate;

insert into outbox.migration (version) values (17);
