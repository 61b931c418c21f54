-- The tables. Functions and views follow in the next migration.

do $$
begin
  if current_setting('server_version_num')::int < 150000 then
    raise exception 'fairclaim needs PostgreSQL 15 or newer, this is %', current_setting('server_version')
      using errcode = 'OB005';
  end if;
  if getdatabaseencoding() <> 'UTF8' then
    raise exception 'fairclaim needs a database in UTF8, this one is in %', getdatabaseencoding()
      using errcode = 'OB005', hint = 'Create one with: create database ... encoding ''UTF8'' template template0.';
  end if;
  if (select n.nspowner from pg_catalog.pg_namespace as n where n.nspname = 'outbox')
     <> (select r.oid from pg_catalog.pg_roles as r where r.rolname = current_user)
  then
    raise exception 'the schema outbox belongs to another role than %, which installs it', current_user
      using errcode = 'OB005', hint = 'Functions of the outbox run with their owner''s rights: install it as the owner of the schema.';
  end if;
  if exists (select from pg_catalog.pg_class as c
             where c.relnamespace = 'outbox'::regnamespace
               and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S') and c.relname <> 'schema_migrations')
     or exists (select from pg_catalog.pg_proc as f where f.pronamespace = 'outbox'::regnamespace)
  then
    raise exception 'there is a schema outbox already, and it is not fairclaim''s'
      using errcode = 'OB005', hint = 'Rename that schema, or install fairclaim into another database.';
  end if;
end $$;

comment on schema outbox is 'fairclaim: fair, multi-tenant transactional outbox';

-- Which migrations stand: each writes its row in its own transaction, so after a
-- crash this table tells the truth where the migrator's version may not.
create table outbox.migration (
  version    bigint      constraint migration_pkey primary key,
  applied_at timestamptz not null default clock_timestamp()
);

create table outbox.config (
  singleton          boolean  not null default true,
  shard_count        int      not null default 16,
  default_quota      int      not null default 256,
  lease              interval not null default '60 s',
  max_attempts       int      not null default 20,
  retry_base         interval not null default '1 s',
  retry_multiplier   float8   not null default 2,
  retry_cap          interval not null default '1 h',
  retry_jitter       float8   not null default 0.2,
  max_payload_bytes  int      not null default 1048576,
  max_header_bytes   int      not null default 16384,
  max_batch          int      not null default 10000,
  max_visits         int      not null default 1000,
  max_routes         int      not null default 64,
  count_cap          int      not null default 1000,
  claim_idle_timeout interval not null default '10 s',
  node_lapse         interval not null default '30 s',
  retention          interval not null default '7 days',
  constraint config_pkey primary key (singleton),
  constraint config_singleton check (singleton),
  constraint config_shard_count check (shard_count between 1 and 1024),
  constraint config_default_quota check (default_quota >= 0),
  constraint config_lease check (lease between '1 s' and '1 day'),
  constraint config_max_attempts check (max_attempts >= 1),
  constraint config_retry_base check (retry_base between '1 ms' and '1 day'),
  constraint config_retry_multiplier check (retry_multiplier between 1 and 1000),
  constraint config_retry_cap check (retry_cap between retry_base and '365 days'),
  constraint config_retry_jitter check (retry_jitter between 0 and 1),
  constraint config_max_payload_bytes check (max_payload_bytes between 0 and 268435456),
  constraint config_max_header_bytes check (max_header_bytes between 2 and 1048576),
  constraint config_max_batch check (max_batch between 1 and 100000),
  constraint config_max_visits check (max_visits between 1 and 1000000),
  constraint config_max_routes check (max_routes between 1 and 100000),
  constraint config_count_cap check (count_cap between 1 and 1000000),
  constraint config_claim_idle_timeout check (claim_idle_timeout between '100 ms' and '1 h'),
  constraint config_node_lapse check (node_lapse between '1 s' and '1 day'),
  constraint config_retention check (retention between '0' and '36500 days')
);
comment on table outbox.config is 'Settings, one row; operators update it';
comment on column outbox.config.shard_count is 'Shards that dispatch keys hash to; fixed once a message exists';
comment on column outbox.config.default_quota is 'Claimed messages at a time of a namespace without a quota of its own; 0 holds everything';
comment on column outbox.config.lease is 'How long a claim holds a message before rescue() may hand it on';
comment on column outbox.config.max_attempts is 'Claims after which a message that is not delivered has failed';
comment on column outbox.config.retry_base is 'Backoff after the first failed attempt';
comment on column outbox.config.retry_multiplier is 'Growth of the backoff with each attempt';
comment on column outbox.config.retry_cap is 'Longest backoff, before jitter';
comment on column outbox.config.retry_jitter is 'Share of the backoff that is random: 0.2 is 80 to 120 %';
comment on column outbox.config.max_payload_bytes is 'Largest payload that enqueue takes, bytes';
comment on column outbox.config.max_header_bytes is 'Most bytes of headers, as JSON text, that enqueue takes';
comment on column outbox.config.max_batch is 'Largest batch of one claim, rows';
comment on column outbox.config.max_visits is 'Most namespaces that one claim looks at';
comment on column outbox.config.max_routes is 'Most routes of a namespace that one claim looks at';
comment on column outbox.config.count_cap is 'Where the counts of views and explain_claim stop, rows';
comment on column outbox.config.claim_idle_timeout is 'A claim left open longer than this loses its session';
comment on column outbox.config.node_lapse is 'A node without a heartbeat for this long is taken for dead';
comment on column outbox.config.retention is 'How long sweep keeps done and cancelled messages';
insert into outbox.config default values;

-- The cold side: written once, never rewritten, so payloads are copied only once.
create table outbox.message (
  id           bigint      generated always as identity constraint message_pkey primary key,
  created_at   timestamptz not null default clock_timestamp(),
  namespace    text        collate "C" not null,
  task_queue   text        collate "C" not null,
  dispatch_key text        collate "C" not null,
  content_type text        not null,
  headers      jsonb       not null,
  payload      bytea       not null,
  constraint message_dispatch_key_key unique (dispatch_key),
  constraint message_namespace check (octet_length(namespace) between 1 and 512),
  constraint message_task_queue check (octet_length(task_queue) between 1 and 512),
  constraint message_dispatch_key check (octet_length(dispatch_key) between 1 and 512),
  constraint message_content_type check (octet_length(content_type) between 1 and 256),
  constraint message_headers check (jsonb_typeof(headers) = 'object')
);

-- The hot side: a message's state is the table that its row stands in.
create table outbox.pending (
  id            bigint      constraint pending_pkey primary key,
  visible_after timestamptz not null,
  shard         int         not null,
  attempt       int         not null default 0,
  payload_bytes int         not null,
  namespace     text        collate "C" not null,
  task_queue    text        collate "C" not null
);
-- A lane is (namespace, task_queue, shard), oldest first. The shard stands before
-- the time so that a claim jumps over the lanes of other nodes: as a mere filter,
-- it would have to wade through a dead node's backlog at each sweep.
create index pending_lane on outbox.pending (namespace, task_queue, shard, visible_after, id);

create sequence outbox.claim_token; -- without cache: a later claim has a larger token

create table outbox.claimed (
  id            bigint      constraint claimed_pkey primary key,
  visible_after timestamptz not null,
  claim_token   bigint      not null,
  claimed_at    timestamptz not null,
  lease_until   timestamptz not null,
  shard         int         not null,
  attempt       int         not null,
  payload_bytes int         not null,
  namespace     text        collate "C" not null,
  task_queue    text        collate "C" not null,
  claimed_by    text        collate "C" not null
);
create index claimed_namespace on outbox.claimed (namespace, claim_token) include (shard);
create index claimed_token on outbox.claimed (claim_token) include (shard);
create index claimed_lease on outbox.claimed (lease_until);

create table outbox.settled (
  id         bigint      constraint settled_pkey primary key,
  settled_at timestamptz not null,
  shard      int         not null,
  attempts   int         not null,
  outcome    text        collate "C" not null,
  namespace  text        collate "C" not null,
  task_queue text        collate "C" not null,
  settled_by text        collate "C" not null,
  error      text,
  constraint settled_outcome check (outcome in ('done', 'failed', 'cancelled'))
);
create index settled_retention on outbox.settled (outcome, settled_at);
create index settled_failed on outbox.settled (namespace, id) where outcome = 'failed';

create table outbox.failure (
  id      bigint      not null,
  at      timestamptz not null,
  attempt int         not null,
  node    text        collate "C" not null,
  error   text        not null
);
create index failure_id on outbox.failure (id);
alter table outbox.failure replica identity full; -- without a key, a publication for all tables would stop prune

create table outbox.namespace (
  namespace text    collate "C" constraint namespace_pkey primary key,
  quota     int,
  strict    boolean not null default false,
  constraint namespace_namespace check (octet_length(namespace) between 1 and 512),
  constraint namespace_quota check (quota >= 0)
);
comment on column outbox.namespace.quota is 'Claimed messages at a time; null: config.default_quota; 0 holds everything';
comment on column outbox.namespace.strict is 'The quota is never exceeded, whoever claims; claims of this namespace exclude each other';

-- Quotas that were lowered, for check(): what was claimed under them may still be.
create table outbox.former_quota (
  until     timestamptz not null,
  namespace text        collate "C",
  quota     int         not null,
  by        text        not null
);
create index former_quota_until on outbox.former_quota (until);
alter table outbox.former_quota replica identity full; -- likewise, prune
comment on column outbox.former_quota.namespace is 'Null: the default quota';
comment on column outbox.former_quota.quota is 'What it was; the largest int where it was not strict';

create table outbox.pause (
  namespace  text        collate "C",
  task_queue text        collate "C",
  since      timestamptz not null,
  by         text        not null,
  note       text,
  constraint pause_key unique nulls not distinct (namespace, task_queue)
);
alter table outbox.pause replica identity full; -- likewise, pause and resume
comment on table outbox.pause is 'What is held; a null namespace or task queue means any';

-- Nodes that are alive: written by heartbeats alone.
create table outbox.node (
  node            text        collate "C" constraint node_pkey primary key,
  heartbeat_at    timestamptz not null,
  shards          int[],
  paused          text,
  in_flight_bytes bigint      not null,
  process         text        collate "C",
  former          text        collate "C",
  shared_at       timestamptz
) with (fillfactor = 50);
comment on column outbox.node.shards is 'The shards that it names as its own; null: it owns what outbox.shard gives it';
comment on column outbox.node.process is 'Which process sent the last heartbeat; former: the one that used the name before';
comment on column outbox.node.shared_at is 'When both were last seen to use the name in turns';

-- Which node each shard is given to: written under the lock share_lock() alone. Whether
-- the node still lives, its row above says.
create table outbox.shard (
  shard int  constraint shard_pkey primary key,
  node  text collate "C" not null
);

-- Where each node's walk over the namespaces stands: written by claims alone,
-- under the lock of the node's name, so that no claim ever waits for a heartbeat.
create table outbox.walk (
  node       text        collate "C" constraint walk_pkey primary key,
  namespace  text        collate "C" not null,
  round      bigint      not null,
  claimed_at timestamptz not null,
  claimed    int         not null,
  edge        bigint     not null default 0,
  edge_shards int[]      not null default '{}'
) with (fillfactor = 50);
comment on column outbox.walk.namespace is 'The next walk starts behind this one';
comment on column outbox.walk.round is 'How often the walk came past the last namespace';
comment on column outbox.walk.edge is 'No message on edge_shards is claimed with a token below this one, nor will be';

-- The route at which a node's next pick in a namespace goes on; only for
-- namespaces where that makes a difference.
create table outbox.route (
  namespace  text        collate "C" not null,
  node       text        collate "C" not null,
  task_queue text        collate "C" not null,
  served_at  timestamptz not null,
  constraint route_pkey primary key (namespace, node)
) with (fillfactor = 50);
comment on column outbox.route.task_queue is 'The next pick starts behind this one';

insert into outbox.migration (version) values (1);
