-- Tables and settings that the functions of the next migration use.

-- Prune looks for the routes of nodes that are gone. Claims write these rows in place: they
-- never change the node.
create index route_node on outbox.route (node);

insert into outbox.migration (version) values (5);
