create or replace function outbox.horizon()
returns table (age interval, transactions bigint, sees_all boolean)
language sql
set search_path = pg_catalog, pg_temp
as $$
  -- What keeps vacuum from removing dead rows: age is how long ago the oldest transaction of this database
  -- began that a session or a prepared transaction keeps open, transactions the age of the oldest one
  -- that anything holds back, replication slots and standbys too, in transactions. This session does not
  -- count, nor autovacuum. Not security definer: a role sees the sessions of others where it
  -- is a member of pg_read_all_stats, as by pg_monitor; sees_all says whether.
  select max(clock_timestamp() - x.since), coalesce(max(x.xids), 0)::bigint,
         pg_has_role('pg_read_all_stats', 'usage')
  from (select a.xact_start as since, age(coalesce(a.backend_xmin, a.backend_xid)) as xids
        from pg_stat_activity as a
        where a.pid <> pg_backend_pid() and coalesce(a.backend_xmin, a.backend_xid) is not null
          and (a.datname = current_database() or a.datname is null) and a.backend_type is distinct from 'autovacuum worker'
        union all
        select p.prepared, age(p.transaction) from pg_prepared_xacts as p where p.database = current_database()
        union all
        select null, greatest(age(s.xmin), age(s.catalog_xmin)) from pg_replication_slots as s
        where s.xmin is not null or s.catalog_xmin is not null) as x;
$$;
comment on function outbox.horizon is 'How old the oldest transaction is that keeps dead rows from being removed';
revoke all on function outbox.horizon from public;
