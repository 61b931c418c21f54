set local search_path = pg_catalog, pg_temp;

-- A message that may have killed its node, and those that were out beside it: see rescue().
-- A table a migration, so that none holds one table's lock while it waits for another's.
alter table outbox.pending add column suspect smallint not null default 0;
comment on column outbox.pending.suspect is 'Nodes in a row that died while they may have had it under way';

insert into outbox.migration (version) values (3);
