-- requires: retry_delay.sql span.sql
create or replace function outbox.failed_attempts(
  ids bigint[], tokens bigint[], errors text[], delays interval[], final boolean)
returns table (id bigint, state text)
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_nestloop = off -- the join is with an unnested array: a nested loop would be quadratic,
set enable_hashjoin = on  -- and who calls may have set this off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
-- Ends failed attempts at claimed messages whose claim token is still the one shown: back to pending
-- after a delay (null: the policy's backoff), or to failed where that was the last of
-- config.max_attempts or is final. Each leaves a row in outbox.failure. Error texts
-- come from outside: they are cut here to 2,000 characters, in the middle, since both ends may
-- say why; and a missing one is no error.
declare
  v_now    timestamptz := clock_timestamp();
  v_config outbox.config;
begin
  if cardinality(failed_attempts.ids) = 0 then
    return;
  end if;
  select c.* into strict v_config from outbox.config as c;
  return query
  with u as (
    select distinct on (x.id, x.token)
           x.id, x.token,
           case when length(x.error) > 2000 then left(x.error, 999) || '…' || right(x.error, 1000)
                else coalesce(nullif(x.error, ''), 'no reason given') end as error,
           x.delay
    from unnest(failed_attempts.ids, failed_attempts.tokens, failed_attempts.errors, failed_attempts.delays)
         as x(id, token, error, delay)
    order by x.id, x.token
  ), c as (
    delete from outbox.claimed as d
    where d.id = any (failed_attempts.ids)
      and ((d.id, d.claim_token) in (select x.id, x.token from unnest(failed_attempts.ids, failed_attempts.tokens) as x(id, token)
                                        where (x.id, x.token) is not null)) is true
    returning d.*
  ), f as (
    select c.*, u.error, failed_attempts.final or c.attempt >= v_config.max_attempts as over,
           v_now + outbox.span(coalesce(u.delay,
             outbox.retry_delay(c.attempt, v_config.retry_base, v_config.retry_multiplier, v_config.retry_cap,
                                v_config.retry_jitter, random()))) as due_at
    from c join u on u.id = c.id and u.token = c.claim_token
  ), logged as (
    insert into outbox.failure (id, attempt, at, node, error)
    select f.id, f.attempt, v_now, f.claimed_by, f.error from f
  ), again as (
    insert into outbox.pending (id, namespace, task_queue, shard, visible_after, ripe, attempt, payload_bytes)
    select f.id, f.namespace, f.task_queue, f.shard, f.due_at, f.due_at <= v_now, f.attempt, f.payload_bytes
    from f where not f.over
  ), over as (
    insert into outbox.settled (id, namespace, task_queue, shard, outcome, attempts, settled_at, settled_by, error)
    select f.id, f.namespace, f.task_queue, f.shard, 'failed', f.attempt, v_now, f.claimed_by, f.error
    from f where f.over
  )
  select f.id, case when f.over then 'failed' else 'pending' end from f;
end $$;
comment on function outbox.failed_attempts is 'Ends failed attempts: pending again, or failed';
revoke all on function outbox.failed_attempts from public;
