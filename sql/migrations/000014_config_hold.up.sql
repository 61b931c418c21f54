set local search_path = pg_catalog, pg_temp;

-- When a destination is held, and for how long (docs/adr/0017).
alter table outbox.config
  add column hold_after   int      not null default 5,
  add column hold_base    interval not null default '5 s',
  add column hold_cap     interval not null default '10 min',
  add column hold_give_up interval not null default '5 days',
  add constraint config_hold_after check (hold_after between 1 and 100),
  add constraint config_hold_base check (hold_base between '100 ms' and '1 h'),
  add constraint config_hold_cap check (hold_cap between hold_base and '1 day'),
  add constraint config_hold_give_up check (hold_give_up between hold_cap and '365 days');
comment on column outbox.config.hold_after is 'Messages that fail in a row because their destination cannot be reached, after which it is held';
comment on column outbox.config.hold_base is 'How long the first hold of a destination lasts, before jitter; each further one twice as long';
comment on column outbox.config.hold_cap is 'Longest hold before the next probe; and how long after a lift the steps are forgotten';
comment on column outbox.config.hold_give_up is 'A destination held for this long is tried no more until somebody lifts it';

insert into outbox.migration (version) values (14);
