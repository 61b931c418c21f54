create or replace function outbox.next_held(held int[], total int)
returns int[]
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
-- For each shard s of total, at s + 1: the first held shard from s on, null behind
-- the last. Shard s is held if next[s + 1] = s. held is sorted.
declare
  v_next int[] := array_fill(null::int, array[next_held.total]);
  v_from int := 0;
  v_held int;
begin
  foreach v_held in array next_held.held loop
    for s in v_from .. v_held loop
      v_next[s + 1] := v_held;
    end loop;
    v_from := v_held + 1;
  end loop;
  return v_next;
end $$;
comment on function outbox.next_held is 'For each shard, the first held one from it on';
revoke all on function outbox.next_held from public;
