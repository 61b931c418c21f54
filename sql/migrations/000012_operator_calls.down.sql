set local search_path = pg_catalog, pg_temp;
delete from outbox.migration where version = 12;

-- >>> snapshot

-- Rights on what is dropped or gets an overload below, as they are now.
do $rights$
begin
  perform pg_catalog.set_config('outbox.rights', coalesce((
  select pg_catalog.jsonb_agg(r)::text
  from (
    select 'function' as kind, p.proname as name, pg_catalog.oidvectortypes(p.proargtypes) as args, null as col,
           a.grantee, a.privilege_type as privilege, a.is_grantable as grantable
    from pg_catalog.pg_proc as p
    left join lateral pg_catalog.aclexplode(p.proacl) as a on a.grantee not in (0, p.proowner)
    where p.pronamespace = 'outbox'::pg_catalog.regnamespace and p.proname in ('grant_operator', 'grant_producer', 'grant_worker', null)
    union all
    select 'view', c.relname, '', x.col, a.grantee, a.privilege_type, a.is_grantable
    from pg_catalog.pg_class as c
    cross join lateral (
      select null as col, c.relacl as acl
      union all
      select t.attname, t.attacl from pg_catalog.pg_attribute as t where t.attrelid = c.oid and t.attacl is not null
    ) as x
    cross join lateral pg_catalog.aclexplode(x.acl) as a
    where c.relnamespace = 'outbox'::pg_catalog.regnamespace and c.relname in (null) and a.grantee <> c.relowner
  ) as r), '[]'), true);
end $rights$;

-- dropped: sql/functions/grants.sql
drop function outbox.revoke_operator(role name);
drop function outbox.revoke_worker(role name);
drop function outbox.revoke_producer(role name);
drop function outbox.grant_operator(role name);
drop function outbox.grant_worker(role name);
drop function outbox.grant_producer(role name);
drop function outbox.has_own_right(role name, func text);
drop function outbox.role_calls(kind text);

-- dropped: sql/functions/retry_now.sql
drop function outbox.retry_now(namespace text, max int);
drop function outbox.retry_now(dispatch_keys text[]);

-- dropped: sql/functions/purge.sql
drop function outbox.purge(namespace text, max int, after bigint);

-- dropped: sql/functions/make_due.sql
drop function outbox.make_due(ids bigint[], now timestamptz);

-- dropped: sql/functions/failed.sql
drop function outbox.failed(in_namespace text, in_task_queue text, with_error text, since timestamptz, until timestamptz, max int, newest boolean, after_at timestamptz, after_id bigint);

