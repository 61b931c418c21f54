package functions

import (
	"fmt"
	"slices"
	"strings"
)

// rights is the SQL around a change that carries the rights over to what is dropped
// and created anew, in one transaction: before reads them into a setting, after grants
// them again. Both are empty where nothing needs it.
//
// Rights go by the name. A function with the arguments of a former one gets the rights
// on that one. One with new arguments gets those of the functions of its name that are
// gone, or, as a further overload, of all that were there. Rights on one that is gone
// without a successor go to those of its name that stay.
//
// All are granted by the owner again, with the grant option where it was there. What
// everybody may do with a function is left out: each file revokes that, also where it
// replaces.
type rights struct{ before, after string }

// carry finds the rights that lead across from one set of objects to another.
func carry(dropped, gained, from, to []Object) rights {
	names := func(kind string) (list []string) {
		for _, o := range slices.Concat(dropped, gained) {
			same := func(p Object) bool { return p.kind == kind && p.name == o.name }
			if o.kind == kind && slices.ContainsFunc(from, same) && slices.ContainsFunc(to, same) {
				list = append(list, "'"+o.name+"'")
			}
		}
		slices.Sort(list)
		return slices.Compact(list)
	}
	functions, views := names("function"), names("view")
	if len(functions)+len(views) == 0 {
		return rights{}
	}
	in := func(list []string) string { return strings.Join(append(list, "null"), ", ") }
	return rights{
		before: fmt.Sprintf(readRights, in(functions), in(views)),
		after:  grantRights,
	}
}

// The setting lasts until the transaction ends, and needs no right to make a table. It
// is read from the catalog alone, so no lock is added.
const readRights = `-- Rights on what is dropped or gets an overload below, as they are now.
do $rights$
begin
  perform pg_catalog.set_config('outbox.rights', coalesce((
  select pg_catalog.jsonb_agg(r)::text
  from (
    select 'function' as kind, p.proname as name, pg_catalog.oidvectortypes(p.proargtypes) as args, null as col,
           a.grantee, a.privilege_type as privilege, a.is_grantable as grantable
    from pg_catalog.pg_proc as p
    left join lateral pg_catalog.aclexplode(p.proacl) as a on a.grantee not in (0, p.proowner)
    where p.pronamespace = 'outbox'::pg_catalog.regnamespace and p.proname in (%s)
    union all
    select 'view', c.relname, '', x.col, a.grantee, a.privilege_type, a.is_grantable
    from pg_catalog.pg_class as c
    cross join lateral (
      select null as col, c.relacl as acl
      union all
      select t.attname, t.attacl from pg_catalog.pg_attribute as t where t.attrelid = c.oid and t.attacl is not null
    ) as x
    cross join lateral pg_catalog.aclexplode(x.acl) as a
    where c.relnamespace = 'outbox'::pg_catalog.regnamespace and c.relname in (%s) and a.grantee <> c.relowner
  ) as r), '[]'), true);
end $rights$;

`

const grantRights = `-- Those rights again, on what bears the names now.
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

`
