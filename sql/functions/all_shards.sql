create or replace function outbox.all_shards()
returns int[]
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  -- Every shard there is: what a lone node owns.
  select array(select generate_series(0, c.shard_count - 1) from outbox.config as c);
$$;
comment on function outbox.all_shards is 'Every shard, 0 to shard_count - 1';
revoke all on function outbox.all_shards from public;
