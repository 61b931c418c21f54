create or replace function outbox.node_ceiling(quota int, owned int, total int)
returns int
language sql immutable parallel safe
-- ceil(quota * owned / total), with total at least 1 and owned held to 1..total;
-- in bigint, so that no quota overflows. Rounding up gives each of n disjoint owners
-- less than 1 too much: their sum is at most quota + n - 1 (INV-4).
begin atomic
  select ((greatest(node_ceiling.quota, 0)::bigint
           * least(greatest(node_ceiling.owned, 1), greatest(node_ceiling.total, 1))
           + greatest(node_ceiling.total, 1) - 1) / greatest(node_ceiling.total, 1))::int;
end;
comment on function outbox.node_ceiling is 'The part of a quota on the owned of all shards, rounded up';
revoke all on function outbox.node_ceiling from public;
