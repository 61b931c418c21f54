set local search_path = pg_catalog, pg_temp;

-- Tables and settings that the functions of the next migration use.

-- Prune looks for the routes of nodes that are gone. Claims write these rows in place: they
-- never change the node.
create index route_node on outbox.route (node);

-- A claim token is the next value and a random number below the increment: so a token that
-- is drawn again, by a database that went back in time, is not the same (INV-9), and later ones
-- are still larger. A claim under way with the former function draws right ones, too.
alter sequence outbox.claim_token increment by 4194304; -- 2^22

-- When the database was found to have gone back in time: by a node that had seen a later token.
create table outbox.went_back (
  at    timestamptz not null,
  node  text        collate "C" not null,
  seen  bigint      not null,
  drawn bigint      not null
);
create index went_back_at on outbox.went_back (at);
alter table outbox.went_back replica identity full; -- without a key, a publication for all tables would stop prune
comment on column outbox.went_back.seen is 'The latest claim token that the node had seen';
comment on column outbox.went_back.drawn is 'The last one that this database had drawn';

-- The shard_count last set. A sequence is read as it is now, also under an older snapshot.
create sequence outbox.shard_count_set minvalue 1 maxvalue 1024;
do $$ begin perform setval('outbox.shard_count_set', (select c.shard_count from outbox.config as c)); end $$;

insert into outbox.migration (version) values (5);
