set local search_path = pg_catalog, pg_temp;

delete from outbox.migration where version = 10;

drop type outbox.candidate;
drop type outbox.visit;
alter table outbox.walk drop column detours;
drop type outbox.detour;
alter table outbox.walk
  drop column batch, drop column unripe_from, drop column unripe_from_id, drop column unripe_all_at, drop column unripe_namespace,
  drop column unripe_rest;
