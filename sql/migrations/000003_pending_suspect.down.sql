set local search_path = pg_catalog, pg_temp;
delete from outbox.migration where version = 3;

alter table outbox.pending drop column suspect;
