-- The schema and the migrator's own version table stay.
delete from outbox.migration where version = 1;

drop table outbox.route, outbox.walk, outbox.shard, outbox.node, outbox.pause, outbox.former_quota, outbox.namespace,
  outbox.failure, outbox.settled, outbox.claimed, outbox.pending, outbox.message, outbox.config, outbox.migration;
drop sequence outbox.claim_token;
comment on schema outbox is null;
