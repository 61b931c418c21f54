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
    when 'worker' then 'outbox.claim_fair, outbox.complete, outbox.retry, outbox.fail, outbox.fail_destination, outbox.observe, outbox.payloads, '
      'outbox.begin_delivery, outbox.release, outbox.extend, outbox.rescue, outbox.prune, outbox.heartbeat, '
      'outbox.leave, outbox.node_processes, outbox.all_shards, outbox.settings, outbox.claim_obstacles, outbox.survey_namespaces, '
      'outbox.survey, outbox.horizon, outbox.check, outbox.hold_events, '
      'outbox.node_ceiling'
    when 'operator' then 'outbox.explain_claim, outbox.why, outbox.lock_holders, outbox.count_expired, '
      'outbox.unowned_shards, outbox.configure, outbox.quota, outbox.set_quota, outbox.clear_quota, '
      'outbox.hold, outbox.lift, outbox.set_shared, outbox.pause, outbox.resume, outbox.cancel, outbox.cancel_namespace, outbox.failed, outbox.purge, '
      'outbox.redrive(bigint[]), outbox.redrive(text, int), outbox.retry_now(text[]), outbox.retry_now(text, int), '
      'outbox.known_namespaces, outbox.hold_reasons, outbox.route_state, outbox.message_headers'
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
  if coalesce(grant_producer.role, '') = '' then
    perform outbox.bad_argument('grant_producer', 'role', 'is null or empty', 'Name the role that enqueues.');
  end if;
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
  if coalesce(grant_worker.role, '') in ('', 'public') then
    perform outbox.bad_argument('grant_worker', 'role', 'is null, empty or public, which means every role', 'Name the role that sweep connects as.');
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
  if coalesce(grant_operator.role, '') in ('', 'public') then
    perform outbox.bad_argument('grant_operator', 'role', 'is null, empty or public, which means every role', 'Name a role, and grant that to the people on duty.');
  end if;
  perform outbox.grant_worker(grant_operator.role);
  execute format('grant execute on function %s to %I', outbox.role_calls('operator'), grant_operator.role);
  execute format('grant select on outbox.messages, outbox.namespaces, outbox.nodes, outbox.pauses, outbox.holds to %I', grant_operator.role);
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
  if coalesce(revoke_producer.role, '') = '' then
    perform outbox.bad_argument('revoke_producer', 'role', 'is null or empty', 'Name the role.');
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
-- revoke_producer() does, and a mere producer, which would lose what it was given as one.
begin
  if coalesce(revoke_worker.role, '') in ('', 'public') then
    perform outbox.bad_argument('revoke_worker', 'role', 'is null, empty or public, which is no worker', 'Name the role.');
  end if;
  if outbox.has_own_right(revoke_worker.role, 'explain_claim') then
    perform outbox.bad_argument('revoke_worker', 'role', 'is an operator, which must be able to claim',
      'revoke_operator() takes back all; grant again what the role is to keep.');
  end if;
  if outbox.has_own_right(revoke_worker.role, 'enqueue') and not outbox.has_own_right(revoke_worker.role, 'claim_fair') then
    perform outbox.bad_argument('revoke_worker', 'role', 'is a producer, and no worker', 'revoke_producer() takes back what it has.');
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
-- that is to go on as one of these needs a grant_ of that again. Refuses a role that is only one
-- of these.
begin
  if coalesce(revoke_operator.role, '') in ('', 'public') then
    perform outbox.bad_argument('revoke_operator', 'role', 'is null, empty or public, which is no operator', 'Name the role.');
  end if;
  if outbox.has_own_right(revoke_operator.role, 'enqueue') and not outbox.has_own_right(revoke_operator.role, 'explain_claim') then
    perform outbox.bad_argument('revoke_operator', 'role', 'is a producer or a worker, and no operator',
      'revoke_producer() or revoke_worker() takes back what it has.');
  end if;
  execute format('revoke select on outbox.messages, outbox.namespaces, outbox.nodes, outbox.pauses, outbox.holds from %I', revoke_operator.role);
  execute format('revoke execute on function %s from %I', outbox.role_calls('operator'), revoke_operator.role);
  execute format('revoke execute on function %s from %I', outbox.role_calls('worker'), revoke_operator.role);
  perform outbox.revoke_producer(revoke_operator.role);
end $$;
comment on function outbox.revoke_operator is 'Takes back what grant_operator gives';
revoke all on function outbox.revoke_operator from public;
