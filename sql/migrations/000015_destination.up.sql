set local search_path = pg_catalog, pg_temp;

-- Destinations that fail, are held, or are coming back (docs/adr/0017). A destination is a route of
-- a namespace, or, where that is null, the route of all, whose endpoint they share. One that
-- has no row is well. Written under the lock fold_lock() alone.
create table outbox.destination (
  namespace  text        collate "C",
  task_queue text        collate "C" not null,
  state      text        collate "C" not null default 'well',
  shared     boolean,
  score      int         not null default 0,
  failed     bigint[]    not null default '{}',
  failed_of  text[]      collate "C" not null default '{}',
  held_since timestamptz,
  held_until timestamptz,
  held_by    text,
  reason     text,
  step       int         not null default 0,
  probe_id   bigint,
  probe_token bigint,
  lifted_at  timestamptz,
  lift_token bigint      not null default 0,
  changed_at timestamptz not null,
  constraint destination_key unique nulls not distinct (namespace, task_queue),
  constraint destination_state check (state in ('well', 'failing', 'held', 'recovering')),
  constraint destination_held check ((state = 'held') = (held_until is not null))
);
alter table outbox.destination replica identity full; -- without a key, a publication for all tables would stop writes
create index destination_trouble on outbox.destination (namespace, task_queue) where state <> 'well';
create index destination_gate on outbox.destination (namespace, task_queue) where state in ('held', 'recovering');
-- By hash, since a claim looks up each route that it comes to: one page, where a tree of many has two or three.
create index destination_gate_of on outbox.destination using hash (hashtextextended(task_queue, hashtextextended(namespace, 0)))
  where state in ('held', 'recovering');
create index destination_idle on outbox.destination (changed_at) where state <> 'held' and shared is null;
create index destination_held on outbox.destination (held_until) where state = 'held';
comment on table outbox.destination is 'Destinations that fail, are held, or are coming back; a null namespace means the route of all';
comment on column outbox.destination.shared is 'Of the route of all, what an operator said: that namespaces share its endpoint, or do not; null: what nodes say counts';
comment on column outbox.destination.score is 'Failures in a row, in quarters: see fold_report()';
comment on column outbox.destination.failed is 'The messages that the score counts; failed_of: their namespaces, up to hold_after; of a route of all that is held, those whose probes failed since the hold last grew';
comment on column outbox.destination.held_since is 'When it was held and has not been reached since';
comment on column outbox.destination.held_until is 'When one message is tried; infinity: when somebody lifts the hold';
comment on column outbox.destination.step is 'How often the hold was made longer';
comment on column outbox.destination.probe_id is 'The message that was tried last while it was held, with the claim token probe_token; it is out as long as it is claimed with that';
comment on column outbox.destination.lifted_at is 'When the last hold ended: from then on the flow grows, and the steps fade';
comment on column outbox.destination.lift_token is 'What was claimed with an older claim token than this says nothing of it any more';

-- What settles say of destinations, until the next claim reads it: they append, and wait for nobody.
create table outbox.report (
  id          bigint      generated always as identity constraint report_pkey primary key,
  at          timestamptz not null,
  kind        text        collate "C" not null,
  message_id  bigint      not null,
  claim_token bigint      not null,
  namespace   text        collate "C" not null,
  task_queue  text        collate "C" not null,
  shared      boolean     default false,
  hold        interval,
  node        text        collate "C",
  reason      text,
  constraint report_kind check (kind in ('up', 'unreachable', 'broken', 'busy', 'gone'))
);
create index report_of on outbox.report (message_id, claim_token); -- whether what a probe came to is unread
comment on column outbox.report.shared is 'That other namespaces'' messages of the route go to the same endpoint; null: they do or not, it does not count for the route of all, since others got through there';
comment on table outbox.report is 'What settles say of destinations, until a claim folds it in';

-- Reports with smaller ids are folded in, but for late commits. A sequence is read and set in place.
create sequence outbox.report_edge;

-- What became of holds, for nodes to tell people of. Written under the lock fold_lock() alone, so the ids are in the
-- order of the commits. prune() keeps a day of it.
create table outbox.hold_event (
  id         bigint      generated always as identity constraint hold_event_pkey primary key,
  at         timestamptz not null,
  event      text        collate "C" not null,
  namespace  text        collate "C",
  task_queue text        collate "C" not null,
  since      timestamptz not null,
  by         text,
  reason     text,
  constraint hold_event_event check (event in ('held', 'lifted', 'gave_up'))
);
create index hold_event_namespace on outbox.hold_event (namespace) where namespace is not null; -- for purge()
comment on table outbox.hold_event is 'What became of holds, until nodes have told of it; a null namespace means the route of all';
comment on column outbox.hold_event.since is 'When the hold began';
comment on column outbox.hold_event.by is 'The node or the role that did it; null: a message came through';

-- Events with smaller ids have been told. A sequence is read and set in place.
create sequence outbox.hold_event_edge;

-- The instant, in microseconds, up to which prune() has looked at holds whose time is over. A sequence is read and set in place.
create sequence outbox.held_edge;

insert into outbox.migration (version) values (15);
