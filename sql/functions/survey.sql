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
