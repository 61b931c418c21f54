set local search_path = pg_catalog, pg_temp;
delete from outbox.migration where version = 14;

alter table outbox.config
  drop column hold_after, drop column hold_base, drop column hold_cap, drop column hold_give_up;
