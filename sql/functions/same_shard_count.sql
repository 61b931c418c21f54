create or replace function outbox.same_shard_count(used int)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Raises 40001 where shard_count has changed since the snapshot that used it was taken: the rows
-- just written would be on shards that their keys do not hash to, or that nobody claims from. Called
-- after the insert, whose lock on outbox.message keeps the count as it is from then on.
--
-- The sequence tells the count last set, whatever the snapshot. One that was set and rolled back
-- stays there: so where it differs, a lock on the row, which fails where that has changed, decides.
begin
  if current_setting('transaction_isolation') in ('repeatable read', 'serializable')
     and pg_sequence_last_value('outbox.shard_count_set'::regclass) is distinct from same_shard_count.used then
    perform from outbox.config as c for share;
  end if;
end $$;
comment on function outbox.same_shard_count is 'Raises 40001 where shard_count is not that of the snapshot any more';
revoke all on function outbox.same_shard_count from public;
