-- requires: bad_argument.sql
create or replace function outbox.grant_producer(role name)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Lets a role enqueue, and nothing else. Not security definer: only the schema's owner
-- can hand rights out.
begin
  execute format('grant usage on schema outbox to %I', grant_producer.role);
  execute format('grant execute on function outbox.enqueue(text, text, text, bytea, text, jsonb, interval), '
    'outbox.enqueue(text, text, text, text, text, jsonb, interval), outbox.enqueue_json, outbox.enqueue_batch, '
    'outbox.enqueue_texts to %I', grant_producer.role);
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
  execute format('grant execute on function outbox.claim_fair, outbox.complete, outbox.retry, outbox.fail, '
    'outbox.payloads, outbox.begin_delivery, outbox.release, outbox.extend, outbox.rescue, outbox.prune, outbox.heartbeat, outbox.leave, outbox.node_processes, '
    'outbox.all_shards, outbox.settings, outbox.claim_obstacles, outbox.node_ceiling to %I', grant_worker.role);
end $$;
comment on function outbox.grant_worker is 'Lets a role enqueue, claim and settle';
revoke all on function outbox.grant_worker from public;

create or replace function outbox.grant_operator(role name)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Lets a role do all that a worker can, see everything (payloads too), set quotas and
-- settings, pause, cancel and redrive. Not public, as grant_worker.
begin
  if coalesce(grant_operator.role, 'public') = 'public' then
    perform outbox.bad_argument('grant_operator', 'role', 'is null or public, which means every role', 'Name a role, and grant that to the people on duty.');
  end if;
  perform outbox.grant_worker(grant_operator.role);
  execute format('grant execute on function outbox.explain_claim, outbox.why, outbox.check, outbox.lock_holders, outbox.count_expired, '
    'outbox.unowned_shards, outbox.configure, outbox.quota, outbox.set_quota, outbox.clear_quota, '
    'outbox.pause, outbox.resume, outbox.cancel, outbox.cancel_namespace, '
    'outbox.redrive(bigint[]), outbox.redrive(text, int) to %I', grant_operator.role);
  execute format('grant select on outbox.messages, outbox.namespaces, outbox.nodes, outbox.pauses to %I', grant_operator.role);
end $$;
comment on function outbox.grant_operator is 'Lets a role do everything but touch the tables';
revoke all on function outbox.grant_operator from public;
