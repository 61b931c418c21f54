create or replace function outbox.audit_names()
returns table (guarantee text, subject text, detail text, hint text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set jit = off
as $$
-- The part of check() about names that are written in several Unicode forms, as a letter with
-- an accent may be one code point or two. They are compared byte by byte, so each form is a tenant
-- of its own: a quota or a pause for one of them holds nothing of the other.
begin
  return query
  select 'advice', format('namespace %L', x.forms[1]),
         format('is %s names that look alike, in UTF-8: %s', cardinality(x.forms),
                (select string_agg(encode(convert_to(f.form, 'UTF8'), 'hex'), ', ') from unnest(x.forms[1:4]) as f(form))),
         'Names are compared byte by byte: use one Unicode form, NFC, where names are made.'
  from (select array_agg(n.namespace order by n.namespace) as forms
        from outbox.namespaces as n where octet_length(n.namespace) > length(n.namespace)
        group by normalize(n.namespace)) as x
  where cardinality(x.forms) > 1;
end $$;
comment on function outbox.audit_names is 'The part of check() about names in several Unicode forms';
revoke all on function outbox.audit_names from public;
