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
