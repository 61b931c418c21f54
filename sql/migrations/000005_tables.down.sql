set local search_path = pg_catalog, pg_temp;
delete from outbox.migration where version = 5;

drop index outbox.route_node;
drop table outbox.went_back;
drop sequence outbox.shard_count_set;
-- The sequence keeps its increment: a claim that is under way with the newer function would
-- else draw a larger token than those after it. The last one drawn has a random part, and the former
-- check() takes what is above the sequence for a violation.
do $$ begin perform nextval('outbox.claim_token'); end $$;