-- >>> sql/functions/stray_keys.sql
-- requires: prepared_locks.sql
create or replace function outbox.stray_keys(keys int[])
returns int[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Which of these locks of claims are held by somebody who is not claiming: any role can take an
-- advisory lock. Claims, heartbeats and cancels read outbox.config before they lock anything, so
-- their transactions have a lock on that table. Strangers have none, unless they want to pose as
-- a claim. A transaction that was prepared with a claim in it is a stranger from
-- config.claim_idle_timeout on: nobody may ever end it.
--
-- One look at pg_locks is not of one moment: it may find the advisory lock of a claim and not
-- its lock on the table, as a claim begins or ends. Hence three looks, 10 ms apart: a stranger
-- has the lock in all of them, in the same transaction or in none.
declare
  v_locks  text[];  -- key and holder
  v_claims text[];  -- holders that claim
begin
  for look in 1 .. 3 loop
    with l as materialized (
      select l.* from pg_locks as l
      where l.granted and l.database = (select d.oid from pg_database as d where d.datname = current_database())
    )
    select array(select l.objid::bigint::bit(32)::int || ' ' || l.virtualtransaction from l
                 where l.locktype = 'advisory' and l.classid = 'outbox.pending'::regclass and l.objsubid = 2
                   and l.objid::bigint::bit(32)::int = any (stray_keys.keys)
                   and (look = 1 or l.objid::bigint::bit(32)::int || ' ' || l.virtualtransaction = any (v_locks))),
           array(select l.virtualtransaction from l
                 where l.locktype = 'relation' and l.relation = 'outbox.config'::regclass
                   and (l.pid is not null
                        or exists (select from outbox.prepared_locks() as p
                                   where p.virtualtransaction = l.virtualtransaction
                                     and p.prepared > clock_timestamp() - (select c.claim_idle_timeout from outbox.config as c))))
    into v_locks, v_claims;
    v_locks := array(select u.lock from unnest(v_locks) as u(lock) where split_part(u.lock, ' ', 2) <> all (v_claims));
    exit when v_locks = '{}';
    if look < 3 then
      perform pg_sleep(0.01);
    end if;
  end loop;
  if v_locks <> '{}' then raise log 'STRAY % claims % now %', v_locks, v_claims, (select array_agg(l.locktype || ' ' || coalesce(l.relation::regclass::text, l.objid::text) || ' ' || l.virtualtransaction || ' ' || l.pid || ' ' || l.mode) from pg_locks as l where l.virtualtransaction in (select split_part(u.lock, ' ', 2) from unnest(v_locks) as u(lock)) and l.locktype in ('advisory','relation')); end if;
  return array(select distinct split_part(u.lock, ' ', 1)::int from unnest(v_locks) as u(lock) order by 1);
end $$;
comment on function outbox.stray_keys is 'Which locks of claims are held by somebody who is not claiming';
revoke all on function outbox.stray_keys from public;
-- <<< sql/functions/stray_keys.sql

-- >>> sql/functions/grants.sql
-- requires: bad_argument.sql
create or replace function outbox.grant_producer(role name)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Lets a role enqueue, and nothing else. Not security definer: only the schema's owner
-- can hand rights out.
begin
  execute format('grant usage on schema outbox to %I', grant_producer.role);
  execute format('grant execute on function outbox.enqueue(text, text, text, bytea, text, jsonb, interval), '
    'outbox.enqueue(text, text, text, text, text, jsonb, interval), outbox.enqueue_json, outbox.enqueue_batch, '
    'outbox.enqueue_texts to %I', grant_producer.role);
end $$;
comment on function outbox.grant_producer is 'Lets a role enqueue';
revoke all on function outbox.grant_producer from public;

create or replace function outbox.grant_worker(role name)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Lets a role enqueue, claim and settle: what the sweep binary needs. Not public: who
-- claims reads every tenant's payloads, and settles what others have claimed.
begin
  if coalesce(grant_worker.role, 'public') = 'public' then
    perform outbox.bad_argument('grant_worker', 'role', 'is null or public, which means every role', 'Name the role that sweep connects as.');
  end if;
  perform outbox.grant_producer(grant_worker.role);
  execute format('grant execute on function outbox.claim_fair, outbox.complete, outbox.retry, outbox.fail, '
    'outbox.payloads, outbox.begin_delivery, outbox.release, outbox.extend, outbox.rescue, outbox.prune, outbox.heartbeat, outbox.leave, outbox.node_processes, '
    'outbox.all_shards, outbox.settings, outbox.claim_obstacles, outbox.node_ceiling to %I', grant_worker.role);
end $$;
comment on function outbox.grant_worker is 'Lets a role enqueue, claim and settle';
revoke all on function outbox.grant_worker from public;

create or replace function outbox.grant_operator(role name)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- Lets a role do all that a worker can, see everything (payloads too), set quotas and
-- settings, pause, cancel and redrive. Not public, as grant_worker.
begin
  if coalesce(grant_operator.role, 'public') = 'public' then
    perform outbox.bad_argument('grant_operator', 'role', 'is null or public, which means every role', 'Name a role, and grant that to the people on duty.');
  end if;
  perform outbox.grant_worker(grant_operator.role);
  execute format('grant execute on function outbox.explain_claim, outbox.why, outbox.check, outbox.lock_holders, outbox.count_expired, '
    'outbox.unowned_shards, outbox.configure, outbox.quota, outbox.set_quota, outbox.clear_quota, '
    'outbox.pause, outbox.resume, outbox.cancel, outbox.cancel_namespace, '
    'outbox.redrive(bigint[]), outbox.redrive(text, int) to %I', grant_operator.role);
  execute format('grant select on outbox.messages, outbox.namespaces, outbox.nodes, outbox.pauses to %I', grant_operator.role);
end $$;
comment on function outbox.grant_operator is 'Lets a role do everything but touch the tables';
revoke all on function outbox.grant_operator from public;
-- <<< sql/functions/grants.sql

-- Those rights again, on what bears the names now.
do $rights$
declare
  v_statement text;
begin
  if coalesce(pg_catalog.current_setting('outbox.rights', true), '') = '' then
    raise exception 'the rights on the former functions are not known any more'
      using errcode = 'OB005', hint = 'Run each migration as one transaction: psql -1.';
  end if;
  for v_statement in
    with was as (
      select r.*
      from pg_catalog.jsonb_to_recordset(pg_catalog.current_setting('outbox.rights')::pg_catalog.jsonb)
           as r (kind text, name text, args text, col text, grantee oid, privilege text, grantable boolean)
    ), now as (
      select p.oid, p.proname::text as name, pg_catalog.oidvectortypes(p.proargtypes) as args
      from pg_catalog.pg_proc as p
      where p.pronamespace = 'outbox'::pg_catalog.regnamespace
    ), old as (
      select w.name, w.args, exists (select from now as n where n.name = w.name and n.args = w.args) as stays
      from was as w where w.kind = 'function' group by w.name, w.args
    ), new as (
      select n.oid, n.name, n.args, exists (select from old as o where o.name = n.name and o.args = n.args) as stays
      from now as n
    )
    select pg_catalog.format('grant %s on routine %s to %s%s', w.privilege, n.oid::pg_catalog.regprocedure,
                             w.grantee::pg_catalog.regrole, case when w.grantable then ' with grant option' end)
    from was as w
    join old as o on o.name = w.name and o.args = w.args
    join new as n on n.name = w.name
    where w.kind = 'function' and w.grantee is not null
      and case when n.args = w.args then true
               when n.stays then not o.stays and not exists (select from new as m where m.name = n.name and not m.stays)
               else not o.stays or not exists (select from old as q where q.name = n.name and not q.stays) end
    union
    select pg_catalog.format('grant %s%s on %s to %s%s', w.privilege, '(' || pg_catalog.quote_ident(w.col) || ')', c.oid::pg_catalog.regclass,
                             case when w.grantee = 0 then 'public' else w.grantee::pg_catalog.regrole::text end,
                             case when w.grantable then ' with grant option' end)
    from was as w
    join pg_catalog.pg_class as c on c.relnamespace = 'outbox'::pg_catalog.regnamespace and c.relname = w.name
    where w.kind = 'view'
      and (w.col is null or exists (select from pg_catalog.pg_attribute as t where t.attrelid = c.oid and t.attname = w.col and not t.attisdropped))
  loop
    execute v_statement;
  end loop;
end $rights$;

-- <<< snapshot
