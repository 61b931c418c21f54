set local search_path = pg_catalog, pg_temp;
delete from outbox.migration where version = 4;

alter table outbox.claimed drop column begun, drop column suspect;
