create or replace function outbox.shards_text(shards int[])
returns text
language sql immutable parallel safe
-- Shards as text, the first twenty of them; null for none.
begin atomic
  select nullif(array_to_string(shards_text.shards[:20], ', '), '')
         || case when cardinality(shards_text.shards) > 20
                 then pg_catalog.format(' and %s more', cardinality(shards_text.shards) - 20) else '' end;
end;
comment on function outbox.shards_text is 'Shards as text';
revoke all on function outbox.shards_text from public;
