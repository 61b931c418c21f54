-- requires: ceil_div.sql
create or replace function outbox.ripen(
  held int[], next_held int[], now timestamptz,
  inout unripe_from timestamptz, inout unripe_from_id bigint, inout unripe_all_at timestamptz, inout unripe_namespace text,
  inout unripe_rest int, out ripened int, out again boolean)
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_sort = off -- each part comes from an index in its order
as $$
-- The start of a claim: what has come due on its shards becomes ripe, so that the walk finds it.
-- What is delayed, or waits after a failed attempt, is not ripe until then, and costs claims
-- nothing. Only claims do this, under the locks of their shards: so two never meet on a message.
--
-- A claim makes about 500 messages ripe in the order of their time, an equal part of each shard.
-- Where a shard has more, it takes turns as well: it goes on to the next 100 namespaces with
-- messages that wait, in the order of the ring, and makes up to 20 of each ripe. So a million
-- messages of one namespace that come due at one instant do not hold up the others. again says
-- that there is more: the next claim is to follow at once.
--
-- The inout parameters are kept in outbox.walk between the claims of a node. Where a long
-- transaction keeps dead rows, those of what has become ripe before are not read again: the search
-- begins at (unripe_from, unripe_from_id), where the last one stopped, or, if that found all, 100 ms
-- before it. What is committed later than that after it has come due is found every 2 s, when a search
-- begins at the beginning; unripe_all_at is the last time. unripe_namespace is the last one whose
-- turn it was. Where the turns read very many pages, since dead rows of before are in their way,
-- there are none for unripe_rest claims.
declare
  v_part   int := greatest(outbox.ceil_div(500, cardinality(ripen.held)), 2);
  v_from   timestamptz;
  v_id     bigint;
  v_tids   tid[];
  v_turns  tid[];
  v_pages  bigint := pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass);
begin
  if ripen.now not between unripe_all_at and unripe_all_at + interval '2 s' then
    unripe_from := '-infinity';
    unripe_from_id := 0;
    unripe_all_at := ripen.now;
  end if;
  -- by time: pending_unripe_due; a shard with v_part rows may have more
  select array_agg(d.tid),
         (array_agg(d.visible_after order by d.visible_after, d.id) filter (where d.nth = v_part))[1],
         (array_agg(d.id order by d.visible_after, d.id) filter (where d.nth = v_part))[1]
  into v_tids, v_from, v_id
  from unnest(ripen.held) as s(shard)
  cross join lateral (
    select p.*, row_number() over () as nth
    from (
      select p.ctid as tid, p.visible_after, p.id
      from outbox.pending as p
      where not p.ripe and p.shard = s.shard
        and (p.visible_after, p.id) >= (ripen.unripe_from, ripen.unripe_from_id) and p.visible_after <= ripen.now
      order by p.visible_after, p.id limit v_part
    ) as p
  ) as d;
  ripened := 0;
  again := v_from is not null;
  unripe_rest := greatest(unripe_rest - 1, 0);
  if again and unripe_rest = 0 then
    v_pages := pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass);
    -- by turns: pending_unripe_namespace, and up to 200 rows of each, for some may be on other shards
    with recursive walk(n, ring, namespace, wrapped) as (
      select 0, outbox.ring(ripen.unripe_namespace), ripen.unripe_namespace collate "C", false
      union all
      select w.n + 1, x.ring, x.namespace, x.wrapped
      from walk as w
      cross join lateral (
        (select p.ring, p.namespace, w.wrapped
         from outbox.pending as p
         where not p.ripe and (p.ring, p.namespace) > (w.ring, w.namespace)
         order by p.ring, p.namespace, p.visible_after limit 1)
        union all
        (select p.ring, p.namespace, true
         from outbox.pending as p
         where not w.wrapped and not p.ripe
         order by p.ring, p.namespace, p.visible_after limit 1)
        limit 1
      ) as x
      where w.n < 100
        and not (x.wrapped and (x.ring, x.namespace) > (outbox.ring(ripen.unripe_namespace), ripen.unripe_namespace collate "C"))
    )
    select array_agg(x.tid), coalesce((array_agg(w.namespace order by w.n desc))[1], ripen.unripe_namespace)
    into v_turns, unripe_namespace
    from walk as w
    left join lateral (
      select p.tid
      from (
        select p.ctid as tid, p.shard
        from outbox.pending as p
        where not p.ripe and p.ring = w.ring and p.namespace = w.namespace
          and (p.visible_after, p.id) >= (ripen.unripe_from, ripen.unripe_from_id) and p.visible_after <= ripen.now
        order by p.visible_after, p.id limit 200
      ) as p
      where ripen.next_held[p.shard + 1] = p.shard limit 20
    ) as x on true
    where w.n > 0;
    v_pages := pg_stat_get_xact_blocks_fetched('outbox.pending'::regclass) - v_pages;
    if v_pages >= 2000 then -- dead rows of those that became ripe before
      unripe_rest := least(v_pages / 500, 100);
    end if;
  end if;
  if again then
    unripe_from := v_from;
    unripe_from_id := v_id;
  else
    unripe_from := ripen.now - interval '100 ms';
    unripe_from_id := 0;
  end if;
  if v_tids is not null then
    -- what others have locked, to cancel it, say, stays as it is
    v_tids := array(select p.ctid from outbox.pending as p
                    where p.ctid = any (v_tids || v_turns)
                      and case when p.ripe then false else true end -- as no partial index says it: by ctid alone
                    for update skip locked);
    update outbox.pending as p set ripe = true where p.ctid = any (v_tids);
    ripened := cardinality(v_tids);
  end if;
end $$;
comment on function outbox.ripen is 'Makes what has come due ripe, which is where claims look';
revoke all on function outbox.ripen from public;
