drop index outbox.route_node;
delete from outbox.migration where version = 5;
