-- A queue as it is written by hand where there is no library: one table, one index for the
-- question that is asked of it.
create table job (
  id          bigint generated always as identity primary key,
  tenant      text not null,
  payload     jsonb not null,
  status      text not null default 'waiting',
  attempts    int not null default 0,
  enqueued_at timestamptz not null default now(),
  locked_at   timestamptz
);

create index on job (tenant, id) where status = 'waiting';
