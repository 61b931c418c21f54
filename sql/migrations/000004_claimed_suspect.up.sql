set local search_path = pg_catalog, pg_temp;

alter table outbox.claimed
  add column suspect smallint not null default 0,
  add column begun   smallint not null default 0;
comment on column outbox.claimed.suspect is 'As in outbox.pending, when it was claimed';
comment on column outbox.claimed.begun is 'How many messages at most were under way with it when its delivery began; 0: it has not begun, as far as the outbox was told';

insert into outbox.migration (version) values (4);
