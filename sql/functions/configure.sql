-- requires: bad_argument.sql settings.sql
create or replace function outbox.configure(settings jsonb)
returns outbox.config
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
-- Changes the settings named by the keys of a JSON object, as in
-- configure('{"lease": "30 s", "default_quota": 100}'), and returns all of them. Claims
-- use them from the next one on. shard_count is fixed once a message exists.
declare
  v_unknown text;
  v_limits  text;
begin
  if jsonb_typeof(configure.settings) is distinct from 'object' then
    perform outbox.bad_argument('configure', 'settings', 'is not a JSON object', 'Give an object of settings and their values.');
  end if;
  select string_agg(k.name, ', ') into v_unknown
  from jsonb_object_keys(configure.settings) as k(name)
  where k.name = 'singleton'
     or not exists (select from pg_attribute as a
                    where a.attrelid = 'outbox.config'::regclass and a.attname = k.name and a.attnum > 0 and not a.attisdropped);
  if v_unknown is not null then
    perform outbox.bad_argument('configure', 'settings', format('has no setting %s', v_unknown),
      'select * from outbox.settings() lists them.');
  end if;
  update outbox.config as c
  set (shard_count, default_quota, lease, max_attempts, retry_base, retry_multiplier, retry_cap, retry_jitter,
       max_payload_bytes, max_header_bytes, max_batch, max_visits, max_routes, count_cap, claim_idle_timeout, node_lapse, retention,
       hold_after, hold_base, hold_cap, hold_give_up)
    = (select n.shard_count, n.default_quota, n.lease, n.max_attempts, n.retry_base, n.retry_multiplier, n.retry_cap,
              n.retry_jitter, n.max_payload_bytes, n.max_header_bytes, n.max_batch, n.max_visits, n.max_routes, n.count_cap,
              n.claim_idle_timeout, n.node_lapse, n.retention,
              n.hold_after, n.hold_base, n.hold_cap, n.hold_give_up
       from jsonb_populate_record(c, configure.settings) as n);
  return outbox.settings();
exception
  when data_exception or integrity_constraint_violation then
    select string_agg(format('%s, %s', format_type(a.atttypid, null),
             lower(regexp_replace(pg_get_expr(c.conbin, c.conrelid), '::(double precision|[a-z]+)|[()]', '', 'g'))), '; ' order by a.attnum)
    into v_limits
    from pg_attribute as a
    join pg_constraint as c on c.conrelid = a.attrelid and c.conname = 'config_' || a.attname and c.contype = 'c'
    where a.attrelid = 'outbox.config'::regclass and a.attname in (select k.name from jsonb_object_keys(configure.settings) as k(name));
    perform outbox.bad_argument('configure', 'settings', format('has a value that does not fit: %s', sqlerrm),
      coalesce('What it takes: ' || v_limits || '.', 'outbox.settings() shows the values in force, docs/settings.md what each takes.'));
    return null;
end $$;
comment on function outbox.configure is 'Changes settings by a JSON object; all of them';
revoke all on function outbox.configure from public;
