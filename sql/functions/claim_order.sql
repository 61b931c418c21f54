-- requires: ceil_div.sql
create or replace function outbox.claim_order(
  of_visit int[], sizes int[], wanted int[], slice int, batch int, max_bytes bigint, turn bigint,
  out picked int[], out passes int[], out left_out int)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- The third part of a claim: the order of service. picked are the messages to take, as indexes of
-- the candidates, in that order; passes says of each whether it is part of its namespace's slice, 1, or
-- of what was left, 2. Both null: there are no candidates.
--
--   parameter                what it is
--   of_visit, sizes, wanted  what claim_read() returned
--   slice                    ceil(batch / active namespaces)
--   max_bytes                null, or the payload bytes that end the claim
--   turn                     null, or, where all eligible namespaces are here, the walk's round
--
-- The candidates of each namespace have ranks, in their order; rank 1 of all namespaces comes before
-- rank 2 of any. Ranks up to the slice are pass 1. So one order gives both passes, and the claim is its
-- first batch messages, or up to the one that reaches max_bytes.
--
-- Within a rank the order is that of the walk, unless there is a turn: then the first place moves on
-- by one each round, among the namespaces that have a message of that rank, and with it the odd
-- remainder of the batch.
--
-- A payload of max_bytes or more would end the claim wherever it stands. So it goes behind all
-- others, and no other namespace loses its message; but the first message of the claim stays first, so
-- that large payloads are served, too. left_out is the first visit whose message of rank 1 max_bytes
-- kept out: the next walk begins there.
declare
  v_before int[]; -- of each namespace: the candidates before its own,
  v_counts int[]; --   and how many of them it may get
  v_least  int;   -- the least of these
  v_rank   int := 0;
  v_places int;   -- namespaces that have a message of this rank
  v_start  int;   -- which of them is first
  v_taken  int := 0;
  v_slices int;   -- how many are taken by the end of the last rank of the slice
begin
  select array_agg(x.before order by x.visit), array_agg(x.count order by x.visit), min(x.count)
  into v_before, v_counts, v_least
  from (
    select u.visit, min(u.n)::int - 1 as before, least(count(*), claim_order.wanted[u.visit])::int as count
    from unnest(claim_order.of_visit) with ordinality as u(visit, n)
    group by u.visit
  ) as x;
  if v_before is null then
    return;
  end if;

  if claim_order.max_bytes is null or (select sum(u.size) from unnest(claim_order.sizes) as u(size)) < claim_order.max_bytes then
    -- No payload counts. Rank by rank; it comes here with more than a few messages, so not by windows over them.
    picked := '{}';
    loop
      v_rank := v_rank + 1;
      if v_rank > v_least then -- some have no more
        select array_agg(u.before order by u.n), array_agg(u.count order by u.n), min(u.count)
        into v_before, v_counts, v_least
        from unnest(v_before, v_counts) with ordinality as u(before, count, n)
        where u.count >= v_rank;
        exit when v_before is null;
      end if;
      v_places := cardinality(v_before);
      v_start := coalesce(claim_order.turn % v_places, 0);
      for n in 1 .. least(v_places, claim_order.batch - v_taken) loop
        picked[v_taken + n] := v_before[(v_start + n - 1) % v_places + 1] + v_rank;
      end loop;
      v_taken := cardinality(picked);
      if v_rank <= claim_order.slice then
        v_slices := v_taken;
      end if;
      exit when v_taken = claim_order.batch;
    end loop;
    passes := array_fill(1, array[v_slices]) || array_fill(2, array[v_taken - v_slices]);
    return;
  end if;

  with ranked as (
    select u.*, row_number() over (partition by u.visit order by u.i) as rank
    from unnest(claim_order.of_visit, claim_order.sizes) with ordinality as u(visit, payload_bytes, i)
  ), placed as materialized (
    select r.*, row_number() over (partition by r.rank order by r.visit) - 1 as place,
           count(*) over (partition by r.rank) as places
    from ranked as r
    where r.rank <= claim_order.wanted[r.visit]
  ), ordered as (
    select p.*, row_number() over w as n,
           coalesce(sum(p.payload_bytes) over (w rows between unbounded preceding and 1 preceding), 0) as bytes_before
    from placed as p
    window w as (order by (p.payload_bytes >= claim_order.max_bytes and (p.rank > 1 or p.place > 0)) is true, p.rank,
      -- Not where max_bytes may end the claim within rank 1: it might end before it comes to those
      -- in front of the first place, and the next walk would skip them. Then the walk's order stands.
      case when claim_order.turn is not null
                and (select sum(f.payload_bytes) from placed as f where f.rank = 1) < claim_order.max_bytes
           then (p.place - claim_order.turn % p.places + p.places) % p.places else p.place end)
  ), cut as (
    select o.*, o.n <= claim_order.batch and o.bytes_before < claim_order.max_bytes as taken
    from ordered as o
  )
  select array_agg(c.i::int) filter (where c.taken),
         array_agg(case when c.rank <= claim_order.slice then 1 else 2 end) filter (where c.taken),
         min(c.visit) filter (where not c.taken and c.rank = 1)
  into picked, passes, left_out
  from (select c.* from cut as c order by c.n) as c;
end $$;
comment on function outbox.claim_order is 'The order in which a claim serves, and where it ends';
revoke all on function outbox.claim_order from public;
