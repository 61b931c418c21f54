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
