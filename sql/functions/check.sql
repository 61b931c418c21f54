-- requires: bad_argument.sql audit_messages.sql audit_claims.sql audit_indexes.sql audit_schema.sql audit_bindings.sql audit_names.sql audit_locks.sql audit_destinations.sql audit_vacuum.sql
create or replace function outbox.check(newest bigint default null, max int default 100)
returns table (guarantee text, subject text, detail text, hint text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
-- An audit: every guarantee that SQL can check, a row for each violation, none when all
-- is well. Of each kind at most max rows come one by one, the rest as a number. A row whose
-- guarantee is 'advice' is no violation: everything holds, and could be safer.
--
-- Stable on purpose: all of it sees one snapshot, that of the calling statement, so it
-- finds nothing that traffic has half done. It writes nothing, takes no lock, and runs
-- on a standby. It reads every table and index from end to end, payloads aside, and holds
-- vacuum back meanwhile: where that is too much, newest leaves out all but the messages
-- with the last so many ids, and the indexes of large tables.
begin
  if "check".newest < 1 then
    perform outbox.bad_argument('check', 'newest', format('is %s', "check".newest),
      'Give how many of the newest messages to check, or null for all.');
  elsif coalesce("check".max, 0) < 1 then
    perform outbox.bad_argument('check', 'max', 'is null or below 1', 'Give the most rows of each kind.');
  end if;
  return query
  with found as (
    select f.* from outbox.audit_schema() as f
    union all
    select f.* from outbox.audit_bindings() as f
    union all
    select f.* from outbox.audit_names() as f
    union all
    select f.* from outbox.audit_locks() as f
    union all
    select f.* from outbox.audit_indexes("check".newest is null) as f
    union all
    select f.* from outbox.audit_messages(coalesce(
      (select max(m.id) from outbox.message as m) - "check".newest + 1, -9223372036854775808)) as f
    union all
    select f.* from outbox.audit_claims() as f
    union all
    select f.* from outbox.audit_destinations() as f
    union all
    select f.* from outbox.audit_vacuum() as f
  ), ranked as (
    select f.*, row_number() over w as n, count(*) over (partition by f.guarantee, f.hint) as total
    from found as f
    window w as (partition by f.guarantee, f.hint order by length(f.subject), f.subject collate "C")
  )
  select r.guarantee,
         case when r.n <= "check".max then r.subject else '...' end,
         case when r.n <= "check".max then r.detail else format('%s more like this', r.total - "check".max) end,
         r.hint
  from ranked as r
  where r.n <= "check".max + 1::bigint
  order by length(r.guarantee), r.guarantee collate "C", r.hint, r.n;
end $$;
comment on function outbox.check is 'An audit: one row for each violation of a guarantee, none when all is well';
revoke all on function outbox.check from public;
