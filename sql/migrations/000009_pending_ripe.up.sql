set local search_path = pg_catalog, pg_temp;

-- Where a name stands on the ring, in whose order claims walk (docs/adr/0014). Nobody who
-- chooses names can aim at a place: the salt is drawn here, for each installation. Never
-- replace this function: what is stored was computed by it.
do $$
begin
  execute format($f$
    create function outbox.ring(name text)
    returns int
    language sql immutable parallel safe
    begin atomic
      select (hashtextextended(ring.name collate "C", %s::bigint) >> 32)::int;
    end
  $f$, ('x' || right(translate(gen_random_uuid()::text, '-', ''), 16))::bit(64)::bigint);
end $$;
comment on function outbox.ring is 'The place of a namespace or a route on the ring that claims walk, by a salted hash';
grant execute on function outbox.ring to public; -- a view calls it with its reader's rights

-- What is not due stands apart (docs/adr/0013). The index of before stays until the functions of
-- before are gone: see the migration after the next one.
alter table outbox.pending add column ripe boolean not null default true;
alter table outbox.pending -- one rewrite; the default could not be told by it
  alter column ripe type boolean using visible_after <= clock_timestamp(),
  add column ring int not null generated always as (outbox.ring(namespace)) stored,
  add column route_ring int not null generated always as (outbox.ring(task_queue)) stored;
comment on column outbox.pending.ripe is 'False: it waits for visible_after, and claims do not meet it until then; see ripen()';
comment on column outbox.pending.ring is 'The place of the namespace on the ring that claims walk; route_ring: of the route';

-- A lane is (namespace, route, shard), oldest first. The shard stands before the time so that
-- a claim jumps over the lanes of other nodes: as a mere filter, it would have to wade
-- through a dead node's backlog at each sweep.
create index pending_ripe on outbox.pending (ring, namespace, route_ring, task_queue, shard, visible_after, id) where ripe;
create index pending_unripe_due on outbox.pending (shard, visible_after, id) where not ripe;
create index pending_unripe_namespace on outbox.pending (ring, namespace, visible_after, id) where not ripe;

insert into outbox.migration (version) values (9);
