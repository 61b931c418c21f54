set local search_path = pg_catalog, pg_temp;
delete from outbox.migration where version = 13;

-- The functions of before know no end: what has been over since must not hold either. What is not over yet
-- stays paused until somebody resumes it.
delete from outbox.pause where until <= clock_timestamp();
alter table outbox.pause drop column until;
