-- requires: live_shards.sql
create or replace function outbox.unowned_shards()
returns int[]
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
-- The shards that no live node owns: no sweep run claims from them. Where only sweep once
-- works, from cron, these are all.
begin
  return array(
    select s.shard from outbox.config as g cross join lateral generate_series(0, g.shard_count - 1) as s(shard)
    except
    select o.shard from outbox.live_shards(clock_timestamp()) as o
    order by 1);
end $$;
comment on function outbox.unowned_shards is 'The shards that no live node owns';
revoke all on function outbox.unowned_shards from public;
