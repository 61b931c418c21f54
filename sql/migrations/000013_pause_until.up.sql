set local search_path = pg_catalog, pg_temp;

alter table outbox.pause add column until timestamptz;
comment on column outbox.pause.until is 'When the pause ends by itself; null: never';
create index pause_until on outbox.pause (until) where until is not null; -- for prune()

insert into outbox.migration (version) values (13);
