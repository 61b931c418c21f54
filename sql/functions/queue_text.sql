-- requires: walk_start.sql walk_namespaces.sql ceil_div.sql
create or replace function outbox.queue_text(namespace text, shard int, node text, config outbox.config)
returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
-- How far the walk of a node (null: of the last one that claimed from the shard) has to go to a namespace
-- with ripe messages: past how many others, and in about how many claims (INV-18). Counts up to
-- config.count_cap.
declare
  v_cursor text;
  v_batch  int;
  v_before bigint;
begin
  select w.namespace into v_cursor from outbox.walk_start(coalesce(queue_text.node, ''), array[queue_text.shard]) as w;
  v_batch := coalesce((select w.batch from outbox.walk as w
                       where w.node = queue_text.node or w.namespace = v_cursor
                       order by w.node = queue_text.node desc, w.claimed_at desc limit 1), 100);
  select w.n - 1 into v_before
  from outbox.walk_namespaces(v_cursor, false, v_cursor, (queue_text.config).count_cap, null) as w
  where w.namespace = queue_text.namespace;
  return case when v_before is null then format('more than %s namespaces come before it in the walk', (queue_text.config).count_cap)
              when v_before = 0 then 'it comes next in the walk'
              else format('%s before it in the walk, about %s of %s messages',
                          case v_before when 1 then '1 namespace comes' else v_before || ' namespaces come' end,
                          case when v_before < v_batch then '1 claim' else v_before / v_batch + 1 || ' claims' end, v_batch) end;
end $$;
comment on function outbox.queue_text is 'How far a walk has to go to a namespace, as text';
revoke all on function outbox.queue_text from public;
