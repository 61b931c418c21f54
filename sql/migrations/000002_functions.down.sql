delete from outbox.migration where version = 2;

-- >>> snapshot

-- dropped: sql/functions/grants.sql
drop function outbox.grant_operator(role name);
drop function outbox.grant_worker(role name);
drop function outbox.grant_producer(role name);

-- dropped: sql/functions/views.sql
drop view outbox.pauses;
drop view outbox.nodes;
drop view outbox.namespaces;
drop view outbox.messages;

-- dropped: sql/functions/why.sql
drop function outbox.why(dispatch_key text);

-- dropped: sql/functions/unowned_shards.sql
drop function outbox.unowned_shards();

-- dropped: sql/functions/set_quota.sql
drop function outbox.set_quota(namespace text, quota int, strict boolean);

-- dropped: sql/functions/retry.sql
drop function outbox.retry(ids bigint[], tokens bigint[], errors text[], delays interval[]);

-- dropped: sql/functions/resume.sql
drop function outbox.resume(namespace text, task_queue text);

-- dropped: sql/functions/rescue.sql
drop function outbox.rescue(max int);

-- dropped: sql/functions/release.sql
drop function outbox.release(ids bigint[], tokens bigint[]);

-- dropped: sql/functions/quota.sql
drop function outbox.quota(namespace text);

-- dropped: sql/functions/prune.sql
drop function outbox.prune(older_than interval, max int, failed boolean);

-- dropped: sql/functions/redrive.sql
drop function outbox.redrive(namespace text, max int);
drop function outbox.redrive(ids bigint[]);

-- dropped: sql/functions/pause.sql
drop function outbox.pause(namespace text, task_queue text, note text);

-- dropped: sql/functions/live_shards.sql
drop function outbox.live_shards(now timestamptz);

-- dropped: sql/functions/leave.sql
drop function outbox.leave(node text, process text);

-- dropped: sql/functions/keep_former_quota.sql
drop trigger former_quota on outbox.namespace;
drop function outbox.keep_former_quota();

-- dropped: sql/functions/heartbeat.sql
drop function outbox.heartbeat(node text, shards int[], paused text, in_flight_bytes bigint, process text);

-- dropped: sql/functions/share_out.sql
drop function outbox.share_out(now timestamptz);

-- dropped: sql/functions/share_lock.sql
drop function outbox.share_lock();

-- dropped: sql/functions/fail.sql
drop function outbox.fail(ids bigint[], tokens bigint[], errors text[]);

-- dropped: sql/functions/failed_attempts.sql
drop function outbox.failed_attempts(locked bigint[], ids bigint[], tokens bigint[], errors text[], delays interval[], final boolean);

-- dropped: sql/functions/retry_delay.sql
drop function outbox.retry_delay(attempt int, base interval, multiplier float8, cap interval, jitter float8, rnd float8);

-- dropped: sql/functions/extend.sql
drop function outbox.extend(ids bigint[], tokens bigint[], lease interval);

-- dropped: sql/functions/explain_claim.sql
drop function outbox.explain_claim(node text, shards int[], batch int, max_bytes bigint, "only" text);

-- dropped: sql/functions/lock_holders.sql
drop function outbox.lock_holders(node text);

-- dropped: sql/functions/hold_reason.sql
drop function outbox.hold_reason(namespace text, verdict text, claimed int, ceiling int, quota int, next_held int[], now timestamptz);

-- dropped: sql/functions/paused_routes.sql
drop function outbox.paused_routes(namespace text, next_held int[], now timestamptz);

-- dropped: sql/functions/pause_text.sql
drop function outbox.pause_text(pause outbox.pause, now timestamptz);

-- dropped: sql/functions/time_text.sql
drop function outbox.time_text(at timestamptz, now timestamptz);

-- dropped: sql/functions/enqueue_json.sql
drop function outbox.enqueue_json(namespace text, task_queue text, dispatch_key text, payload jsonb, headers jsonb, delay interval);

-- dropped: sql/functions/enqueue_batch.sql
drop function outbox.enqueue_batch(namespaces text[], task_queues text[], dispatch_keys text[], payloads bytea[], content_types text[], headers jsonb[], delays interval[]);

-- dropped: sql/functions/enqueue.sql
drop function outbox.enqueue(namespace text, task_queue text, dispatch_key text, payload bytea, content_type text, headers jsonb, delay interval);

