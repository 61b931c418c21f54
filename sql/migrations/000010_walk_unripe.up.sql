set local search_path = pg_catalog, pg_temp;

-- Where the walks of nodes stand among the messages that wait for their time, see ripen(), and what
-- a claim is made of: see claim_fair().
alter table outbox.walk
  add column batch int,
  add column unripe_from timestamptz not null default '-infinity',
  add column unripe_from_id bigint not null default 0,
  add column unripe_all_at timestamptz not null default '-infinity',
  add column unripe_namespace text collate "C" not null default '',
  add column unripe_rest int not null default 0;
comment on column outbox.walk.batch is 'The batch of the last claim; null: not known';
comment on column outbox.walk.unripe_from is 'What came due before this, and at this instant with a smaller id than unripe_from_id, is ripe on edge_shards, but for late commits';
comment on column outbox.walk.unripe_all_at is 'When a claim last looked for those, too';
comment on column outbox.walk.unripe_rest is 'For so many claims nobody takes turns';
comment on column outbox.walk.unripe_namespace is 'The next claim that must take turns to make messages ripe starts behind this namespace';

create type outbox.detour as (after text, upto text, claims int);
comment on type outbox.detour is 'A stretch of the ring that so many claims pass over: see walk_detour()';
alter table outbox.walk add column detours outbox.detour[];
comment on column outbox.walk.detours is 'Stretches of the ring that cost claims much';

create type outbox.visit as (
  namespace text, round bigint, verdict text, quota int, claimed int, ceiling int, sole boolean, routes text[], looked_to text);
comment on type outbox.visit is 'A namespace that a claim''s walk came to: see claim_walk()';

create type outbox.candidate as (
  visit int, route int, nth int, id bigint, tid tid, due_at timestamptz, shard int, attempt int, suspect int, payload_bytes int);
comment on type outbox.candidate is 'A message that a claim may take: see claim_read()';

insert into outbox.migration (version) values (10);
