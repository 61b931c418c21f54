-- requires: bad_argument.sql check_key.sql is_live.sql share_out.sql pass_token.sql
create or replace function outbox.heartbeat(
  node text, shards int[] default null, paused text default null, in_flight_bytes bigint default 0,
  process text default null, seen_token bigint default null)
returns table (owned int[], again_in interval, shared_name boolean, went_back boolean)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Says that a node lives, and how it is, and returns the shards that it owns now. Without
-- shards the outbox gives it some (see share_out); with shards, those are its own and no
-- other node is given them; '{}' is none, for one that stops. Only this makes a live node,
-- and only leave(), or config.node_lapse without it, ends one; a claim does neither.
--
-- Call again within a third of the lapse, and after again_in where that is sooner: then
-- another node's heartbeat lapses unless it is heard of, and its shards are given away.
-- process tells apart two processes under one name, which is harmless but no use: they
-- own the same shards. shared_name says that there are two. In a transaction above read
-- committed, whose snapshot may be old, it says that the node lives, and shares nothing out.
--
-- seen_token is the largest claim token that the process has got. went_back says that the
-- database had not drawn it yet: it went back in time (see pass_token).
declare
  v_now   timestamptz;
  v_lapse interval;
  v_wrong int;
  v_total int;
begin
  perform outbox.check_key('heartbeat', 'node', heartbeat.node);
  select c.node_lapse, c.shard_count into strict v_lapse, v_total from outbox.config as c;
  if exists (select from unnest(heartbeat.shards) as s(shard) where s.shard is null) then
    perform outbox.bad_argument('heartbeat', 'shards', 'has a null element',
      'Give shard numbers; null for those that the outbox gives it, ''{}'' for none.');
  end if;
  select s.shard into v_wrong from unnest(heartbeat.shards) as s(shard) where s.shard < 0 or s.shard >= v_total limit 1;
  if found then
    perform outbox.bad_argument('heartbeat', 'shards', format('has %s, outside 0 to %s', v_wrong, v_total - 1),
      'outbox.config.shard_count says how many there are.');
  end if;
  went_back := outbox.pass_token(heartbeat.node, heartbeat.seen_token);
  v_now := clock_timestamp();
  owned := array(select distinct s.shard from unnest(heartbeat.shards) as s(shard) order by s.shard);

  insert into outbox.node as n (node, heartbeat_at, shards, paused, in_flight_bytes, process)
  values (heartbeat.node, v_now, case when heartbeat.shards is not null then owned end, left(heartbeat.paused, 1000),
          greatest(coalesce(heartbeat.in_flight_bytes, 0), 0), left(heartbeat.process, 200))
  on conflict on constraint node_pkey do update
    set heartbeat_at = excluded.heartbeat_at, shards = excluded.shards, paused = excluded.paused,
        in_flight_bytes = excluded.in_flight_bytes, process = excluded.process,
        -- A process that another one has taken the name from, and that is heard of again,
        -- was not its predecessor: there are two.
        former = case when n.process is distinct from excluded.process then n.process else n.former end,
        shared_at = case when excluded.process = n.former and excluded.process <> n.process then excluded.heartbeat_at
                         else n.shared_at end
    -- One that stops, and has a successor already, leaves the name to that.
    where (excluded.shards = '{}' and excluded.process = n.former and excluded.process <> n.process
           and outbox.is_live(n.heartbeat_at, v_now, v_lapse)) is not true;

  if outbox.share_out(v_now) then
    select greatest(v_lapse - (v_now - coalesce(min(n.heartbeat_at), v_now)), '0') into again_in
    from outbox.node as n
    where n.node <> heartbeat.node and outbox.is_live(n.heartbeat_at, v_now, v_lapse);
  else
    again_in := '0';
  end if;
  if heartbeat.shards is null then
    owned := array(select s.shard from outbox.shard as s where s.node = heartbeat.node order by s.shard);
  end if;
  select coalesce(n.shared_at > v_now - v_lapse, false) into shared_name from outbox.node as n where n.node = heartbeat.node;
  return next;
end $$;
comment on function outbox.heartbeat is 'Says that a node lives, and how it is; the shards that it owns';
revoke all on function outbox.heartbeat from public;
