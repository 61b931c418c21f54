create or replace function outbox.ceil_div(a int, b int)
returns int
language sql immutable parallel safe
-- a / b, rounded up; b is above 0. Without a sum that could overflow. (node_ceiling, which
-- roles call with their own rights, rounds for itself, in bigint.)
begin atomic
  select ceil_div.a / ceil_div.b + (ceil_div.a % ceil_div.b > 0)::int;
end;
comment on function outbox.ceil_div is 'A division that rounds up';
revoke all on function outbox.ceil_div from public;
