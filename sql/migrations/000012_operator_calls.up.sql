set local search_path = pg_catalog, pg_temp;

-- >>> snapshot

-- >>> sql/functions/stray_keys.sql
-- requires: prepared_locks.sql
create or replace function outbox.stray_keys(keys int[])
returns int[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Which of these locks of claims are held by somebody who is not claiming: any role can take an
-- advisory lock. Claims, heartbeats and cancels read outbox.config before they lock anything, so
-- their transactions have a lock on that table. Strangers have none, unless they want to pose as
-- a claim. A transaction that was prepared with a claim in it is a stranger from
-- config.claim_idle_timeout on: nobody may ever end it.
--
-- One look at pg_locks is not of one moment: it may find the advisory lock of a claim and not
-- its lock on the table, as a claim begins or ends. Hence three looks, 10 ms apart: a stranger
-- has the lock in all of them, in the same transaction or in none.
declare
  v_locks  text[];  -- key and holder
  v_claims text[];  -- holders that claim
begin
  for look in 1 .. 3 loop
    with l as materialized (
      select l.* from pg_locks as l
      where l.granted and l.database = (select d.oid from pg_database as d where d.datname = current_database())
    )
    select array(select l.objid::bigint::bit(32)::int || ' ' || l.virtualtransaction from l
                 where l.locktype = 'advisory' and l.classid = 'outbox.pending'::regclass and l.objsubid = 2
                   and l.objid::bigint::bit(32)::int = any (stray_keys.keys)
                   and (look = 1 or l.objid::bigint::bit(32)::int || ' ' || l.virtualtransaction = any (v_locks))),
           array(select l.virtualtransaction from l
                 where l.locktype = 'relation' and l.relation = 'outbox.config'::regclass
                   and (l.pid is not null
                        or exists (select from outbox.prepared_locks() as p
                                   where p.virtualtransaction = l.virtualtransaction
                                     and p.prepared > clock_timestamp() - (select c.claim_idle_timeout from outbox.config as c))))
    into v_locks, v_claims;
    v_locks := array(select u.lock from unnest(v_locks) as u(lock) where split_part(u.lock, ' ', 2) <> all (v_claims));
    exit when v_locks = '{}';
    if look < 3 then
      perform pg_sleep(0.01);
    end if;
  end loop;
  return array(select distinct split_part(u.lock, ' ', 1)::int from unnest(v_locks) as u(lock) order by 1);
end $$;
comment on function outbox.stray_keys is 'Which locks of claims are held by somebody who is not claiming';
revoke all on function outbox.stray_keys from public;
-- <<< sql/functions/stray_keys.sql

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
  elsif (failed.after_at is null) <> (failed.after_id is null) then
    perform outbox.bad_argument('failed', 'after_id', 'or after_at is null, and the other is not', 'Give failed_at and id of the last row, or neither.');
  end if;
  if failed.in_namespace is not null and failed.newest then -- by settled_failed, with bounds of pairs, for no other index to come into question
    v_ids := array(select s.id from outbox.settled as s
                   where s.outcome = 'failed'
                     and (s.namespace, s.id) >= (failed.in_namespace, 0)
                     and (s.namespace, s.id) < (failed.in_namespace, coalesce(failed.after_id, 9223372036854775807))
                   order by s.namespace desc, s.id desc limit failed.max);
  elsif failed.in_namespace is not null then
    v_ids := array(select s.id from outbox.settled as s
                   where s.outcome = 'failed'
                     and (s.namespace, s.id) > (failed.in_namespace, coalesce(failed.after_id, 0))
                     and (s.namespace, s.id) <= (failed.in_namespace, 9223372036854775807)
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

-- >>> sql/functions/make_due.sql
create or replace function outbox.make_due(ids bigint[], now timestamptz)
returns setof bigint
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- Makes those of ids due that are pending and wait for their time; returns which. What came due
-- and no claim has made ripe yet keeps its time, and so its place before those that follow.
-- What is locked, by a claim that makes it ripe, say, is waited for, in the order of the ids.
declare
  v_tids tid[] := array(
    select p.tid
    from (select u.id from unnest(make_due.ids) as u(id) order by u.id) as u
    cross join lateral (
      select p.ctid as tid from outbox.pending as p
      where p.id = u.id and (not p.ripe or p.visible_after > make_due.now) for update
    ) as p);
begin
  return query
  update outbox.pending as p set ripe = true, visible_after = least(p.visible_after, make_due.now)
  where p.ctid = any (v_tids)
  returning p.id;
end $$;
comment on function outbox.make_due is 'Makes pending messages that wait due; which';
revoke all on function outbox.make_due from public;
-- <<< sql/functions/make_due.sql

-- >>> sql/functions/purge.sql
-- requires: bad_argument.sql bound_transaction.sql check_key.sql cancel_lock.sql lock_class.sql node_lock.sql settle_cancelled.sql
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
-- failures, and in the end its quota, its pauses, and where claims stand among its routes.
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
  v_ids := array(
    select m.id
    from (select m.id, m.namespace from outbox.message as m where m.id > purge.after order by m.id limit 10 * purge.max) as m
    where m.namespace = purge.namespace limit purge.max);
  purged := 0;
  if cardinality(v_ids) = purge.max then
    next := v_ids[purge.max];
  else
    next := (select max(m.id) from (select m.id from outbox.message as m where m.id > purge.after order by m.id limit 10 * purge.max) as m);
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
  -- The end. Claims write to outbox.route under the lock of their node's name alone: so with that
  -- none of them has to wait for this transaction, and this one has locked nothing else yet.
  perform outbox.bound_transaction(c.claim_idle_timeout) from outbox.config as c;
  v_nodes := array(select r.node from outbox.route as r
                   where (r.namespace, r.node) >= (purge.namespace, '') and r.namespace <= purge.namespace
                   order by r.namespace, r.node limit 1000);
  perform pg_advisory_xact_lock(outbox.lock_class(), n.lock)
  from (select distinct outbox.node_lock(u.node) as lock from unnest(v_nodes) as u(node) order by 1) as n;
  delete from outbox.route as r where r.namespace = purge.namespace and r.node = any (v_nodes);
  delete from outbox.namespace as n where n.namespace = purge.namespace;
  delete from outbox.pause as p where p.namespace = purge.namespace;
  enqueued := exists (select from outbox.pending as p
                      where p.ripe and p.ring = outbox.ring(purge.namespace) and p.namespace = purge.namespace
                      order by p.route_ring limit 1)
    or exists (select from outbox.pending as p
               where not p.ripe and p.ring = outbox.ring(purge.namespace) and p.namespace = purge.namespace
               order by p.visible_after limit 1)
    or exists (select from outbox.claimed as c
               where (c.namespace, c.claim_token) >= (purge.namespace, 0) and c.namespace <= purge.namespace
               order by c.namespace, c.claim_token limit 1)
    or exists (select from outbox.settled as s
               where s.outcome = 'failed' and (s.namespace, s.id) >= (purge.namespace, 0) and s.namespace <= purge.namespace
               order by s.namespace, s.id limit 1);
  return next;
end $$;
comment on function outbox.purge is 'Deletes all there is of a namespace, in chunks';
revoke all on function outbox.purge from public;
-- <<< sql/functions/purge.sql

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
    from (select distinct u.dispatch_key from unnest(retry_now.dispatch_keys) as u(dispatch_key)) as u
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
                   where not p.ripe and p.ring = outbox.ring(retry_now.namespace) and p.namespace = retry_now.namespace
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

-- >>> sql/functions/grants.sql
-- requires: bad_argument.sql
create or replace function outbox.role_calls(kind text)
returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  -- The functions that a producer may call, that a worker may besides, and an operator besides
  -- these: what the grant_ functions give, and the revoke_ functions take back.
  select case role_calls.kind
    when 'producer' then 'outbox.enqueue(text, text, text, bytea, text, jsonb, interval), '
      'outbox.enqueue(text, text, text, text, text, jsonb, interval), outbox.enqueue_json, outbox.enqueue_batch, '
      'outbox.enqueue_texts'
    when 'worker' then 'outbox.claim_fair, outbox.complete, outbox.retry, outbox.fail, outbox.payloads, '
      'outbox.begin_delivery, outbox.release, outbox.extend, outbox.rescue, outbox.prune, outbox.heartbeat, '
      'outbox.leave, outbox.node_processes, outbox.all_shards, outbox.settings, outbox.claim_obstacles, '
      'outbox.node_ceiling'
    when 'operator' then 'outbox.explain_claim, outbox.why, outbox.check, outbox.lock_holders, outbox.count_expired, '
      'outbox.unowned_shards, outbox.configure, outbox.quota, outbox.set_quota, outbox.clear_quota, '
      'outbox.pause, outbox.resume, outbox.cancel, outbox.cancel_namespace, outbox.failed, outbox.purge, '
      'outbox.redrive(bigint[]), outbox.redrive(text, int), outbox.retry_now(text[]), outbox.retry_now(text, int)'
  end;
$$;
comment on function outbox.role_calls is 'The functions that a kind of role may call';
revoke all on function outbox.role_calls from public;

create or replace function outbox.has_own_right(role name, func text)
returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  -- Whether a right to call a function was given to this very role: what it has as a member of
  -- another one, or because all roles have it, does not count.
  select exists (
    select from pg_proc as p
    cross join lateral aclexplode(p.proacl) as a
    join pg_roles as r on r.oid = a.grantee
    where p.pronamespace = 'outbox'::regnamespace and p.proname = has_own_right.func and r.rolname = has_own_right.role
      and p.proowner <> a.grantee);
$$;
comment on function outbox.has_own_right is 'Whether a role was given a right to call a function';
revoke all on function outbox.has_own_right from public;

create or replace function outbox.grant_producer(role name)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Lets a role enqueue, and nothing else. Not security definer: only the schema's owner
-- can hand rights out.
begin
  execute format('grant usage on schema outbox to %I', grant_producer.role);
  execute format('grant execute on function %s to %I', outbox.role_calls('producer'), grant_producer.role);
end $$;
comment on function outbox.grant_producer is 'Lets a role enqueue';
revoke all on function outbox.grant_producer from public;

create or replace function outbox.grant_worker(role name)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Lets a role enqueue, claim and settle: what the sweep binary needs. Not public: who
-- claims reads every tenant's payloads, and settles what others have claimed.
begin
  if coalesce(grant_worker.role, 'public') = 'public' then
    perform outbox.bad_argument('grant_worker', 'role', 'is null or public, which means every role', 'Name the role that sweep connects as.');
  end if;
  perform outbox.grant_producer(grant_worker.role);
  execute format('grant execute on function %s to %I', outbox.role_calls('worker'), grant_worker.role);
end $$;
comment on function outbox.grant_worker is 'Lets a role enqueue, claim and settle';
revoke all on function outbox.grant_worker from public;

create or replace function outbox.grant_operator(role name)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Lets a role do all that a worker can, see everything (payloads too), set quotas and
-- settings, pause, cancel, redrive, retry and purge. Not public, as grant_worker.
begin
  if coalesce(grant_operator.role, 'public') = 'public' then
    perform outbox.bad_argument('grant_operator', 'role', 'is null or public, which means every role', 'Name a role, and grant that to the people on duty.');
  end if;
  perform outbox.grant_worker(grant_operator.role);
  execute format('grant execute on function %s to %I', outbox.role_calls('operator'), grant_operator.role);
  execute format('grant select on outbox.messages, outbox.namespaces, outbox.nodes, outbox.pauses to %I', grant_operator.role);
end $$;
comment on function outbox.grant_operator is 'Lets a role do everything but touch the tables';
revoke all on function outbox.grant_operator from public;

create or replace function outbox.revoke_producer(role name)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Takes back what grant_producer() gives. PostgreSQL does not remember which call gave a right, and
-- a worker or an operator needs these rights too: of such a role, revoke_worker() or
-- revoke_operator() takes back everything, this refuses. What a role has as a member of another one it keeps.
begin
  if revoke_producer.role is null then
    perform outbox.bad_argument('revoke_producer', 'role', 'is null', 'Name the role.');
  end if;
  if revoke_producer.role = (select n.nspowner::regrole::name from pg_namespace as n where n.nspname = 'outbox') then
    perform outbox.bad_argument('revoke_producer', 'role', 'owns the schema, whose functions run with its rights', 'Name another role.');
  end if;
  if outbox.has_own_right(revoke_producer.role, 'claim_fair') then
    perform outbox.bad_argument('revoke_producer', 'role', 'is a worker or an operator, which must be able to enqueue',
      'revoke_worker() or revoke_operator() takes back all; grant again what the role is to keep.');
  end if;
  execute format('revoke execute on function %s from %I', outbox.role_calls('producer'), revoke_producer.role);
  execute format('revoke usage on schema outbox from %I', revoke_producer.role);
end $$;
comment on function outbox.revoke_producer is 'Takes back what grant_producer gives';
revoke all on function outbox.revoke_producer from public;

create or replace function outbox.revoke_worker(role name)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Takes back what grant_worker() gives, what a producer may included. Refuses an operator, as
-- revoke_producer() does.
begin
  if coalesce(revoke_worker.role, 'public') = 'public' then
    perform outbox.bad_argument('revoke_worker', 'role', 'is null or public, which is no worker', 'Name the role.');
  end if;
  if outbox.has_own_right(revoke_worker.role, 'explain_claim') then
    perform outbox.bad_argument('revoke_worker', 'role', 'is an operator, which must be able to claim',
      'revoke_operator() takes back all; grant again what the role is to keep.');
  end if;
  execute format('revoke execute on function %s from %I', outbox.role_calls('worker'), revoke_worker.role);
  perform outbox.revoke_producer(revoke_worker.role);
end $$;
comment on function outbox.revoke_worker is 'Takes back what grant_worker gives';
revoke all on function outbox.revoke_worker from public;

create or replace function outbox.revoke_operator(role name)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Takes back what grant_operator() gives, what a worker and a producer may included. A role
-- that is to go on as one of these needs a grant_ of that again.
begin
  if coalesce(revoke_operator.role, 'public') = 'public' then
    perform outbox.bad_argument('revoke_operator', 'role', 'is null or public, which is no operator', 'Name the role.');
  end if;
  execute format('revoke select on outbox.messages, outbox.namespaces, outbox.nodes, outbox.pauses from %I', revoke_operator.role);
  execute format('revoke execute on function %s from %I', outbox.role_calls('operator'), revoke_operator.role);
  perform outbox.revoke_worker(revoke_operator.role);
end $$;
comment on function outbox.revoke_operator is 'Takes back what grant_operator gives';
revoke all on function outbox.revoke_operator from public;
-- <<< sql/functions/grants.sql

-- <<< snapshot

insert into outbox.migration (version) values (12);
