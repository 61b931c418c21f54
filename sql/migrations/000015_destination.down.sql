set local search_path = pg_catalog, pg_temp;
delete from outbox.migration where version = 15;

-- What is held is claimed again.
drop table outbox.destination;
drop table outbox.report;
drop sequence outbox.report_edge;
drop table outbox.hold_event;
drop sequence outbox.hold_event_edge;
drop sequence outbox.held_edge;
