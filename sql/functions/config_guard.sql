-- requires: span.sql
create or replace function outbox.config_guard()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Keeps shard_count as it is once a message exists: stored shards would no longer
-- match, and a key's shard must not change while it is in flight. Notes a default quota
-- that is lowered, as keep_former_quota() does. And holds spans to their bounds: the
-- constraints compare intervals, to which a month has 30 days and a year 360, so that
-- '-10 years 3607 days' is between them and still lasts for less than no time.
--
-- An insert beside the row replaces it: that is what a data-only restore does, which would
-- otherwise bring messages on shards that the count here does not have.
declare
  v_bad    text;
  v_former outbox.config := old;
begin
  if tg_op = 'DELETE' then
    if pg_trigger_depth() > 1 then -- by the insert below
      return old;
    end if;
    raise exception 'outbox.config must keep its one row'
      using errcode = 'OB005', hint = 'Update it instead.';
  end if;
  select string_agg(format('%s is %s', s.name, s.value), ', ') into v_bad
  from (values ('lease', new.lease, interval '1 s', interval '1 day'),
               ('retry_base', new.retry_base, '1 ms', '1 day'),
               ('retry_cap', new.retry_cap, outbox.span(new.retry_base), '371 days'),
               ('claim_idle_timeout', new.claim_idle_timeout, '100 ms', '1 h'),
               ('node_lapse', new.node_lapse, '1 s', '1 day'),
               ('retention', new.retention, '0', '38000 days'),
               ('hold_base', new.hold_base, '100 ms', '1 h'),
               ('hold_cap', new.hold_cap, outbox.span(new.hold_base), '1 day'),
               ('hold_give_up', new.hold_give_up, outbox.span(new.hold_cap), '371 days')) as s(name, value, low, high)
  where outbox.span(s.value) not between s.low and s.high or extract(epoch from s.value) < 0;
  if v_bad is not null then
    raise exception '%', v_bad
      using errcode = 'check_violation', hint = 'Write a span in days or less: a month or year has no length of its own.';
  end if;
  if tg_op = 'INSERT' then
    select c.* into v_former from outbox.config as c;
  end if;
  if new.shard_count <> v_former.shard_count then
    -- Whoever is about to write the first message waits, and then reads the new count.
    lock table outbox.message in share row exclusive mode;
    if exists (select from outbox.message) then
      raise exception 'shard_count is fixed at % once a message exists', v_former.shard_count
        using errcode = 'OB005', hint = 'Drain and prune the outbox first.';
    end if;
    perform setval('outbox.shard_count_set', new.shard_count); -- for same_shard_count()
  end if;
  if new.default_quota < v_former.default_quota then
    insert into outbox.former_quota (until, quota, by) values (clock_timestamp(), v_former.default_quota, session_user);
  end if;
  if tg_op = 'INSERT' then
    delete from outbox.config as c;
  end if;
  return new;
end $$;
comment on function outbox.config_guard is 'Trigger: fixes shard_count once a message exists, notes a default quota that is lowered';
revoke all on function outbox.config_guard from public;
create or replace trigger config_guard before insert or update or delete on outbox.config
  for each row execute function outbox.config_guard();
