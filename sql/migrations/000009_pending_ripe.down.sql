set local search_path = pg_catalog, pg_temp;

delete from outbox.migration where version = 9;

alter table outbox.pending drop column ripe, drop column ring, drop column route_ring; -- and the indexes that have them
drop function outbox.ring;
