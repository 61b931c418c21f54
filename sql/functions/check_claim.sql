-- requires: bad_argument.sql check_key.sql
create or replace function outbox.check_claim(func text, node text, shards int[], batch int, config outbox.config)
returns int[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- The arguments that claim_fair and explain_claim share. Returns the shards, sorted,
-- each once; no shards are none, which claims nothing.
declare
  v_shards int[] := array(select distinct s.shard from unnest(check_claim.shards) as s(shard)
                          where s.shard is not null order by s.shard);
begin
  perform outbox.check_key(check_claim.func, 'node', check_claim.node);
  if check_claim.shards is null then
    perform outbox.bad_argument(check_claim.func, 'shards', 'is null',
      'Give shard numbers, or outbox.all_shards() for all.');
  elsif exists (select from unnest(check_claim.shards) as s(shard) where s.shard is null) then
    perform outbox.bad_argument(check_claim.func, 'shards', 'has a null element',
      'Give shard numbers, or outbox.all_shards() for all.');
  elsif v_shards[1] < 0 or v_shards[cardinality(v_shards)] >= (check_claim.config).shard_count then
    perform outbox.bad_argument(check_claim.func, 'shards',
      format('has %s, outside 0 to %s', case when v_shards[1] < 0 then v_shards[1] else v_shards[cardinality(v_shards)] end,
             (check_claim.config).shard_count - 1),
      'outbox.config.shard_count says how many there are.');
  end if;
  if check_claim.batch is null then
    perform outbox.bad_argument(check_claim.func, 'batch', 'is null', 'Give the most rows to claim, 1 or more.');
  elsif check_claim.batch not between 1 and (check_claim.config).max_batch then
    perform outbox.bad_argument(check_claim.func, 'batch', format('is %s', check_claim.batch),
      format('Give 1 to %s (outbox.config.max_batch).', (check_claim.config).max_batch));
  end if;
  return v_shards;
end $$;
comment on function outbox.check_claim is 'Raises OB001 unless a claim can use its arguments; the shards, sorted, each once';
revoke all on function outbox.check_claim from public;
