create or replace function outbox.config_guard()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Keeps shard_count as it is once a message exists: stored shards would no longer
-- match, and a key's shard must not change while it is in flight. Notes a default quota
-- that is lowered, as keep_former_quota() does.
begin
  if tg_op = 'DELETE' then
    raise exception 'outbox.config must keep its one row'
      using errcode = 'OB005', hint = 'Update it instead.';
  end if;
  if new.shard_count <> old.shard_count then
    -- Whoever is about to write the first message waits, and then reads the new count.
    lock table outbox.message in share row exclusive mode;
    if exists (select from outbox.message) then
      raise exception 'shard_count is fixed at % once a message exists', old.shard_count
        using errcode = 'OB005', hint = 'Drain and prune the outbox first.';
    end if;
  end if;
  if new.default_quota < old.default_quota then
    insert into outbox.former_quota (until, quota, by) values (clock_timestamp(), old.default_quota, session_user);
  end if;
  return new;
end $$;
comment on function outbox.config_guard is 'Trigger: fixes shard_count once a message exists, notes a default quota that is lowered';
revoke all on function outbox.config_guard from public;
create or replace trigger config_guard before update or delete on outbox.config
  for each row execute function outbox.config_guard();
