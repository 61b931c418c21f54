set local search_path = pg_catalog, pg_temp;

-- New nodes go on with the routes of one that claimed from the same shards.
alter table outbox.route add column shard int;
comment on column outbox.route.shard is 'The first shard that the node held then; null: not known';

insert into outbox.migration (version) values (7);
