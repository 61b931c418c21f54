-- requires: is_live.sql bound_transaction.sql lock_class.sql share_lock.sql
create or replace function outbox.share_out(now timestamptz)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_nestloop = off
set jit = off
as $$
-- Gives the shards to the live nodes that take what they are given: evenly, so that their
-- counts differ by at most one, moving as few as that allows. The shards that live nodes
-- name as theirs are left to those. Where all is well already, as it mostly is, it finds
-- that out without a lock. False: not now, another session is at it or the snapshot may be
-- old; the next heartbeat makes up for it.
--
-- A node keeps what it has, up to its part; the parts that are larger by one go to those
-- that have most. So no shard moves that could have stayed.
declare
  v_config  outbox.config;
  v_settled boolean;
begin
  select c.* into strict v_config from outbox.config as c;
  with live as materialized (
    select n.node, n.shards from outbox.node as n where outbox.is_live(n.heartbeat_at, share_out.now, v_config.node_lapse)
  ), fixed as materialized (
    select distinct s.shard from live as l cross join lateral unnest(l.shards) as s(shard)
    where s.shard between 0 and v_config.shard_count - 1
  ), part as (
    select count(s.shard) as has, count(s.shard) filter (where f.shard is not null or s.shard >= v_config.shard_count) as wrong
    from live as l
    left join outbox.shard as s on s.node = l.node
    left join fixed as f on f.shard = s.shard
    where l.shards is null
    group by l.node
  )
  select count(*) = 0 -- nobody to give any to
      or sum(p.has) = v_config.shard_count - (select count(*) from fixed) and sum(p.wrong) = 0 and max(p.has) - min(p.has) <= 1
  into v_settled from part as p;
  if v_settled then
    return true;
  end if;

  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted')
     or not pg_try_advisory_xact_lock(outbox.lock_class(), outbox.share_lock()) then
    return false;
  end if;
  perform outbox.bound_transaction(v_config.claim_idle_timeout); -- one left open would keep all others from this

  with live as materialized (
    select n.node, n.shards from outbox.node as n where outbox.is_live(n.heartbeat_at, share_out.now, v_config.node_lapse)
  ), free as materialized (
    select s.shard from generate_series(0, v_config.shard_count - 1) as s(shard)
    except
    select s.shard from live as l cross join lateral unnest(l.shards) as s(shard)
  ), kept as materialized (
    select o.shard, o.node, row_number() over (partition by o.node order by o.shard) as nth
    from outbox.shard as o
    join free as f on f.shard = o.shard
  ), part as materialized (
    select x.node, x.has, x.shards / x.nodes + (row_number() over (order by x.has desc, x.node) <= x.shards % x.nodes)::int as gets
    from (select l.node, coalesce(k.has, 0) as has, count(*) over () as nodes, (select count(*) from free) as shards
          from live as l
          left join (select k.node, count(*) as has from kept as k group by k.node) as k on k.node = l.node
          where l.shards is null) as x
  ), open as (
    select f.shard, row_number() over (order by f.shard) as nth
    from free as f
    left join (select k.shard from kept as k join part as p on p.node = k.node where k.nth <= p.gets) as s on s.shard = f.shard
    where s.shard is null
  ), wanted as (
    select p.node, row_number() over (order by p.node) as nth
    from part as p cross join lateral generate_series(p.has + 1, p.gets)
  ), gone as ( -- named by a live node, or no shard of this outbox
    delete from outbox.shard as o where not exists (select from free as f where f.shard = o.shard)
  )
  insert into outbox.shard as o (shard, node)
  select open.shard, w.node from open join wanted as w on w.nth = open.nth
  on conflict on constraint shard_pkey do update set node = excluded.node;
  return true;
end $$;
comment on function outbox.share_out is 'Gives the shards to the live nodes; false: not now';
revoke all on function outbox.share_out from public;
