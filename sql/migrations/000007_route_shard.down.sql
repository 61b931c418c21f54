set local search_path = pg_catalog, pg_temp;

delete from outbox.migration where version = 7;

alter table outbox.route drop column shard;