-- dropped: sql/functions/count_due.sql
drop function outbox.count_due(namespace text, next_held int[], now timestamptz, cap int);

-- dropped: sql/functions/configure.sql
drop function outbox.configure(settings jsonb);

-- dropped: sql/functions/settings.sql
drop function outbox.settings();

-- dropped: sql/functions/config_guard.sql
drop trigger config_guard on outbox.config;
drop function outbox.config_guard();

-- dropped: sql/functions/complete.sql
drop function outbox.complete(ids bigint[], tokens bigint[]);

-- dropped: sql/functions/lock_claimed.sql
drop function outbox.lock_claimed(ids bigint[], tokens bigint[]);

-- dropped: sql/functions/clear_quota.sql
drop function outbox.clear_quota(namespace text);

-- dropped: sql/functions/claim_fair.sql
drop function outbox.claim_fair(node text, shards int[], batch int, max_bytes bigint);

-- dropped: sql/functions/span.sql
drop function outbox.span(duration interval);

-- dropped: sql/functions/node_lock.sql
drop function outbox.node_lock(node text);

-- dropped: sql/functions/claim_pick.sql
drop function outbox.claim_pick(node text, namespaces text[], rounds bigint[], headrooms int[], soles boolean[], active int, routes text[], route_of int[], width int, held int[], next_held int[], batch int, max_bytes bigint, turn bigint, now timestamptz, for_claim boolean, config outbox.config, out ids bigint[], out tids tid[], out shards int[], out attempts int[], out passes int[], out picked int[], out last_rank int, out last_bytes bigint, out many text[], out many_at text[]);

-- dropped: sql/functions/claim_walk.sql
drop function outbox.claim_walk(node text, next_held int[], held int, batch int, walked_to text, turn bigint, now timestamptz, edge bigint, "only" text, for_claim boolean, config outbox.config, out namespaces text[], out verdicts text[], out rounds bigint[], out quotas int[], out claimed int[], out ceilings int[], out headrooms int[], out soles boolean[], out active int, out idle text[], out idle_at text[], out routes text[], out route_of int[], out width int, out wrapped boolean, out more boolean);

-- dropped: sql/functions/node_ceiling.sql
drop function outbox.node_ceiling(quota int, owned int, total int);

-- dropped: sql/functions/due_routes.sql
drop function outbox.due_routes(namespace text, node text, next_held int[], now timestamptz, max_routes int);

-- dropped: sql/functions/walk_lanes.sql
drop function outbox.walk_lanes(namespace text, task_queue text, start int, next_held int[]);

-- dropped: sql/functions/walk_routes.sql
drop function outbox.walk_routes(namespace text, after text);

-- dropped: sql/functions/walk_namespaces.sql
drop function outbox.walk_namespaces(after text, wrapped boolean, until text, size int);

-- dropped: sql/functions/next_held.sql
drop function outbox.next_held(held int[], total int);

-- dropped: sql/functions/check_settle.sql
drop function outbox.check_settle(func text, ids bigint[], tokens bigint[]);

-- dropped: sql/functions/check_claim.sql
drop function outbox.check_claim(func text, node text, shards int[], batch int, config outbox.config);

-- dropped: sql/functions/check.sql
drop function outbox.check(newest bigint, max int);

-- dropped: sql/functions/cancel_namespace.sql
drop function outbox.cancel_namespace(namespace text, max int);

-- dropped: sql/functions/check_key.sql
drop function outbox.check_key(func text, argument text, value text);

-- dropped: sql/functions/cancel.sql
drop function outbox.cancel(dispatch_keys text[]);

-- dropped: sql/functions/cancel_lock.sql
drop function outbox.cancel_lock();

-- dropped: sql/functions/lock_class.sql
drop function outbox.lock_class();

-- dropped: sql/functions/bad_argument.sql
drop function outbox.bad_argument(func text, argument text, problem text, hint text);

-- dropped: sql/functions/audit_schema.sql
drop function outbox.audit_schema();

-- dropped: sql/functions/audit_messages.sql
drop function outbox.audit_messages(first_id bigint);

-- dropped: sql/functions/shard_of.sql
drop function outbox.shard_of(dispatch_key text, shard_count int);

-- dropped: sql/functions/audit_indexes.sql
drop function outbox.audit_indexes(is_full boolean);

-- dropped: sql/functions/audit_claims.sql
drop function outbox.audit_claims();

-- dropped: sql/functions/all_shards.sql
drop function outbox.all_shards();

-- <<< snapshot
