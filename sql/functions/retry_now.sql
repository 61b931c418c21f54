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
