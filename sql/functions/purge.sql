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
